"""Image archives, of `docker save` or as an OCI layout, read into the store; nothing of them is ever unpacked to a path of theirs."""

from __future__ import annotations

import posixpath
import tarfile
from pathlib import Path
from typing import IO, Any

from envlock.errors import BaseUnfit, DamagedArchive, FileUnreadable
from envlock.image import OCI_CONFIG, OCI_LAYER, OCI_MANIFEST, digest_of
from envlock.progress import Advance
from envlock.resolve.manifests import LARGEST, Descriptor, Manifest, choose, diff_ids_of, is_index, read_json, read_manifest, rows, table
from envlock.spec import canonical_json
from envlock.store import CHUNK, Store


def unpack_archive(path: Path, name: str, platform: str, store: Store, advance: Advance) -> tuple[str | None, Manifest]:
    """Config and layers of the archive's one image into the store; the index digest, where it has one, and the manifest.

    `docker save` before Docker 25 writes no manifest: then it is the one that these layers, plain, have under our own rules.
    `advance` is told the bytes read. Raises `FileUnreadable`, `BaseUnfit`, `DamagedArchive`.
    """
    try:
        with tarfile.open(path, "r:*") as tar:
            archive = _Archive(tar, name, store, advance)
            if archive.has("index.json"):
                return archive.oci(platform)
            if archive.has("manifest.json"):
                return None, archive.docker()
    except OSError as error:
        raise FileUnreadable(f"cannot read {name}", where=name, why=error.strerror or str(error)) from None
    except (tarfile.TarError, EOFError) as error:
        raise DamagedArchive(f"{name} is damaged or no tar", where=name, why=str(error), hint="save the image again") from None
    why = "it has neither index.json nor manifest.json"
    raise BaseUnfit(f"{name} is no image archive", where=name, why=why, hint="write one with `docker save -o base.tar IMAGE`")


class _Archive:
    """The members of an archive by name; links among them are followed, never out of it."""

    def __init__(self, tar: tarfile.TarFile, name: str, store: Store, advance: Advance) -> None:
        self._tar = tar
        self._name = name
        self._store = store
        self._advance = advance
        self._members = {posixpath.normpath(member.name): member for member in tar}

    def has(self, member: str) -> bool:
        return member in self._members

    def oci(self, platform: str) -> tuple[str | None, Manifest]:
        """The image of an OCI layout, whose index.json may name the image, its platforms, or an index of these."""
        layout = read_json(self._text("index.json"), f"index.json of {self._name}")
        entries = [entry for entry in rows(layout.get("manifests")) if isinstance(entry, dict) and entry.get("digest")]
        if any(entry.get("platform") for entry in entries):
            digest, index_digest = choose(layout, platform, self._name), None
        else:
            names = [str(table(entry.get("annotations")).get("org.opencontainers.image.ref.name") or "") for entry in entries]
            digest, index_digest = self._one([str(entry["digest"]) for entry in entries], names), None
        raw = self._document(digest)
        if is_index(document := read_json(raw, f"a manifest of {self._name}")):
            index_digest, digest = digest, choose(document, platform, self._name)
            raw = self._document(digest)
        manifest = read_manifest(raw, digest, self._name)
        for blob in (manifest.config, *manifest.layers):
            self._keep(_blob(blob.digest), blob.digest)
        return index_digest, manifest

    def docker(self) -> Manifest:
        """The image of a `docker save` archive without an OCI layout."""
        listed = self._text("manifest.json")
        images = [table(image) for image in rows(read_json(b'{"images":' + listed + b"}", f"manifest.json of {self._name}")["images"])]
        tags = [str(tag) for image in images for tag in rows(image.get("RepoTags"))]
        config = self._text(self._one([str(image.get("Config")) for image in images], tags))
        diff_ids = diff_ids_of(read_json(config, f"the config of {self._name}"))
        names = [str(layer) for layer in rows(images[0].get("Layers"))]
        if len(names) != len(diff_ids):
            raise self._damaged("manifest.json", f"it names {len(names)} layers, the config {len(diff_ids)}")
        digests = [self._keep(layer) for layer in names]
        with self._store.incoming(digest_of(config).removeprefix("sha256:"), len(config), "a config") as blob:
            blob.write(config)
        layers = [Descriptor(digest, size, OCI_LAYER) for digest, size in digests]
        written = Descriptor(digest_of(config), len(config), OCI_CONFIG)
        return Manifest(digest_of(_manifest(written, layers)), written, tuple(layers))

    def _one(self, images: list[str], names: list[str]) -> str:
        """The one image that the archive may hold."""
        if len(set(images)) != 1:
            why = f"it holds {len(set(images))}: {', '.join(filter(None, names))}"
            hint = "save one image alone: `docker save -o base.tar NAME:TAG`"
            raise BaseUnfit(f"{self._name} must hold one image", where=self._name, why=why, hint=hint)
        return images[0]

    def _document(self, digest: str) -> bytes:
        raw = self._text(_blob(digest))
        if digest_of(raw) != digest:
            raise self._damaged(digest, "its content is not what its name says")
        return raw

    def _text(self, member: str) -> bytes:
        with self._open(member) as stream:
            raw = stream.read(LARGEST + 1)
        if len(raw) > LARGEST:
            raise self._damaged(member, f"it is larger than {LARGEST // 2**20} MiB")
        return raw

    def _keep(self, member: str, digest: str | None = None) -> tuple[str, int]:
        """Copy a blob into the store; its digest and size. `digest` is what it must be."""
        with self._open(member) as stream, self._store.incoming(what=member) as blob:
            while chunk := stream.read(CHUNK):
                blob.write(chunk)
                self._advance(len(chunk))
            found = f"sha256:{blob.sha256}"
            if digest is not None and found != digest:
                raise self._damaged(member, f"its sha256 is {found}")
        return found, blob.size

    def _open(self, member: str) -> IO[bytes]:
        name = posixpath.normpath(member)
        for _ in range(8):  # `docker save` links a layer that stands twice
            found = self._members.get(name)
            if found is None or not found.issym():
                break
            name = posixpath.normpath(posixpath.join(posixpath.dirname(name), found.linkname))
        stream = self._tar.extractfile(found) if found is not None and not found.issym() else None
        if stream is None:
            raise self._damaged(member, "it is missing")
        return stream

    def _damaged(self, member: str, why: str) -> DamagedArchive:
        return DamagedArchive(f"{self._name} is damaged", where=member, why=why, hint="save the image again")


def _blob(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/", 1)


def _manifest(config: Descriptor, layers: list[Descriptor]) -> bytes:
    def row(blob: Descriptor) -> dict[str, Any]:
        return {"digest": blob.digest, "mediaType": blob.media_type, "size": blob.size}

    return canonical_json(
        {"config": row(config), "layers": [row(layer) for layer in layers], "mediaType": OCI_MANIFEST, "schemaVersion": 2}
    )
