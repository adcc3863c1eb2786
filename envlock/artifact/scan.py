"""Scan: what an image's layers hold, read once while they pass by: the rootfs digest, and what each package says of its licence."""

from __future__ import annotations

import io
import posixpath
import queue
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import BinaryIO, cast

from packaging.utils import canonicalize_name

from envlock.artifact.licences import Licence, of_copyright, of_metadata
from envlock.layers.entry import Entry
from envlock.layers.tarfiles import read_tar
from envlock.layers.tree import Tree
from envlock.rootfs import Rootfs

_METADATA = re.compile(r"opt/venv/lib/python3\.\d+/site-packages/[^/]+\.dist-info/METADATA")
_COPYRIGHT = re.compile(r"usr/share/doc/([^/]+)/copyright")
_DOCUMENTATION = re.compile(r"usr/share/doc/([^/]+)")
_LARGEST_TEXT = 2**22
_QUEUED = 8  # chunks of 1 MiB between the writer and the scan


@dataclass(frozen=True, slots=True)
class Scan:
    """What was seen: the rootfs digest, and licences by Python distribution and by Debian package."""

    rootfs_digest: str
    python: Mapping[str, Licence]
    debian: Mapping[str, Licence]


@dataclass(slots=True)
class Scanner:
    """Takes an image's layers, lowest first."""

    _tree: Tree = field(default_factory=Tree)
    _python: dict[str, Licence] = field(default_factory=dict)
    _debian: dict[str, Licence] = field(default_factory=dict)
    _shared: dict[str, str] = field(default_factory=dict)

    def take(self, stream: BinaryIO, where: str) -> None:
        """Read one layer's tar to its end. Raises what `read_tar` raises."""
        self._tree = self._tree.with_entries(self._noted(read_tar(stream, where)), where)

    def scan(self) -> Scan:
        """What all layers together hold."""
        shared = {name: self._debian[of] for name, of in self._shared.items() if of in self._debian}
        return Scan(Rootfs(self._tree).digest, dict(sorted(self._python.items())), dict(sorted({**shared, **self._debian}.items())))

    def _noted(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        for entry in entries:
            yield self._note(entry)

    def _note(self, entry: Entry) -> Entry:
        if entry.kind == "symlink" and (found := _DOCUMENTATION.fullmatch(entry.path)):
            # packages of one source may share their documentation's folder
            self._shared[found[1]] = posixpath.basename(entry.target)
        if entry.kind == "symlink" and (found := _COPYRIGHT.fullmatch(entry.path)):
            self._shared[found[1]] = posixpath.basename(posixpath.dirname(entry.target))
        if entry.kind != "file" or entry.open is None or entry.size > _LARGEST_TEXT:
            return entry
        debian, python = _COPYRIGHT.fullmatch(entry.path), _METADATA.fullmatch(entry.path)
        if not debian and not python:
            return entry
        with entry.open() as stream:
            content = stream.read()
        text = content.decode("utf-8", "replace")
        if python:
            told = of_metadata(text)
            self._python[canonicalize_name(told.name)] = told.licence
        elif debian:
            self._debian[debian[1]] = of_copyright(text)
        return replace(entry, open=lambda: io.BytesIO(content))


class Passing:
    """A layer's bytes on their way to the scanner, which reads them in a thread of its own while the writer goes on.

    `write` takes them front to back; `close` waits for the scan, and raises what it raised.
    """

    def __init__(self, scanner: Scanner, where: str) -> None:
        self._pieces: queue.Queue[bytes] = queue.Queue(_QUEUED)
        self._fault: BaseException | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._run, args=(scanner, where), name="scan", daemon=True)
        self._thread.start()

    def write(self, piece: bytes) -> None:
        """Hand on the next bytes."""
        if piece:
            self._pieces.put(piece)

    def close(self) -> None:
        """End the layer."""
        self.abandon()
        if self._fault is not None:
            raise self._fault

    def abandon(self) -> None:
        """End it where the layer itself broke off: what the scan makes of that does not matter."""
        if not self._ended:
            self._ended = True
            self._pieces.put(b"")
            self._thread.join()

    def _run(self, scanner: Scanner, where: str) -> None:
        source = _Queued(self._pieces)
        try:
            scanner.take(cast(BinaryIO, source), where)
        except BaseException as error:
            self._fault = error
        while not source.ended:
            source.read(2**20)


class _Queued:
    """Reads what a queue gives; an empty piece ends it."""

    def __init__(self, pieces: queue.Queue[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")
        self.ended = False

    def read(self, size: int = -1) -> bytes:
        if not self._rest and not self.ended:
            piece = self._pieces.get()
            self.ended = not piece
            self._rest = memoryview(piece)
        taken = self._rest if size < 0 else self._rest[:size]
        self._rest = self._rest[len(taken) :]
        return bytes(taken)
