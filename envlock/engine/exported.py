"""An archive that an engine saves (`docker save`), read as a stream for the digests in it."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterable, Iterator
from typing import Any

from envlock.errors import EngineRefused
from envlock.image import digest_of
from envlock.layers.sandbox import stream_of

SMALL = 4 * 2**20  # bytes; no config or manifest is larger (the OCI distribution specification's limit)


def config_digest(pieces: Iterable[bytes], identity: str, platform: str) -> str:
    """The image digest of the saved image that a containerd store calls `identity`: from its manifest, through an index if need be."""
    documents: dict[str, dict[str, Any]] = {}
    for raw in _small_files(pieces):
        try:
            document = json.loads(raw)
        except ValueError:
            continue
        if isinstance(document, dict):
            documents[digest_of(raw)] = document
        found = _follow(documents, identity, platform)
        if found is not None:
            return found
    raise EngineRefused("the saved image does not contain its own manifest", where=identity)


def _follow(documents: dict[str, dict[str, Any]], identity: str, platform: str) -> str | None:
    document = documents.get(identity)
    if document is None:
        return None
    if "config" in document:
        return str(document["config"]["digest"])
    for entry in document.get("manifests", ()):
        said = entry.get("platform") or {}
        named = "/".join(filter(None, (said.get("os"), said.get("architecture"), said.get("variant"))))
        if named in ("", platform) and (found := _follow(documents, entry["digest"], platform)):
            return found
    return None


def _small_files(pieces: Iterable[bytes]) -> Iterator[bytes]:
    with tarfile.open(fileobj=stream_of(pieces), mode="r|") as archive:
        for entry in archive:
            if entry.isfile() and entry.size <= SMALL:
                stream = archive.extractfile(entry)
                if stream is not None:
                    yield stream.read()
