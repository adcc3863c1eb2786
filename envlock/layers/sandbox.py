"""Sandbox: the little that layers need of a container, so that they do not depend on an engine."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import BinaryIO, Protocol, cast

from envlock.errors import BuildFailed
from envlock.layers.canonical import Entry, write_layer

_MOST_LINES = 20
_CHUNK = 1 << 20


class Ended(Protocol):
    """The end of a command: its exit status, and all that it printed."""

    @property
    def status(self) -> int: ...

    @property
    def output(self) -> bytes: ...


class Sandbox(Protocol):
    """A started container of the base with no network."""

    def put(self, folder: str, tar: Iterable[bytes]) -> None:
        """Unpack a tar, given in pieces, below an existing folder."""

    def get(self, path: str) -> Iterator[bytes]:
        """A file or folder as a tar, in pieces."""

    def exec(self, command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> Ended:
        """Run a command to its end."""


def put_files(sandbox: Sandbox, files: Mapping[str, bytes]) -> None:
    """Put small files into the container, by their path without the slash in front."""
    tar = io.BytesIO()
    write_layer([Entry(path, "file", size=len(content), open=partial(io.BytesIO, content)) for path, content in files.items()], tar, "")
    sandbox.put("/", [tar.getvalue()])


def pieces_of(stream: BinaryIO) -> Iterator[bytes]:
    """What is left of a stream, in pieces."""
    return iter(partial(stream.read, _CHUNK), b"")


def run_step(sandbox: Sandbox, command: Sequence[str], doing: str, hint: str) -> None:
    """Run a command that must succeed; raises `BuildFailed` with the end of what it printed."""
    ended = sandbox.exec(command)
    if ended.status != 0:
        lines = ended.output.decode("utf-8", "replace").strip().splitlines()[-_MOST_LINES:]
        raise BuildFailed(f"{doing} failed in the container", where=doing, why="\n".join(lines) or f"exit status {ended.status}", hint=hint)


class _Pieces(io.RawIOBase):
    """A stream over pieces of bytes as they come."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = memoryview(piece)
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


def stream_of(pieces: Iterable[bytes]) -> BinaryIO:
    """The pieces as one stream to read."""
    return cast(BinaryIO, io.BufferedReader(_Pieces(pieces), _CHUNK))
