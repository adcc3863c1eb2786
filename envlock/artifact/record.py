"""IMAGE.json: every digest of the image, which tool shows which, and the files that hold it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import envlock
from envlock.artifact import targets
from envlock.artifact.layout import Compression, Vendor, image_tag
from envlock.artifact.targets import Part
from envlock.errors import UsageError
from envlock.image import Image
from envlock.lock import Digest, Lock, Sha256
from envlock.texts import InProject

RECORD_VERSION: Final = 1

SHOWN_BY = {
    "docker, graph driver (`docker images --no-trunc`)": "image_digest",
    "docker, containerd image store (`docker images --no-trunc`)": "manifest_digest",
    "podman (`podman images --no-trunc`)": "image_digest",
    "podman (`podman images --digests`)": "manifest_digest",
    "skopeo (`skopeo inspect oci-archive:FILE`, Digest)": "manifest_digest",
    "a registry (NAME@sha256:…)": "manifest_digest",
    "envlock (`envlock images`)": "image_digest",
}
"""Which digest each tool calls the image by. Seen with Docker 20.10 and 26.1, podman 4.3, skopeo 1.9 and docker-registry 2.8."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class File(_Part):
    """One file of the archive."""

    name: InProject = Field(description="path in the artifact")
    size: int
    sha256: Sha256


class Archive(_Part):
    """How the image is stored: the files put together, and unpacked where they are compressed, are one tar."""

    form: Literal["oci-archive and docker-archive"] = "oci-archive and docker-archive"
    compression: Compression
    compressor: dict[str, str | int] = {}
    split: int | None = Field(default=None, description="most bytes of one file")
    size: int = Field(description="bytes of the plain tar")
    files: tuple[File, ...]


class LayerRow(_Part):
    """One layer, lowest first."""

    diff_id: Digest
    size: int
    holds: str


class Record(_Part):
    """The image of an artifact."""

    version: Literal[1] = RECORD_VERSION
    envlock: str = Field(description="the release that wrote the artifact")
    tag: str = Field(description="the name under which it is loaded")
    platform: str
    lock_digest: Digest
    image_digest: Digest = Field(description="sha256 of the config")
    manifest_digest: Digest
    rootfs_digest: Digest = Field(description="over the merged file tree, rules 1")
    layers: tuple[LayerRow, ...] = Field(min_length=1)
    shown_by: dict[str, str] = Field(description="which of the digests a tool shows")
    archive: Archive
    vendor: Vendor = Field(description="what of the inputs lies in the artifact")

    @property
    def to_json(self) -> bytes:
        """The file's bytes."""
        return (self.model_dump_json(indent=2, exclude_none=True) + "\n").encode()


def make_record(
    lock: Lock,
    image: Image,
    rootfs_digest: str,
    parts: Sequence[Part],
    size: int,
    folder: str,
    choices: tuple[Compression, int | None, Vendor],
) -> Record:
    """The record of an image that was written to `parts` in `folder`; `size` is that of the plain archive."""
    compression, split, vendor = choices
    digests = {"image_digest": image.digest, "manifest_digest": image.manifest_digest}
    return Record(
        envlock=envlock.__version__,
        tag=image_tag(lock),
        platform=lock.stack.platform,
        lock_digest=lock.digest,
        image_digest=image.digest,
        manifest_digest=image.manifest_digest,
        rootfs_digest=rootfs_digest,
        layers=tuple(LayerRow(diff_id=layer.diff_id, size=layer.size, holds=layer.holds) for layer in image.layers),
        shown_by={tool: digests[which] for tool, which in SHOWN_BY.items()},
        archive=Archive(
            compression=compression,
            compressor=targets.compressor_versions() if compression == "zstd" else {},
            split=split,
            size=size,
            files=tuple(File(name=f"{folder}/{part.name}", size=part.size, sha256=part.sha256) for part in parts),
        ),
        vendor=vendor,
    )


def read_record(raw: bytes, name: str) -> Record:
    """Read IMAGE.json. Raises `UsageError` where it is none."""
    try:
        return Record.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{name} is not the record of an image", where=where, why=first["msg"], hint="pin the image again") from None
