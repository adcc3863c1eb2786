"""Runtime layer, the uppermost: start-up hook, self-test, lock, Dockerfile, the spec's files, and the user that the spec asks for.

All of it has the constant time. What the spec brings belongs to the spec's user, so that a program may write beside its own
files; the rest belongs to root.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from envlock.errors import BuildFailed, FileGone
from envlock.layers.bytecode import Modules
from envlock.layers.canonical import ASSEMBLED, Plan, Tree, plan_layer
from envlock.layers.entry import Entry, ancestors, is_stub
from envlock.layers.wheelfile import site_packages
from envlock.lock import CopiedFile, Lock
from envlock.runtime.hook import pth_line

FOLDER = "opt/envlock"


class Blobs(Protocol):
    """The part of the store that has files."""

    def path(self, sha256: str) -> Path: ...


@dataclass(frozen=True, slots=True)
class _User:
    """The user that programs run as. `home`, without the slash in front, is set for a user that the base does not know."""

    uid: int = 0
    gid: int = 0
    home: str = ""


def shipped_modules(lock: Lock, lib: Mapping[str, bytes]) -> Modules:
    """The modules of the shipped package, to be compiled: a process that cannot write its own bytecode starts in a sixth of the time."""
    texts = {path: content for path, content in lib.items() if path.endswith(".py") and content}
    return Modules("the self-test", lock.shipped.sha256, tuple(_text(f"{FOLDER}/lib/{path}", text) for path, text in texts.items()))


def plan_runtime(lock: Lock, lib: Mapping[str, bytes], compiled: Sequence[Entry], dockerfile: bytes, store: Blobs, below: Tree) -> Plan:
    """Decide the layer. `lib` is the shipped package by path (`envlock/__init__.py`), `compiled` its bytecode, `below` the tree of all
    layers below.

    The spec's files come from the store, and are held against their hashes while they are written. Raises `FileGone` where one
    is missing, `BuildFailed` where one cannot go where the spec wants it.
    """
    user, rows = _user(lock.run.user, below)
    shipped = {
        f"{site_packages(lock.stack.python)}/envlock.pth": pth_line().encode(),
        f"{FOLDER}/lock.json": lock.json_bytes,
        f"{FOLDER}/Dockerfile": dockerfile,
        **{f"{FOLDER}/lib/{path}": content for path, content in lib.items()},
        **rows,
    }
    entries = [_text(path, content) for path, content in shipped.items()]
    entries += compiled
    entries += [_copied(file, user, store, below) for file in lock.files]
    entries += _folders([entry.path for entry in entries], [file.to for file in lock.files], lock.run.workdir, user, below)
    return plan_layer(entries, below)


def _text(path: str, content: bytes) -> Entry:
    return Entry(path, "file", mtime=ASSEMBLED, size=len(content), open=partial(BytesIO, content))


def _copied(file: CopiedFile, user: _User, store: Blobs, below: Tree) -> Entry:
    path = below.resolve(file.to)
    if is_stub(path):
        why = "engines put their own file there when a container starts"
        raise BuildFailed(f"{file.source} cannot go to {file.to}", where=file.source, why=why, hint="choose another place under `files`")
    blob = store.path(file.sha256)
    if not blob.is_file():
        why = "the store has no file with the sha256 of the lock"
        hint = "build where the spec and its files are, or from an artifact that holds them"
        raise FileGone(f"the spec's file {file.source} is missing", where=file.source, why=why, hint=hint)
    opener = cast("partial[BinaryIO]", partial(_Verified, blob, file))
    return Entry(path, "file", 0o755 if file.executable else 0o644, user.uid, user.gid, ASSEMBLED, file.size, open=opener)


class _Verified:
    """A file of the spec, read once and held against the lock at its end."""

    def __init__(self, blob: Path, file: CopiedFile) -> None:
        self._stream = blob.open("rb")
        self._file = file
        self._hash = hashlib.sha256()

    def __enter__(self) -> _Verified:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._hash.update(data)
        if not data and self._hash.hexdigest() != self._file.sha256:
            why = f"its sha256 is {self._hash.hexdigest()}, not {self._file.sha256}"
            hint = "the store is damaged: remove that file from it and build again"
            raise BuildFailed(f"{self._file.source} is not the file that was locked", where=self._file.source, why=why, hint=hint)
        return data


def _folders(made: list[str], copied: list[str], workdir: str | None, user: _User, below: Tree) -> Iterator[Entry]:
    """The user's home, the workdir, and the folders that the spec's files need: all that are not there below."""
    wanted = {below.resolve(path) for path in (user.home, workdir or "") if path}
    wanted |= {above for path in copied for above in ancestors(below.resolve(path))}
    if workdir:
        wanted |= set(ancestors(below.resolve(workdir)))
    for path in sorted(wanted):
        if path not in below.nodes and path not in made:
            yield Entry(path, "directory", 0o755, user.uid, user.gid, ASSEMBLED)


def _user(wish: str | None, below: Tree) -> tuple[_User, dict[str, bytes]]:
    """The user that `uid` or `uid:gid` asks for, and /etc/passwd and /etc/group with rows for them, where rows are missing."""
    if wish is None:
        return _User(), {}
    users, groups = _rows("etc/passwd", 7, below), _rows("etc/group", 4, below)
    uid, _, wanted_gid = wish.partition(":")
    known = next((row for row in users if row[2] == uid), None)
    gid = wanted_gid or (known[3] if known else uid)
    names = {row[0] for row in (*users, *groups)}
    added: dict[str, bytes] = {}
    home = ""
    if known is None:
        name = "user" if "user" not in names else f"user{uid}"
        home = f"home/{name}"
        shell = "/bin/bash" if below.resolve("bin/bash") in below.nodes else "/bin/sh"
        added["etc/passwd"] = _with_row("etc/passwd", [name, "x", uid, gid, "", f"/{home}", shell], below)
    if not any(row[2] == gid for row in groups):
        name = "user" if "user" not in names else f"group{gid}"
        added["etc/group"] = _with_row("etc/group", [name, "x", gid, ""], below)
    return _User(int(uid), int(gid), home), added


def _rows(path: str, columns: int, below: Tree) -> list[list[str]]:
    rows = (line.split(":") for line in _table(path, below).decode("utf-8", "surrogateescape").splitlines())
    return [row for row in rows if len(row) == columns]


def _table(path: str, below: Tree) -> bytes:
    """The text of /etc/passwd or /etc/group; none where the base has no such file. A link's text is not at hand, and must not be lost."""
    if path in below.nodes and path not in below.kept:
        hint = "leave `run: {user: …}` out, or take a base where it is a plain file"
        raise BuildFailed(f"no row can be added to the base's /{path}", where="run.user", why="it is a link to another file", hint=hint)
    return below.kept.get(path, b"")


def _with_row(path: str, row: list[str], below: Tree) -> bytes:
    table = _table(path, below)
    ended = table if table.endswith(b"\n") or not table else table + b"\n"
    return ended + f"{':'.join(row)}\n".encode()
