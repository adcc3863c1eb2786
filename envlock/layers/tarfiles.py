"""Tar as bytes: the headers that the layer rules prescribe, and a streaming reader for any tar.

Headers follow POSIX.1-2017 (pax, "ustar Interchange Format"): USTAR alone wherever it can hold an entry, a PAX header before
it where it cannot. The reader is Python's `tarfile`; it never extracts anything.
"""

from __future__ import annotations

import math
import tarfile
from collections.abc import Iterator
from typing import BinaryIO, cast

from envlock.errors import DamagedArchive, HostileArchive
from envlock.layers.entry import OPAQUE, STUB_FOLDERS, WHITEOUT, Entry, Kind, checked_path, path_bytes, plain_capability

BLOCK = 512
END = bytes(2 * BLOCK)

_TYPE = {"file": b"0", "hardlink": b"1", "symlink": b"2", "directory": b"5", "whiteout": b"0"}
_CAPABILITY = "SCHILY.xattr.security.capability"
_OCTAL_7 = 8**7 - 1
_OCTAL_11 = 8**11 - 1
_READ = 64 * 1024
_ALWAYS_ALLOWED = 4 << 30
_MOST_RATIO = 100


def name_in_tar(entry: Entry) -> bytes:
    """The name under which a layer holds an entry: whiteouts by their mark, folders without the slash that ends them."""
    if entry.kind != "whiteout":
        return path_bytes(entry.path)
    folder, slash, base = entry.path.rpartition("/")
    return path_bytes(f"{folder}{slash}{WHITEOUT}{base}")


def header(entry: Entry) -> bytes:
    """All header blocks of one entry, PAX included where USTAR cannot hold it."""
    name = name_in_tar(entry) + (b"/" if entry.kind == "directory" else b"")
    link = path_bytes(entry.target)
    size = entry.size if entry.kind == "file" else 0
    records: dict[bytes, bytes] = {}
    split = _split(name)
    if split is None:
        records[b"path"] = name
        split = (b"", _ascii(name)[-100:])
    if len(link) > 100 or not link.isascii():
        records[b"linkpath"] = link
        link = _ascii(link)[:100]
    if size > _OCTAL_11:
        records[b"size"] = b"%d" % size
        size = 0
    owner = {b"uid": entry.uid, b"gid": entry.gid}
    for key, value in owner.items():
        if not 0 <= value <= _OCTAL_7:
            records[key] = b"%d" % value
            owner[key] = 0
    mtime = entry.mtime
    if not 0 <= mtime <= _OCTAL_11:
        records[b"mtime"] = b"%d" % mtime
        mtime = 0
    if entry.capability is not None:
        records[_CAPABILITY.encode()] = entry.capability
    prefix, short = split
    block = _ustar(short, prefix, entry.mode, owner[b"uid"], owner[b"gid"], size, mtime, _TYPE[entry.kind], link)
    return _pax(records) + block if records else block


def _split(name: bytes) -> tuple[bytes, bytes] | None:
    """USTAR's prefix and name, the prefix as short as can be; None where the name does not fit."""
    if not name.isascii():
        return None
    if len(name) <= 100:
        return b"", name
    cut = name.find(b"/", len(name) - 101)
    if cut in (-1, 0, len(name) - 1) or cut > 155:
        return None
    return name[:cut], name[cut + 1 :]


def _ascii(name: bytes) -> bytes:
    return bytes(byte if byte < 128 else 0x3F for byte in name)


def _ustar(name: bytes, prefix: bytes, mode: int, uid: int, gid: int, size: int, mtime: int, kind: bytes, link: bytes) -> bytes:
    numbers = b"%07o\0%07o\0%07o\0%011o\0%011o\0        " % (mode, uid, gid, size, mtime)
    owner_names = bytes(64)
    device = b"0000000\0" * 2
    fields = (name.ljust(100, b"\0"), numbers, kind, link.ljust(100, b"\0"), b"ustar\x0000", owner_names, device, prefix.ljust(167, b"\0"))
    block = b"".join(fields)
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _pax(records: dict[bytes, bytes]) -> bytes:
    body = b"".join(_pax_record(key, value) for key, value in sorted(records.items()))
    head = _ustar(b"././@PaxHeader", b"", 0o644, 0, 0, len(body), 0, b"x", b"")
    return head + body + padding(len(body))


def _pax_record(key: bytes, value: bytes) -> bytes:
    """`LENGTH KEY=VALUE\\n`, where LENGTH counts its own digits."""
    rest = len(key) + len(value) + 3
    length = rest
    while length != rest + len(str(length)):
        length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def padding(size: int) -> bytes:
    """The zeros that fill content of `size` bytes up to a whole block."""
    return bytes(-size % BLOCK)


class _Source:
    """A stream that remembers how it ended, since `tarfile` takes a cut at a header for the end."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._last = b""
        self._ended = False

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._ended = not data
        self._last = (self._last + data)[-BLOCK:] if data else self._last
        return data

    def drain(self) -> None:
        """Read what follows the end mark, so that a connection that it comes from can be used again."""
        while self._stream.read(_READ):
            pass

    @property
    def cut_short(self) -> bool:
        return self._ended and self._last != bytes(BLOCK)


def read_tar(stream: BinaryIO, where: str) -> Iterator[Entry]:
    """The entries of a plain tar, in its order, while it is read once from front to back.

    Understands USTAR, PAX, GNU long names and sparse files. An entry's content can be read until the next entry is asked for.
    The root folder, FIFOs, and devices below /proc, /sys and /dev are left out. `where` names the archive in messages. Raises
    `HostileArchive` and `DamagedArchive`.
    """
    source = _Source(stream)
    try:
        with tarfile.open(
            fileobj=cast(BinaryIO, source), mode="r|", bufsize=_READ, encoding="utf-8", errors="surrogateescape", ignore_zeros=False
        ) as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # else it keeps every header of the archive
                entry = _entry(tar, member, where)
                if entry is not None:
                    yield entry
    except (tarfile.TarError, EOFError) as error:
        raise _damaged(where, str(error)) from None
    source.drain()
    if source.cut_short:
        raise _damaged(where, "its end mark is missing")


def _damaged(where: str, why: str) -> DamagedArchive:
    return DamagedArchive("a tar archive is damaged or cut short", where=where, why=why, hint="make or fetch it again")


def _entry(tar: tarfile.TarFile, member: tarfile.TarInfo, where: str) -> Entry | None:
    path = checked_path(member.name, where)
    if path == "" or member.isfifo():
        return None
    if member.isdev():
        if path.partition("/")[0] in STUB_FOLDERS:
            return None
        hint = "do not use this archive; devices belong to the engine"
        raise HostileArchive(f"{path!r} is a device", where=where, why="a device in a layer can stand for other files", hint=hint)
    folder, _, base = path.rpartition("/")
    if base == OPAQUE:
        return Entry(folder, "opaque", mode=0)
    if base.startswith(WHITEOUT):
        return Entry(f"{folder}/{base[len(WHITEOUT) :]}".lstrip("/"), "whiteout", mode=0)
    kind, target = _kind(member, where)
    _refuse_holes(member, where)
    capability = member.pax_headers.get(_CAPABILITY)
    return Entry(
        path=path,
        kind=kind,
        mode=member.mode & 0o7777,
        uid=member.uid,
        gid=member.gid,
        mtime=math.floor(member.mtime),
        size=member.size if kind == "file" else 0,
        target=target,
        capability=plain_capability(capability.encode("utf-8", "surrogateescape")) if capability else None,
        open=(lambda: cast(BinaryIO, _Content(cast(BinaryIO, tar.extractfile(member)), where))) if kind == "file" else None,
    )


def _refuse_holes(member: tarfile.TarInfo, where: str) -> None:
    """A sparse file may say that it is of any size, whatever it holds."""
    holes: list[tuple[int, int]] = getattr(member, "sparse", None) or []
    stored = sum(size for _, size in holes)
    if member.issparse() and member.size > max(_ALWAYS_ALLOWED, _MOST_RATIO * stored):
        why = f"{stored} bytes stand for {member.size}: the rest are holes"
        hint = "do not use this archive; or make it again without the file, which holds nothing"
        raise HostileArchive(f"{member.name!r} unpacks to far more than it is", where=where, why=why, hint=hint)


class _Content:
    """The content of an entry; that it ends too soon is known only when it is read."""

    def __init__(self, stream: BinaryIO, where: str) -> None:
        self._stream = stream
        self._where = where

    def read(self, size: int = -1) -> bytes:
        try:
            return self._stream.read(size)
        except tarfile.TarError as error:
            raise _damaged(self._where, str(error)) from None

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> _Content:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _kind(member: tarfile.TarInfo, where: str) -> tuple[Kind, str]:
    if member.isdir():
        return "directory", ""
    if member.issym():
        return "symlink", member.linkname
    if member.islnk():
        return "hardlink", checked_path(member.linkname, where)
    if member.isreg():
        return "file", ""
    what = f"{member.name!r} is of an unknown kind {member.type!r}"
    raise HostileArchive(what, where=where, hint="make the archive again with plain tar")
