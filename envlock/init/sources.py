"""Which kind of file a source is, and reading it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from envlock import yamlfile
from envlock.errors import Problems, UsageError
from envlock.init import cog, conda, dockerfile, pip, pyproject
from envlock.init.said import Said

KINDS = "requirements.txt, environment.yml, cog.yaml, Dockerfile, pyproject.toml"
_BY_NAME: tuple[tuple[str, Callable[[Path, Said], None]], ...] = (
    (r"pyproject.*\.toml", pyproject.read),
    (r"cog.*\.ya?ml", cog.read),
    (r"(?:.*[._-])?(?:dockerfile|containerfile)(?:[._-].*)?", dockerfile.read),
    (r".*\.(?:txt|in)", pip.read_file),
)


def read_sources(paths: list[Path]) -> Said:
    """What these files say together. Raises `FileUnreadable`, `UsageError` for a file of another kind, `Problems` for a damaged one."""
    said = Said()
    for path in paths:
        reader_of(path)(path, said)
    return said


def reader_of(path: Path) -> Callable[[Path, Said], None]:
    """The reader for a file, by its name, and by its keys where it is YAML."""
    name = path.name.lower()
    for pattern, reader in _BY_NAME:
        if re.fullmatch(pattern, name):
            return reader
    if re.fullmatch(r".*\.ya?ml", name):
        return _yaml_reader(path)
    raise UsageError(f"envlock does not know what kind of file {path.name} is", hint=f"it reads {KINDS}, by their names")


def _yaml_reader(path: Path) -> Callable[[Path, Said], None]:
    try:
        data = yamlfile.parse_text(yamlfile.read_bytes(path), path.name).data
    except Problems:
        return conda.read
    if isinstance(data, dict) and isinstance(data.get("build"), dict):
        return cog.read
    if isinstance(data, dict) and "dependencies" in data:
        return conda.read
    hint = "a conda environment has `dependencies`, a cog.yaml has `build`; a spec of envlock needs no import"
    raise UsageError(f"{path.name} is neither a conda environment nor a cog.yaml", where=path.name, hint=hint)
