"""What a spec names beside itself: requirement files, and files and folders to copy into the image."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from envlock import yamlfile
from envlock.errors import FileUnreadable, UsageError
from envlock.lock import CopiedFile
from envlock.resolve.requirements import read_requirements
from envlock.spec import FileCopy, Spec
from envlock.store import Store

# Never part of a paper's code, and different on every machine.
LEFT_OUT = frozenset({"__pycache__", ".git", ".DS_Store", ".ipynb_checkpoints", ".venv", ".mypy_cache", ".pytest_cache", ".ruff_cache"})


def hash_requirements(spec: Spec, folder: Path) -> dict[str, str]:
    """sha256 of each requirement file that the spec names and of those that they include, by their path beside the spec.

    Raises what `read_requirements` raises.
    """
    files = read_requirements(folder / name for name in spec.requirements).files
    return {os.path.relpath(path, folder): hashlib.sha256(yamlfile.read_bytes(path)).hexdigest() for path in files}


def list_files(spec: Spec, folder: Path) -> tuple[CopiedFile, ...]:
    """Every file that the spec's `files` stand for, folders walked, by hash, sorted by where it goes.

    Raises `FileUnreadable` for what is missing, and for symbolic links: what they point to need not exist in the image; and
    `UsageError` where two files go to one place.
    """
    found = sorted((file for copy in spec.files for file in _walk(copy, folder)), key=lambda file: file.to)
    _refuse_clashes(found)
    return tuple(found)


def _refuse_clashes(files: Sequence[CopiedFile]) -> None:
    taken: dict[str, CopiedFile] = {}
    for file in files:
        for place in (file.to, *map(str, PurePosixPath(file.to).parents)):
            if place in taken:
                what = f"{taken[place].source} and {file.source} both go to {place}"
                why = "" if place == file.to else "one of them as a file, the other as a file in a folder of that name"
                raise UsageError(what, where="files", why=why, hint="let each of the spec's files go to a place of its own")
        taken[file.to] = file


def keep_files(files: tuple[CopiedFile, ...], folder: Path, store: Store) -> None:
    """Put the spec's files into the store, so that the lock can be built without the spec's folder.

    Raises `FileUnreadable` for what is missing, and `DownloadDamaged` for a file that is not as it was locked.
    """
    for file in files:
        if not store.has(file.sha256):
            store.add(folder / file.source, file.sha256)


def _walk(copy: FileCopy, folder: Path) -> list[CopiedFile]:
    root = folder / copy.source
    try:
        root.lstat()
    except OSError as error:
        raise FileUnreadable(
            f"cannot read {copy.source}", where="files", why=error.strerror or str(error), hint="the spec names it"
        ) from None
    if root.is_dir() and not root.is_symlink():
        inside = (path for path in root.rglob("*") if not LEFT_OUT & set(path.relative_to(root).parts))
        paths = sorted(path for path in inside if path.is_symlink() or not path.is_dir())
        return [_file(path, folder, PurePosixPath(copy.to) / path.relative_to(root).as_posix()) for path in paths]
    # As with `cp`: a target that ends in a slash is a folder.
    target = PurePosixPath(copy.to) / root.name if copy.to.endswith("/") else PurePosixPath(copy.to)
    return [_file(root, folder, target)]


def _file(path: Path, folder: Path, target: PurePosixPath) -> CopiedFile:
    name = path.relative_to(folder).as_posix()
    shown = os.fsencode(name).decode(errors="backslashreplace")
    if shown != name:
        raise FileUnreadable(f"the name of {shown} is not UTF-8", where=shown, hint="rename it; a lock names files in UTF-8")
    if path.is_symlink():
        raise FileUnreadable(f"{name} is a symbolic link", where=name, hint="copy the file itself, or name the place it points to")
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise FileUnreadable(
                f"{name} is no regular file", where=name, why="it is a pipe, a socket or a device", hint="move it elsewhere"
            )
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise FileUnreadable(f"cannot read {name}", where=name, why=error.strerror or str(error), hint="the spec names it") from None
    executable = bool(status.st_mode & 0o100)
    try:
        return CopiedFile(source=name, to=str(target), sha256=digest, size=status.st_size, executable=executable)
    except ValidationError as error:
        why = error.errors(include_url=False)[0]["msg"]
        raise UsageError(f"{name} cannot go to {target}", where="files", why=why, hint="let it go to a folder of its own") from None
