"""Wheels that would write over each other: the same path with other content from two of them."""

from __future__ import annotations

import base64
import configparser
import csv
import hashlib
import io
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from packaging.utils import canonicalize_name

from envlock.errors import Exit, FileConflict, Problems
from envlock.lock import Wheel
from envlock.store import CHUNK, Store

_SITE_PACKAGES = re.compile(r"lib/python[\d.]+/site-packages/")
_SCRIPTS = ("console_scripts", "gui_scripts")


def check_overlaps(wheels: Iterable[Wheel], store: Store) -> None:
    """Raises `FileConflict` (or `Problems` of several) when two wheels, read from the store, install different bytes at one path.

    The same bytes from several wheels are fine: each nvidia wheel has its own nvidia/__init__.py.
    """
    owners: dict[str, tuple[str, str]] = {}
    clashes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for wheel in wheels:
        for path, content in installed_files(wheel, store):
            owner, before = owners.setdefault(path, (wheel.name, content))
            if before != content:
                clashes[owner, wheel.name].append(path)
    for path, (owner, _) in owners.items():
        for folder in PurePosixPath(path).parents:
            other = owners.get(str(folder))
            if other is not None and other[0] != owner:
                clashes[other[0], owner].append(str(folder))
    if not clashes:
        return
    errors = [_conflict(first, second, sorted(set(paths))) for (first, second), paths in sorted(clashes.items())]
    raise errors[0] if len(errors) == 1 else Problems((error.finding for error in errors), Exit.NO_STACK)


def installed_files(wheel: Wheel, store: Store) -> Iterator[tuple[str, str]]:
    """Each file that a wheel installs: its path below the environment's folder, and what identifies its content.

    Paths as the wheel format maps them ("Installing a wheel" in the PyPA specifications); `site/` stands for site-packages.
    """
    with zipfile.ZipFile(store.path(wheel.sha256)) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        records = _records(archive, names)
        for name in names:
            yield _destination(name, wheel), records.get(name) or _hashed(archive, name)
        for script, target in _entry_points(archive, names):
            yield f"bin/{script}", f"entry point {target}"


def _records(archive: zipfile.ZipFile, names: Iterable[str]) -> dict[str, str]:
    """sha256 by path, as the wheel's RECORD gives it (urlsafe base64 without padding)."""
    record = next((name for name in names if re.fullmatch(r"[^/]+\.dist-info/RECORD", name)), None)
    if record is None:
        return {}
    rows = csv.reader(io.StringIO(archive.read(record).decode("utf-8", errors="replace")))
    return {row[0]: row[1] for row in rows if len(row) > 1 and row[1].startswith("sha256=")}


def _hashed(archive: zipfile.ZipFile, name: str) -> str:
    digest = hashlib.sha256()
    with archive.open(name) as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return "sha256=" + base64.urlsafe_b64encode(digest.digest()).decode().rstrip("=")


def _destination(name: str, wheel: Wheel) -> str:
    top, _, rest = name.partition("/")
    if not top.endswith(".data"):
        return f"site/{name}"
    scheme, _, inside = rest.partition("/")
    if scheme == "scripts":
        return f"bin/{inside}"
    if scheme == "headers":
        return f"include/{canonicalize_name(wheel.name)}/{inside}"
    return _SITE_PACKAGES.sub("site/", inside, count=1) if scheme == "data" else f"site/{inside}"


def _entry_points(archive: zipfile.ZipFile, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    name = next((name for name in names if re.fullmatch(r"[^/]+\.dist-info/entry_points\.txt", name)), None)
    if name is None:
        return
    parser = configparser.RawConfigParser(delimiters=("=",), strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(archive.read(name).decode("utf-8", errors="replace"))
    except configparser.Error:
        return
    for section in _SCRIPTS:
        if parser.has_section(section):
            yield from parser.items(section)


def _conflict(first: str, second: str, paths: list[str]) -> FileConflict:
    shown = ", ".join(path.removeprefix("site/") for path in paths[:3])
    why = f"{shown}" + (f" and {len(paths) - 3} more" if len(paths) > 3 else "") + ": the one installed last would win"
    hint = f"keep only one of {first} and {second}; packages that clash like this are often two builds of one library"
    return FileConflict(f"{first} and {second} install different files at one path", where=f"{first}, {second}", why=why, hint=hint)
