"""An image: layers and settings as config, manifest and archive, byte for byte the same wherever they are made.

Forms: the OCI image specification 1.1 (config, manifest, layout) and the `docker save` format of moby's `image/spec` (manifest.json).
Layers are uncompressed, so that no compressor's version is part of any digest; the image digest is the sha256 of the config.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, BinaryIO

from envlock.errors import BuildFailed
from envlock.layers import Layer
from envlock.spec import canonical_json

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
MAX_LAYERS = 125  # measured: Docker 20.10 and 26.1 with overlay2 load no more (moby layer/layer_store.go, maxLayerDepth)
CHUNK = 2**20
LAYERS_LABEL = "dev.envlock.layers"

OpenLayer = Callable[[Layer], BinaryIO]
Finish = Callable[[tuple[Layer, ...]], "Image"]


@dataclass(frozen=True, slots=True)
class Image:
    """Config and manifest as the exact bytes that are hashed, and the layers that they name, lowest first."""

    layers: tuple[Layer, ...]
    config: bytes
    manifest: bytes

    @property
    def digest(self) -> str:
        """The image digest: `sha256:…` of the config, the same on every engine and registry."""
        return digest_of(self.config)

    @property
    def manifest_digest(self) -> str:
        """`sha256:…` of the manifest: what a containerd image store shows as the image's id."""
        return digest_of(self.manifest)

    @property
    def size(self) -> int:
        """Bytes of all layer tars together."""
        return sum(layer.size for layer in self.layers)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a container of the image starts with; `platform` is `os/architecture[/variant]`, `created` seconds since 1970 UTC."""

    platform: str
    created: int
    environment: Mapping[str, str]
    labels: Mapping[str, str]
    user: str = ""
    workdir: str = ""
    command: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()


def digest_of(data: bytes) -> str:
    """`sha256:…` of some bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def make_image(layers: Sequence[Layer], settings: Settings) -> Image:
    """The image with these layers, lowest first.

    Each layer is one line of the history. The label `dev.envlock.layers` says what each holds and how large its tar is, so that
    layers, config and manifest can be made again from what any engine says about the image (`remade`). Raises `BuildFailed` where an
    engine could not hold that many layers.
    """
    if len(layers) > MAX_LAYERS:
        hint = "ask for fewer packages that weigh much (each has a layer of its own), or use a base with fewer layers"
        raise BuildFailed(f"the image would have {len(layers)} layers", why=f"an engine allows {MAX_LAYERS}", hint=hint)
    config = _config(layers, settings)
    return Image(tuple(layers), config, _manifest(config, layers))


def remade(diff_ids: Sequence[str], settings: Settings) -> Image | None:
    """The image that envlock would have made with these layers and settings, labels as an engine tells them.

    None where the labels do not speak of the layers. A caller compares its digests with those by which the engine holds the image:
    that they agree is proof, not a guess.
    """
    try:
        rows = json.loads(settings.labels.get(LAYERS_LABEL, ""))
        layers = [Layer(diff_id, int(row["size"]), str(row["holds"])) for diff_id, row in zip(diff_ids, rows, strict=True)]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return make_image(layers, settings)


def _config(layers: Sequence[Layer], settings: Settings) -> bytes:
    created = datetime.fromtimestamp(settings.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    system, architecture, *variant = settings.platform.split("/")
    rows = canonical_json([{"holds": layer.holds, "size": layer.size} for layer in layers]).decode()
    run = {
        "Cmd": list(settings.command),
        "Entrypoint": list(settings.entrypoint),
        "Env": [f"{name}={value}" for name, value in sorted(settings.environment.items())],
        "Labels": {**settings.labels, LAYERS_LABEL: rows},
        "User": settings.user,
        "WorkingDir": settings.workdir,
    }
    config: dict[str, Any] = {
        "architecture": architecture,
        "config": {key: value for key, value in run.items() if value},
        "created": created,
        "history": [{"created": created, "created_by": layer.holds} for layer in layers],
        "os": system,
        "rootfs": {"diff_ids": [layer.diff_id for layer in layers], "type": "layers"},
    }
    if variant:
        config["variant"] = variant[0]
    return canonical_json(config)


def _manifest(config: bytes, layers: Sequence[Layer]) -> bytes:
    return canonical_json(
        {
            "config": {"digest": digest_of(config), "mediaType": OCI_CONFIG, "size": len(config)},
            "layers": [{"digest": layer.diff_id, "mediaType": OCI_LAYER, "size": layer.size} for layer in layers],
            "mediaType": OCI_MANIFEST,
            "schemaVersion": 2,
        }
    )


def archive(image: Image, tags: Sequence[str], open_layer: OpenLayer, leave_out: frozenset[str] = frozenset()) -> Iterator[bytes]:
    """The image as one tar that is both an OCI layout and what `docker load` takes.

    A function of its arguments alone; streamed, with one chunk of a layer in memory. Layers whose diffID is in `leave_out` are named
    but absent: for an engine that holds them.
    """
    return growing_archive(image.layers, lambda _: image, tags, open_layer, leave_out)


def growing_archive(
    layers: Iterable[Layer], finish: Finish, tags: Sequence[str], open_layer: OpenLayer, leave_out: frozenset[str] = frozenset()
) -> Iterator[bytes]:
    """The same archive while its layers are still being made: each is sent as soon as `layers` yields it.

    `finish` makes the image of all layers once the last has been sent; an archive without its end is loaded by no engine.
    """
    yield from _folder("blobs")
    yield from _folder("blobs/sha256")
    yield from _file("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
    sent: set[str] = set(leave_out)
    used: list[Layer] = []
    for layer in layers:
        used.append(layer)
        if layer.diff_id not in sent:
            sent.add(layer.diff_id)
            yield from _layer(layer, open_layer)
    image = finish(tuple(used))
    yield from _file(_blob(image.digest), image.config)
    yield from _file(_blob(image.manifest_digest), image.manifest)
    yield from _file("index.json", _index(image, tags))
    yield from _file("manifest.json", _docker_manifest(image, tags))
    yield b"\0" * (2 * tarfile.BLOCKSIZE)


def _index(image: Image, tags: Sequence[str]) -> bytes:
    entry = {"digest": image.manifest_digest, "mediaType": OCI_MANIFEST, "size": len(image.manifest)}
    named = [{**entry, "annotations": _annotations(tag)} for tag in tags] or [entry]
    return canonical_json({"manifests": named, "mediaType": OCI_INDEX, "schemaVersion": 2})


def _annotations(tag: str) -> dict[str, str]:
    """The name in the two forms that are read: containerd's importer takes the full one, other tools the tag."""
    return {"io.containerd.image.name": full_name(tag), "org.opencontainers.image.ref.name": tag.rpartition(":")[2]}


def full_name(tag: str) -> str:
    """A tag with the registry and the folder that Docker leaves unsaid: `name:tag` is `docker.io/library/name:tag`."""
    first, slash, _ = tag.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return tag
    return f"docker.io/{tag}" if slash else f"docker.io/library/{tag}"


def _docker_manifest(image: Image, tags: Sequence[str]) -> bytes:
    return canonical_json(
        [{"Config": _blob(image.digest), "Layers": [_blob(layer.diff_id) for layer in image.layers], "RepoTags": list(tags)}]
    )


def _blob(digest: str) -> str:
    return "blobs/sha256/" + digest.removeprefix("sha256:")


def _layer(layer: Layer, open_layer: OpenLayer) -> Iterator[bytes]:
    yield _header(_blob(layer.diff_id), layer.size, tarfile.REGTYPE, 0o644)
    done = 0
    with open_layer(layer) as stream:
        while chunk := stream.read(CHUNK):
            done += len(chunk)
            if done > layer.size:
                break
            yield chunk
    if done != layer.size:
        what = f"the layer with {layer.holds} has another size than when it was made"
        raise BuildFailed(what, where=layer.diff_id, hint="something else writes into the store; run the build again")
    yield _padding(layer.size)


def _file(name: str, data: bytes) -> Iterator[bytes]:
    yield _header(name, len(data), tarfile.REGTYPE, 0o644) + data + _padding(len(data))


def _folder(name: str) -> Iterator[bytes]:
    yield _header(name + "/", 0, tarfile.DIRTYPE, 0o755)


def _header(name: str, size: int, kind: bytes, mode: int) -> bytes:
    """A tar header without owner and time; GNU form, which alone says sizes of 8 GiB and more without a second header."""
    info = tarfile.TarInfo(name)
    info.size, info.type, info.mode = size, kind, mode
    return info.tobuf(tarfile.GNU_FORMAT)


def _padding(size: int) -> bytes:
    return b"\0" * (-size % tarfile.BLOCKSIZE)
