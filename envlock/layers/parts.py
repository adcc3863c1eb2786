"""Parts of larger files as streams, so that content can wait on disk and not in memory."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from functools import partial
from io import RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, cast

from envlock.layers.entry import Entry

_CHUNK = 1 << 20


class Part(RawIOBase):
    """`size` bytes of a file from `start`; the file stays open."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        self._file = file
        self._at = start
        self._end = start + size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._at)
        data = self._file.read(min(len(buffer), self._end - self._at))
        self._at += len(data)
        buffer[: len(data)] = data
        return len(data)


class _OwnPart(Part):
    """A part that closes its file."""

    def close(self) -> None:
        self._file.close()
        super().close()


def part_of(file: BinaryIO, start: int, size: int) -> BinaryIO:
    """A part of an open file; one may be read at a time."""
    return cast(BinaryIO, Part(file, start, size))


def spooled(entry: Entry, content: BinaryIO) -> Entry:
    """The entry of a file with its content copied to the end of `content`, to be read from there later."""
    start = content.tell()
    if entry.open is not None:
        with entry.open() as stream:
            while chunk := stream.read(_CHUNK):
                content.write(chunk)
    return replace(entry, open=partial(part_of, content, start, entry.size))


def stored_files(path: Path) -> tuple[Entry, ...]:
    """The files of one of our own tars on disk; their contents can be read in any order, and from several threads."""
    with tarfile.open(path, "r:", encoding="utf-8", errors="surrogateescape") as tar:
        return tuple(
            Entry(
                path=member.name,
                kind="file",
                mode=member.mode,
                mtime=int(member.mtime),
                size=member.size,
                open=partial(_open_part, path, member.offset_data, member.size),
            )
            for member in tar
            if member.isreg()
        )


def _open_part(path: Path, start: int, size: int) -> BinaryIO:
    return cast(BinaryIO, _OwnPart(path.open("rb", buffering=0), start, size))
