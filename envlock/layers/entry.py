"""Entry: one path of a layer or a file tree, with the metadata that the layer rules keep.

Paths are text in UTF-8 with undecodable bytes as surrogates, relative to the root, without `./` in front or `/` at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Literal

from envlock.errors import HostileArchive

Kind = Literal["file", "directory", "symlink", "hardlink", "whiteout", "opaque"]

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"

# What engines put into every container, or mount over: never part of a layer (layer rules v1).
STUB_FOLDERS = ("proc", "sys", "dev")
STUB_FILES = frozenset({".dockerenv", "etc/hosts", "etc/hostname", "etc/mtab", "etc/resolv.conf"})

_CAPABILITY_3 = 0x03000000  # linux/capability.h: VFS_CAP_REVISION_3, with the owner of its user namespace
_CAPABILITY_2 = 0x02000000


@dataclass(frozen=True, slots=True)
class Entry:
    """One path with its metadata; `open` gives a file's content, `size` bytes long.

    `mode` holds the permission bits (07777), `mtime` whole seconds since 1970 in UTC, `target` what a symbolic link says or
    the path that a hard link shares, `capability` the raw `security.capability` attribute. `opaque` is only ever read, from
    layers that others made: it hides what a folder holds in the layers below.
    """

    path: str
    kind: Kind
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    size: int = 0
    target: str = ""
    capability: bytes | None = None
    open: Callable[[], BinaryIO] | None = None


def path_bytes(path: str) -> bytes:
    """The path as an archive and a file system hold it."""
    return path.encode("utf-8", "surrogateescape")


def ancestors(path: str) -> Iterator[str]:
    """The folders above a path, nearest first, without the root: `a/b`, `a` for `a/b/c`."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def is_stub(path: str) -> bool:
    """Whether engines own this path in every container."""
    return path.partition("/")[0] in STUB_FOLDERS or path in STUB_FILES


def checked_path(path: str, where: str) -> str:
    """The path in the form that `Entry` has it; empty for the root. Raises `HostileArchive` when it leads out of the root."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or "\0" in path or ".." in parts:
        why = "it is absolute, leads upwards or holds a null byte"
        hint = "do not use this file; get it again from a source that you trust"
        raise HostileArchive(f"the path {path!r} may not be in an archive", where=where, why=why, hint=hint)
    return "/".join(parts)


def plain_capability(raw: bytes | None) -> bytes | None:
    """`security.capability` without the namespace's owner, which some engines drop and others keep."""
    if raw is None or len(raw) != 24:
        return raw
    magic = int.from_bytes(raw[:4], "little")
    if magic & 0xFF000000 != _CAPABILITY_3:
        return raw
    return (_CAPABILITY_2 | magic & 0x00FFFFFF).to_bytes(4, "little") + raw[4:20]
