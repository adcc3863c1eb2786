"""An archive that an engine saves (`docker save`), read as a stream for the digests in it."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterable, Iterator
from typing import Any

from envlock.errors import EngineRefused
from envlock.image import digest_of
from envlock.layers.sandbox import stream_of
from envlock.resolve.manifests import LARGEST, platform_of, rows, table


def config_digest(pieces: Iterable[bytes], identity: str, platform: str) -> str:
    """The image digest of the saved image that a containerd store calls `identity`: from its manifest, through an index if need be."""
    documents: dict[str, dict[str, Any]] = {}
    try:
        for raw in _small_files(pieces):
            documents[digest_of(raw)] = table(_json(raw))
            found = _follow(documents, identity, platform)
            if found is not None:
                return found
    except tarfile.TarError as error:
        raise EngineRefused("the archive of an image that the engine saved cannot be read", where=identity, why=str(error)) from None
    raise EngineRefused("the saved image does not contain its own manifest", where=identity)


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _follow(documents: dict[str, dict[str, Any]], identity: str, platform: str) -> str | None:
    document = documents.get(identity)
    if document is None:
        return None
    if "config" in document:
        return str(table(document["config"]).get("digest"))
    for entry in map(table, rows(document.get("manifests"))):
        if platform_of(entry.get("platform")) in ("", platform) and (found := _follow(documents, str(entry.get("digest")), platform)):
            return found
    return None


def _small_files(pieces: Iterable[bytes]) -> Iterator[bytes]:
    with tarfile.open(fileobj=stream_of(pieces), mode="r|") as archive:
        for entry in archive:
            if entry.isfile() and entry.size <= LARGEST:
                stream = archive.extractfile(entry)
                if stream is not None:
                    yield stream.read()
