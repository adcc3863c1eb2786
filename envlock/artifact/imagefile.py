"""The image of an artifact as one archive: written once in a stream, read again in a stream, looked into while it passes."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from zstandard import ZstdError

from envlock.artifact.scan import Passing, Scan, Scanner
from envlock.artifact.targets import Part, Target
from envlock.errors import BuildFailed, DamagedArchive
from envlock.image import Image, OpenLayer, archive
from envlock.layers import Layer
from envlock.progress import Advance
from envlock.resolve.manifests import LARGEST
from envlock.store import CHUNK

BLOBS = "blobs/sha256/"


@dataclass(frozen=True, slots=True)
class Written:
    """An archive that was written, and what its layers hold."""

    parts: tuple[Part, ...]
    scan: Scan


def archive_size(image: Image, tag: str) -> int:
    """Bytes of the plain archive."""
    layers = {layer.diff_id: layer.size for layer in image.layers}
    framed = sum(tarfile.BLOCKSIZE + size + -size % tarfile.BLOCKSIZE for size in layers.values())
    return sum(len(piece) for piece in archive(image, [tag], _no_layer, frozenset(layers))) + framed


def write_image(image: Image, tag: str, open_layer: OpenLayer, target: Target, copies: Mapping[str, Path], advance: Advance) -> Written:
    """Write the archive; each layer is held against its diffID as it passes.

    `copies` maps diffIDs to files that get a copy of the layer's tar. Raises `BuildFailed` where a layer is not the one that the image
    names, and what `open_layer` raises.
    """
    scanner = Scanner()

    def watched(layer: Layer) -> BinaryIO:
        source = target.kept(layer) or open_layer(layer)
        return cast(BinaryIO, _Watched(source, layer, scanner, copies.get(layer.diff_id)))

    try:
        for piece in archive(image, [tag], watched):
            target.write(piece)
            advance(len(piece))
    except BaseException:
        target.abandon()
        raise
    return Written(target.finish(), scanner.scan())


class _Watched:
    """A layer's tar that is hashed, scanned and, where wanted, copied while the archive reads it."""

    def __init__(self, source: BinaryIO, layer: Layer, scanner: Scanner, copy: Path | None) -> None:
        self._open = ExitStack()
        self._source = self._open.enter_context(source)
        self._layer = layer
        self._hash = hashlib.sha256()
        self._ended = False
        self._copy: BinaryIO | None = None
        if copy is not None:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.unlink(missing_ok=True)
            self._copy = self._open.enter_context(copy.open("wb"))
        self._passing = Passing(scanner, layer.holds)

    def read(self, size: int) -> bytes:
        data = self._source.read(size)
        self._hash.update(data)
        if self._copy is not None:
            self._copy.write(data)
        self._passing.write(data)
        if not data and not self._ended:
            self._ended = True
            found = f"sha256:{self._hash.hexdigest()}"
            if found != self._layer.diff_id:
                why = f"its sha256 is {found}, the image names {self._layer.diff_id}"
                hint = "build the image again from its lock; where that gives another digest, `envlock diff` shows what differs"
                raise BuildFailed(f"the layer with {self._layer.holds} is not the image's", where=self._layer.holds, why=why, hint=hint)
            self._passing.close()
        return data

    def __enter__(self) -> _Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self._passing.abandon()
        self._open.close()


@dataclass(slots=True)
class Content:
    """What an archive turned out to hold: small files by name, the bytes of each blob by digest, and faults in words."""

    texts: dict[str, bytes] = field(default_factory=dict)
    blobs: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    scan: Scan | None = None


def read_image(stream: BinaryIO, name: str, layers: Mapping[str, str], advance: Advance) -> Content:
    """Read an archive to its end: each blob held against its name, layers looked into in their order.

    `layers` maps diffIDs, lowest first, to what they hold. Never raises for what is wrong with the archive: it says so in `faults`.
    """
    content, scanner = Content(), Scanner()
    seen: list[str] = []
    try:
        with tarfile.open(fileobj=cast(BinaryIO, _Counted(stream, advance)), mode="r|", bufsize=CHUNK) as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # else it keeps every header
                if not member.isreg():
                    continue
                data = cast(BinaryIO, tar.extractfile(member))
                if member.name.startswith(BLOBS):
                    digest = "sha256:" + member.name.removeprefix(BLOBS)
                    seen.append(digest)
                    _read_blob(data, digest, member.size, content, scanner if digest in layers else None)
                elif member.size <= LARGEST:
                    content.texts[member.name] = data.read()
    except (tarfile.TarError, EOFError, OSError, ValueError, ZstdError, DamagedArchive) as error:
        content.faults.append(f"{name} cannot be read to its end: {error}")
    if [digest for digest in seen if digest in layers] == list(dict.fromkeys(layers)) and not content.faults:
        content.scan = scanner.scan()
    return content


def _read_blob(data: BinaryIO, digest: str, size: int, content: Content, scanner: Scanner | None) -> None:
    hasher, kept = hashlib.sha256(), b""
    passing = Passing(scanner, digest) if scanner is not None else None
    try:
        while chunk := data.read(CHUNK):
            hasher.update(chunk)
            if size <= LARGEST:
                kept += chunk
            if passing is not None:
                passing.write(chunk)
    finally:
        if passing is not None:
            passing.abandon()
    found = f"sha256:{hasher.hexdigest()}"
    content.blobs[digest] = size
    if found != digest:
        content.faults.append(f"the blob {digest} has the sha256 {found.removeprefix('sha256:')}")
    elif passing is not None:
        passing.close()
    if size <= LARGEST:
        content.texts[f"{BLOBS}{digest.removeprefix('sha256:')}"] = kept


def blobs_in(stream: BinaryIO) -> Iterator[tuple[str, int, BinaryIO]]:
    """Digest, size in bytes and content of each blob of an archive, in its order; a content can be read until the next is asked for."""
    with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK) as tar:
        for member in tar:
            tar.members = []  # type: ignore[attr-defined]
            if member.isreg() and member.name.startswith(BLOBS):
                yield "sha256:" + member.name.removeprefix(BLOBS), member.size, cast(BinaryIO, tar.extractfile(member))


class _Counted:
    """A stream that tells how much of it was read."""

    def __init__(self, stream: BinaryIO, advance: Callable[[int], None]) -> None:
        self._stream = stream
        self._advance = advance

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._advance(len(data))
        return data


def _no_layer(layer: Layer) -> BinaryIO:
    raise AssertionError(f"{layer} is left out")
