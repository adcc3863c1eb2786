"""Small images as registries and archives have them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from layer_helpers import file, written

from envlock.resolve.manifests import DOCKER_LIST, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST

OS_RELEASE = b'ID=ubuntu\nVERSION_ID="22.04"\nPRETTY_NAME="Ubuntu 22.04.5 LTS"\n'


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def tar_of(files: dict[str, bytes]) -> bytes:
    return written(*(file(path, content) for path, content in files.items()))


def layer_tars(cuda: str = "12.4.1") -> tuple[bytes, ...]:
    return tar_of({"usr/lib/os-release": OS_RELEASE, "etc/passwd": b"root"}), tar_of({"usr/local/cuda/version": cuda.encode()})


@dataclass(frozen=True)
class FakeImage:
    """An image with its documents and blobs by digest."""

    layers: tuple[bytes, ...] = field(default_factory=layer_tars)
    environment: tuple[str, ...] = ("PATH=/usr/bin", "CUDA_VERSION=12.4.1", "NVIDIA_REQUIRE_CUDA=cuda>=12.4")
    platform: str = "linux/amd64"
    docker: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> bytes:
        system, architecture, *variant = self.platform.split("/")
        document: dict[str, Any] = {
            "os": system,
            "architecture": architecture,
            "config": {"Env": list(self.environment), **self.settings},
            "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in self.layers]},
        }
        return json.dumps(document | ({"variant": variant[0]} if variant else {})).encode()

    @property
    def packed(self) -> tuple[bytes, ...]:
        return tuple(gzip.compress(layer, mtime=0) for layer in self.layers)

    @property
    def manifest(self) -> bytes:
        kind = "application/vnd.docker.image.rootfs.diff.tar.gzip" if self.docker else "application/vnd.oci.image.layer.v1.tar+gzip"
        layers = [{"mediaType": kind, "digest": digest(blob), "size": len(blob)} for blob in self.packed]
        config = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(self.config), "size": len(self.config)}
        # Spaces and order as no library of ours would write them: what counts are the bytes.
        return json.dumps({"schemaVersion": 2, "mediaType": self.manifest_type, "layers": layers, "config": config}, indent=3).encode()

    @property
    def manifest_type(self) -> str:
        return DOCKER_MANIFEST if self.docker else OCI_MANIFEST

    @property
    def blobs(self) -> dict[str, bytes]:
        return {digest(blob): blob for blob in (self.config, *self.packed)}


def index_of(*images: FakeImage, docker: bool = False) -> bytes:
    """An index of images, with an attestation before each, as BuildKit writes them."""
    entries: list[dict[str, Any]] = []
    for image in images:
        system, architecture, *variant = image.platform.split("/")
        entries.append(
            {
                "mediaType": OCI_MANIFEST,
                "digest": digest(b"an attestation"),
                "size": 14,
                "platform": {"os": "unknown", "architecture": "unknown"},
                "annotations": {"vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": digest(image.manifest)},
            }
        )
        platform = {"os": system, "architecture": architecture} | ({"variant": variant[0]} if variant else {})
        entries.append(
            {"mediaType": image.manifest_type, "digest": digest(image.manifest), "size": len(image.manifest), "platform": platform}
        )
    return json.dumps({"schemaVersion": 2, "mediaType": DOCKER_LIST if docker else OCI_INDEX, "manifests": entries}).encode()


def raw_tar(files: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        for name, to in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, to
            tar.addfile(entry)
    return target.getvalue()


def blob_path(name: str) -> str:
    return "blobs/" + name.replace(":", "/")
