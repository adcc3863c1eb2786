"""Layers of a base image: blobs as the registry or archive has them, read as the plain tars that they hold."""

from __future__ import annotations

import hashlib
import importlib
import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from isal import igzip
from isal.igzip_lib import IsalError

from envlock.errors import DamagedArchive, ToolMissing
from envlock.layers import Layer
from envlock.layers.tarfiles import read_tar
from envlock.lock import Blob
from envlock.progress import Advance, Progress
from envlock.store import CHUNK, Store

OS_RELEASE = ("usr/lib/os-release", "etc/os-release")
_FACT = "base-layer"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_MOST_TEXT = 2**20


def open_blob(blob: Blob, store: Store) -> BinaryIO:
    """The plain tar of a layer that lies in the store; how it is packed is told by its first bytes."""
    raw = store.path(blob.digest.removeprefix("sha256:")).open("rb")
    magic = raw.read(4)
    raw.seek(0)
    if magic.startswith(_GZIP):
        return cast(BinaryIO, _Unpacked(cast(BinaryIO, igzip.GzipFile(fileobj=raw)), raw))  # type: ignore[no-untyped-call]
    if magic == _ZSTD:
        return cast(BinaryIO, _Unpacked(_zstd(raw), raw))
    return raw


def plain_layers(blobs: Iterable[Blob], holds: str, store: Store, progress: Progress) -> tuple[Layer, ...]:
    """The layers of a base, whose blobs lie in the store; the first time each is unpacked once and held against its diffID.

    Raises `DamagedArchive` where one is not what the config of the image says.
    """
    rows = list(blobs)
    return tuple(
        Layer(blob.diff_id, _facts(blob, store, progress)["size"], f"{holds}, layer {number} of {len(rows)}")
        for number, blob in enumerate(rows, 1)
    )


def os_release_of(blobs: Iterable[Blob], store: Store, progress: Progress) -> str:
    """The text of os-release in the uppermost layer that has one; empty where none has."""
    found = ""
    for blob in blobs:
        found = _facts(blob, store, progress)["os_release"] or found
    return found


def _facts(blob: Blob, store: Store, progress: Progress) -> dict[str, Any]:
    """Size of a layer's plain tar and its os-release, kept once its diffID was seen to be right."""
    key = "-".join(digest.removeprefix("sha256:") for digest in (blob.digest, blob.diff_id))
    known = store.recall(_FACT, key)
    if known is not None:
        return known
    with open_blob(blob, store) as plain, progress.track("check a layer of the base", None) as advance, _unpacking(blob):
        hashing = _Hashing(plain, advance)
        text = _os_release(cast(BinaryIO, hashing), blob.digest)
        while hashing.read(CHUNK):
            pass
    if hashing.digest != blob.diff_id:
        why = f"unpacked, it has the sha256 {hashing.digest}, not {blob.diff_id}"
        raise DamagedArchive("a layer of the base is not what its image says", where=blob.digest, why=why, hint="take another base")
    facts: dict[str, Any] = {"size": hashing.size, "os_release": text}
    store.remember(_FACT, key, facts)
    return facts


def _os_release(stream: BinaryIO, where: str) -> str:
    texts: dict[str, str] = {}
    for entry in read_tar(stream, where):
        if entry.path in OS_RELEASE and entry.kind == "file" and entry.open is not None:
            with entry.open() as content:
                texts[entry.path] = content.read(_MOST_TEXT).decode("utf-8", "replace")
    return next((texts[path] for path in OS_RELEASE if path in texts), "")


@contextmanager
def _unpacking(blob: Blob) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, IsalError) as error:  # type: ignore[misc]  # as in `wheelfile`
        hint = "see `envlock store --verify`, and fetch the base again"
        raise DamagedArchive("a layer of the base cannot be unpacked", where=blob.digest, why=str(error), hint=hint) from None


def _zstd(raw: BinaryIO) -> BinaryIO:
    """Python has zstd of its own from 3.14 on."""
    try:
        return cast(BinaryIO, importlib.import_module("compression.zstd").ZstdFile(raw))
    except ImportError:
        pass
    try:
        return cast(BinaryIO, importlib.import_module("zstandard").ZstdDecompressor().stream_reader(raw, read_across_frames=True))
    except ImportError:
        hint = "install it with `pip install zstandard`, or run envlock with Python 3.14 or newer"
        raise ToolMissing("a layer of the base is packed with zstd, which this Python cannot unpack", hint=hint) from None


class _Unpacked(io.RawIOBase):
    """An unpacking stream that closes the file below it, too."""

    def __init__(self, plain: BinaryIO, raw: BinaryIO) -> None:
        self._plain = plain
        self._raw = raw

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._plain.read(size)

    def close(self) -> None:
        self._plain.close()
        self._raw.close()
        super().close()


class _Hashing:
    """A stream whose digest and size are known once it has been read to its end."""

    def __init__(self, stream: BinaryIO, advance: Advance) -> None:
        self._stream = stream
        self._advance = advance
        self._hash = hashlib.sha256()
        self.size = 0

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._hash.update(data)
        self._advance(len(data))
        self.size += len(data)
        return data
