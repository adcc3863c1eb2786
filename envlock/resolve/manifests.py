"""Manifests and configs of base images, OCI's and Docker's, read into the lock's terms. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from envlock.errors import BaseUnfit, DamagedArchive
from envlock.lock import LASTING, Blob, ImageBase

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
ACCEPTED = (OCI_INDEX, DOCKER_LIST, OCI_MANIFEST, DOCKER_MANIFEST)

# ENV of NVIDIA's images that says what they hold; a moved tag is told by these.
TELLING = ("CUDA_VERSION", "NV_CUDNN_VERSION", "NV_LIBNCCL_PACKAGE_VERSION", "NVIDIA_REQUIRE_CUDA", "PYTHON_VERSION", "PYTORCH_VERSION")
# Settings that every image inherits which a Dockerfile builds on another, and the instructions that make them: no instruction takes
# ONBUILD or VOLUME back, and a SHELL is in force from the first RUN on (Dockerfile reference; BuildKit's dockerfile2llb, dispatchFrom).
INHERITED = {"Healthcheck": "HEALTHCHECK", "OnBuild": "ONBUILD", "Shell": "SHELL", "StopSignal": "STOPSIGNAL", "Volumes": "VOLUME"}
MOST_BYTES = 2**63
_ELSEWHERE = "take the image from another source"
LARGEST = 4 * 2**20  # bytes of a manifest or config (OCI distribution specification 1.1, "Pushing Manifests")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What a manifest says of a blob."""

    digest: str
    size: int
    media_type: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """One platform's manifest: its config and its layers, lowest first."""

    digest: str
    config: Descriptor
    layers: tuple[Descriptor, ...]


def read_json(raw: bytes, what: str) -> dict[str, Any]:
    """A document that must be a JSON object. Raises `DamagedArchive`."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise DamagedArchive(f"{what} cannot be read", why="it is not a JSON object", hint=_ELSEWHERE)
    return document


def table(value: Any) -> dict[str, Any]:
    """The JSON object, or TOML table, that should stand here; empty where something else does."""
    return value if isinstance(value, dict) else {}


def rows(value: Any) -> list[Any]:
    """The JSON list that should stand here; empty where something else does."""
    return value if isinstance(value, list) else []


def is_index(document: Mapping[str, Any]) -> bool:
    """Whether a document lists manifests; told by its content, since a media type may be missing in it."""
    return isinstance(document.get("manifests"), list)


def choose(index: Mapping[str, Any], platform: str, name: str) -> str:
    """The digest of a platform's manifest in an index. Attestations are no images. Raises `BaseUnfit` where there is none."""
    images = [entry for entry in rows(index.get("manifests")) if isinstance(entry, dict) and not _is_attestation(entry)]
    for entry in images:
        if _fits(platform_of(entry.get("platform")), platform):
            return checked_digest(entry.get("digest"), f"the index of {name}")
    there = ", ".join(sorted({platform_of(entry.get("platform")) for entry in images})) or "none"
    hint = "choose another base, or `target.platform`"
    raise BaseUnfit(f"{name} is not there for {platform}", where="base", why=f"it is there for {there}", hint=hint)


def _is_attestation(entry: Mapping[str, Any]) -> bool:
    annotations = table(entry.get("annotations"))
    return "vnd.docker.reference.type" in annotations or platform_of(entry.get("platform")).startswith("unknown/")


def platform_of(said: Any) -> str:
    """`os/architecture[/variant]` as an index or a config says it; empty where it says nothing."""
    return "/".join(str(table(said)[key]) for key in ("os", "architecture", "variant") if table(said).get(key))


def _fits(there: str, platform: str) -> bool:
    """Whether an image for one platform serves another: the same, or one of its variants where none was asked for."""
    return there == platform or (platform.count("/") == 1 and there.startswith(f"{platform}/v8"))


def read_manifest(raw: bytes, digest: str, name: str) -> Manifest:
    """One platform's manifest. Raises `BaseUnfit` for what is not an image, `DamagedArchive` for what cannot be read."""
    document = read_json(raw, f"the manifest of {name}")
    if document.get("schemaVersion") != 2 or "layers" not in document:
        why = (
            "its manifest is of a form that Docker gave up in 2017"
            if document.get("schemaVersion") == 1
            else "its manifest lists no layers"
        )
        raise BaseUnfit(f"{name} is not an image that can be built on", where="base", why=why, hint="choose another base")
    what = f"the manifest of {name}"
    config, *layers = [_descriptor(table(row), what) for row in (document.get("config"), *rows(document["layers"]))]
    return Manifest(digest, config, tuple(layers))


def _descriptor(row: Mapping[str, Any], what: str) -> Descriptor:
    size = row.get("size")
    if not isinstance(size, int) or not 0 <= size < MOST_BYTES:
        raise DamagedArchive(f"{what} cannot be read", why=f"{str(size)[:60]} is no size", hint=_ELSEWHERE)
    return Descriptor(checked_digest(row.get("digest"), what), size, str(row.get("mediaType") or ""))


def checked_digest(value: Any, what: str) -> str:
    """A digest that a document names. Raises `DamagedArchive` where it is none."""
    if not isinstance(value, str) or not re.fullmatch(r"sha256:[0-9a-f]{64}", value):
        raise DamagedArchive(f"{what} cannot be read", why=f"{str(value)[:60]!r} is no digest", hint=_ELSEWHERE)
    return value


def image_base(
    config: bytes, manifest: Manifest, *, kind: str, reference: str, index_digest: str | None, platform: str, facts: Mapping[str, str]
) -> ImageBase:
    """The base as the lock has it. Raises `BaseUnfit` where the image is for another platform, `DamagedArchive` for a strange config."""
    document = read_json(config, f"the config of {reference}")
    there = platform_of(document)
    if not _fits(there, platform):
        hint = "choose another base, or `target.platform`"
        raise BaseUnfit(f"{reference} is not there for {platform}", where="base", why=f"it is for {there or 'nothing known'}", hint=hint)
    diff_ids = diff_ids_of(document)
    if len(diff_ids) != len(manifest.layers):
        why = f"its config names {len(diff_ids)} layers, its manifest {len(manifest.layers)}"
        raise DamagedArchive(f"{reference} contradicts itself", where=manifest.digest, why=why, hint=_ELSEWHERE)
    try:
        return ImageBase.model_validate(
            {
                "kind": kind,
                "reference": reference,
                "index_digest": index_digest,
                "manifest_digest": manifest.digest,
                "config_digest": manifest.config.digest,
                "config_size": manifest.config.size,
                "layers": tuple(
                    Blob(digest=row.digest, size=row.size, media_type=row.media_type, diff_id=diff_id)
                    for row, diff_id in zip(manifest.layers, diff_ids, strict=True)
                ),
                "environment": environment_of(document),
                "facts": {**facts, **(lasting_settings(document) if kind == "image" else {})},
            }
        )
    except ValidationError as error:
        why = error.errors(include_url=False)[0]["msg"]
        raise BaseUnfit(f"{reference} says what no lock can hold", where="base", why=why, hint="choose another base") from None


def diff_ids_of(config: Mapping[str, Any]) -> list[str]:
    """The diffIDs of a config's layers."""
    return [checked_digest(diff_id, "the config of the base") for diff_id in rows(table(config.get("rootfs")).get("diff_ids"))]


def environment_of(config: Mapping[str, Any]) -> dict[str, str]:
    """The ENV of a config."""
    lines = rows(table(config.get("config")).get("Env"))
    return dict(sorted(line.partition("=")[::2] for line in lines if isinstance(line, str)))


def lasting_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """The fact that names the instructions whose settings would go from the base into what is built on it; empty where there are none."""
    settings = table(config.get("config"))
    instructions = [instruction for name, instruction in INHERITED.items() if settings.get(name)]
    return {LASTING: ", ".join(instructions)} if instructions else {}


def os_release_facts(text: str) -> dict[str, str]:
    """The fields of os-release(5) that tell a distribution and its release."""
    lines = (line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#"))
    fields = {key.strip(): printable(value.strip().strip("\"'")) for key, _, value in lines}
    return {key: fields[key] for key in ("ID", "PRETTY_NAME", "VERSION_CODENAME", "VERSION_ID") if fields.get(key)}


def printable(text: str) -> str:
    """The text without control characters."""
    return "".join(letter for letter in text if letter.isprintable())


def what_changed(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """The telling variables whose values differ, as `CUDA_VERSION 12.4.0 → 12.4.1`."""
    pairs = [(name, before.get(name, "none"), now.get(name, "none")) for name in TELLING]
    return tuple(f"{name} {old} → {new}" for name, old, new in pairs if old != new)
