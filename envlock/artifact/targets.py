"""Targets: where an image's archive is written, as one file or in parts, plain or compressed; and how it is read again."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import zstandard

from envlock.artifact.layout import Compression
from envlock.layers import Layer
from envlock.layers.parts import part_of
from envlock.store import CHUNK, explained_when_full

LEVEL = 9
"""zstd's level. Of 150 MB out of the layer with torch 2.13.0, 9 left 25.6 % at 60 MB/s on one core, 3 left 28.8 % at 300 MB/s, and 12
left 25.4 % at 26 MB/s."""

UNFINISHED = ".unfinished"


@dataclass(frozen=True, slots=True)
class Part:
    """One file that was written: its name, size in bytes and sha256 in hex."""

    name: str
    size: int
    sha256: str


class Target(Protocol):
    """Takes an archive front to back."""

    def write(self, piece: bytes) -> None: ...

    def kept(self, layer: Layer) -> BinaryIO | None:
        """The layer that comes next, where an earlier run has written it already."""

    def finish(self) -> tuple[Part, ...]:
        """All is written: the files, complete and under their names."""

    def abandon(self) -> None:
        """Stop here: what was written stays for a later run."""


class OneFile:
    """A plain file that an interrupted run goes on with: layers that are there whole are read, not made again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unfinished = path.with_name(path.name + UNFINISHED)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            path.replace(self._unfinished)
        self._file = self._unfinished.open("r+b" if self._unfinished.exists() else "w+b")
        self._there = self._unfinished.stat().st_size
        self._position = 0
        self._kept_until = 0
        self._hash = hashlib.sha256()

    def write(self, piece: bytes) -> None:
        self._hash.update(piece)
        end = self._position + len(piece)
        if end > self._kept_until:
            self._file.seek(self._position)
            with explained_when_full(self._path.parent, len(piece)):
                self._file.write(piece)
        self._position = end

    def kept(self, layer: Layer) -> BinaryIO | None:
        start = self._position
        if self._there < start + layer.size:
            return None
        self._file.flush()
        reader = self._unfinished.open("rb")
        if _sha256_of(part_of(reader, start, layer.size)) != layer.diff_id.removeprefix("sha256:"):
            reader.close()
            return None
        self._kept_until = start + layer.size
        return cast(BinaryIO, _Closing(part_of(reader, start, layer.size), reader))

    def abandon(self) -> None:
        self._file.close()

    def finish(self) -> tuple[Part, ...]:
        with explained_when_full(self._path.parent, 0), self._file:
            self._file.truncate(self._position)
        self._unfinished.replace(self._path)
        return (Part(self._path.name, self._position, self._hash.hexdigest()),)


class Split:
    """Parts of at most `most` bytes, named with a number behind; `cat` puts them together again."""

    def __init__(self, path: Path, most: int) -> None:
        self._path = path
        self._most = most
        self._parts: list[Part] = []
        self._file: BinaryIO | None = None
        self._hash = hashlib.sha256()
        self._size = 0
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, piece: bytes) -> None:
        rest = memoryview(piece)
        while rest:
            if self._file is None:
                self._file = self._here.with_name(self._here.name + UNFINISHED).open("wb")
                self._hash, self._size = hashlib.sha256(), 0
            taken = rest[: self._most - self._size]
            with explained_when_full(self._path.parent, len(taken)):
                self._file.write(taken)
            self._hash.update(taken)
            self._size += len(taken)
            rest = rest[len(taken) :]
            if self._size == self._most:
                self._end_part()

    def kept(self, layer: Layer) -> BinaryIO | None:
        return None

    def abandon(self) -> None:
        if self._file is not None:
            self._file.close()

    def finish(self) -> tuple[Part, ...]:
        if self._file is not None:
            self._end_part()
        return tuple(self._parts)

    @property
    def _here(self) -> Path:
        return self._path.with_name(f"{self._path.name}.part-{len(self._parts):03}")

    def _end_part(self) -> None:
        if self._file is not None:
            with explained_when_full(self._path.parent, 0):
                self._file.close()
            self._file = None
        here = self._here
        here.with_name(here.name + UNFINISHED).replace(here)
        self._parts.append(Part(here.name, self._size, self._hash.hexdigest()))


class Compressed:
    """zstd in front of another target: one frame, one thread, so that the bytes depend on library and level alone."""

    def __init__(self, inner: Target) -> None:
        self._inner = inner
        self._compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True, threads=0).compressobj()

    def write(self, piece: bytes) -> None:
        self._inner.write(self._compressor.compress(piece))

    def kept(self, layer: Layer) -> BinaryIO | None:
        return None

    def abandon(self) -> None:
        self._inner.abandon()

    def finish(self) -> tuple[Part, ...]:
        self._inner.write(self._compressor.flush())
        return self._inner.finish()


def open_target(path: Path, compression: Compression, split: int | None) -> Target:
    """Where to write an archive; `split` is the most bytes of one file."""
    inner: Target = Split(path, split) if split else OneFile(path)
    return Compressed(inner) if compression == "zstd" else inner


def compressor_versions() -> dict[str, Any]:
    """What a compressed archive's bytes depend on."""
    return {
        "library": f"zstd {'.'.join(map(str, zstandard.ZSTD_VERSION))}",
        "binding": f"zstandard {zstandard.__version__}",
        "level": LEVEL,
    }


def unpacked(joined: Joined, compression: Compression) -> BinaryIO:
    """The plain archive in the files that were written."""
    if compression == "none":
        return cast(BinaryIO, joined)
    reader = zstandard.ZstdDecompressor().stream_reader(cast(Any, joined), read_size=CHUNK, read_across_frames=True)
    return cast(BinaryIO, reader)


class Joined:
    """Several files read as one, each hashed as it passes: `sums` has the sha256 in hex of those that were read to their end."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._waiting = list(paths)
        self._path: Path | None = None
        self._file: BinaryIO | None = None
        self._hash = hashlib.sha256()
        self.sums: dict[Path, str] = {}

    def read(self, size: int = -1) -> bytes:
        while True:
            if self._file is None:
                if not self._waiting:
                    return b""
                self._path = self._waiting.pop(0)
                self._file = self._path.open("rb")
                self._hash = hashlib.sha256()
            if data := self._file.read(size if size >= 0 else CHUNK):
                self._hash.update(data)
                return data
            self._file.close()
            self._file = None
            assert self._path is not None
            self.sums[self._path] = self._hash.hexdigest()

    def drain(self) -> None:
        """Read to the end of the last file."""
        while self.read(CHUNK):
            pass

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class _Closing(io.RawIOBase):
    """Part of a file that closes the file with it."""

    def __init__(self, part: BinaryIO, whole: BinaryIO) -> None:
        self._part = part
        self._whole = whole

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._part.read(size)

    def close(self) -> None:
        self._whole.close()
        super().close()


def _sha256_of(stream: BinaryIO) -> str:
    hasher = hashlib.sha256()
    while chunk := stream.read(CHUNK):
        hasher.update(chunk)
    return hasher.hexdigest()
