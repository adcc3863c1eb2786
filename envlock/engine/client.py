"""The engine: images in and out, containers, what kind of engine it is. No type of the SDK shows outside this package."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

from docker import APIClient
from docker.errors import NotFound

from envlock.engine import buildkit, exported, loading, wire
from envlock.engine.buildcontext import BuildContext
from envlock.engine.containers import Bind, Container, Gpus, make_container, remove_container
from envlock.engine.endpoint import Endpoint, find_endpoint
from envlock.engine.faults import Body, of_answer, told
from envlock.engine.images import EngineImage, read_image
from envlock.engine.owner import LABEL, is_forgotten
from envlock.errors import EngineRefused
from envlock.image import Finish, Image, OpenLayer
from envlock.progress import Progress
from envlock.urls import split_url

FIRST_ANSWER = 10  # seconds for an engine to take a connection
ANSWER = 300  # seconds for a short request, on a host that is busy with a build

# A containerd store fails to list its images while another client removes one (26.1: "content digest … not found").
_SETTLING = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0, None)

Store = Literal["graph", "containerd"]


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine says about itself. `driver` is its storage driver or snapshotter, `memory` in bytes, `runtimes` of containers."""

    version: str
    api_version: str
    driver: str
    store: Store
    platform: str
    runtimes: tuple[str, ...]
    cdi_folders: tuple[str, ...]
    data_folder: str
    cpus: int
    memory: int
    rootless: bool


def connect(host: str | None = None, environ: Mapping[str, str] = os.environ) -> Engine:
    """The engine that answers at `host`, or where DOCKER_HOST, the Docker context or the usual sockets point, in this order.

    Raises `NoEngine` (with a hint for a missing socket, a refused connection and missing rights each), `EngineApi`, `SdkTooOld`.
    """
    endpoint = find_endpoint(host, environ)
    with told(endpoint, "asking for its version"):
        _knock(endpoint)
        tls: Any = endpoint.tls or False
        api = APIClient(base_url=endpoint.url, version="auto", timeout=ANSWER, tls=tls, use_ssh_client=True)
        info = api.info()
        version = api.version()
    return Engine(api, endpoint, _read_info(info, version))


def _knock(endpoint: Endpoint) -> None:
    """See that somebody listens: soon, where a busy engine's first answer may take long. (Of a socket that cannot be connected to, the
    SDK also leaves its own end open.)"""
    address = split_url(endpoint.url)
    if endpoint.socket is not None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(FIRST_ANSWER)
            probe.connect(str(endpoint.socket))
    elif address.scheme in ("tcp", "http", "https") and address.hostname:
        socket.create_connection((address.hostname, address.port or 2375), FIRST_ANSWER).close()


def _read_info(info: Mapping[str, Any], version: Mapping[str, Any]) -> EngineInfo:
    status = {row[0]: row[1] for row in info.get("DriverStatus") or () if len(row) == 2}
    containerd = status.get("driver-type", "").startswith("io.containerd.snapshotter")
    return EngineInfo(
        version=version["Version"],
        api_version=version["ApiVersion"],
        driver=info.get("Driver") or "",
        store="containerd" if containerd else "graph",
        platform=f"{version['Os']}/{version['Arch']}",
        runtimes=tuple(sorted(info.get("Runtimes") or ())),
        cdi_folders=tuple(info.get("CDISpecDirs") or ()),
        data_folder=info.get("DockerRootDir") or "",
        cpus=int(info.get("NCPU") or 0),
        memory=int(info.get("MemTotal") or 0),
        rootless=any("rootless" in option for option in info.get("SecurityOptions") or ()),
    )


class Engine:
    """A Docker engine that answers. Made by `connect`; every method raises errors of ours, with the engine's own words as why."""

    def __init__(self, api: APIClient, endpoint: Endpoint, info: EngineInfo) -> None:
        self.endpoint = endpoint
        self.info = info
        self._api: Any = api
        self._swept = False

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._api.close()

    @property
    def store(self) -> Store:
        """What kind of image store it has; a graph driver names images by their config, a containerd store by their manifest."""
        return self.info.store

    @property
    def platform(self) -> str:
        """`os/architecture` of the engine's host."""
        return self.info.platform

    # images

    def image(self, reference: str) -> EngineImage | None:
        """The image of a name, id or digest; None where the engine has none."""
        with told(self.endpoint, f"looking for {reference}"):
            try:
                found = self._api.inspect_image(reference)
            except NotFound:
                return None
        return read_image(found, named_by_config=self.store == "graph")

    def images(self) -> list[EngineImage]:
        """All images. One that another process removes meanwhile is left out."""
        found = [self.image(identity) for identity in sorted(self.image_ids())]
        return [image for image in found if image is not None]

    def image_ids(self) -> set[str]:
        """The ids of all images."""
        return {row["Id"] for row in self._listed()}

    def _listed(self, repository: str | None = None) -> list[dict[str, Any]]:
        for pause in _SETTLING:
            try:
                with told(self.endpoint, "listing its images"):
                    return list(self._api.images(repository))
            except EngineRefused:
                if pause is None:
                    raise
                time.sleep(pause)
        raise AssertionError("the last pause is None")

    def digest_of(self, image: EngineImage) -> str:
        """The image digest, on any store. Where a containerd store holds an image that is not ours it is read out of a saved archive,
        which takes about as long as reading the image once."""
        if image.digest is not None:
            return image.digest
        with told(self.endpoint, "reading an image"):
            return exported.config_digest(self._api.get_image(image.id), image.id, image.platform)

    def tag(self, reference: str, tag: str) -> None:
        """Give an image a name; a name that another image has moves. Raises `ImageMissing`."""
        repository, _, name = tag.rpartition(":")
        with told(self.endpoint, f"tagging {tag}"):
            self._api.tag(reference, repository, name)

    def untag(self, tag: str) -> None:
        """Take a name away; the image goes with its last one. A name that nothing has is fine."""
        with told(self.endpoint, f"removing {tag}"), suppress(NotFound):
            self._api.remove_image(tag)

    def remove(self, reference: str) -> None:
        """Remove an image with all its names; one that is gone is fine. Raises `EngineRefused` where a container needs it."""
        with told(self.endpoint, f"removing {reference}"), suppress(NotFound):
            self._api.remove_image(reference, force=True)

    def load(self, image: Image, tags: Sequence[str], open_layer: OpenLayer, progress: Progress) -> loading.Loaded:
        """Load and tag an image; see `load_growing`."""
        return self.load_growing(image.layers, lambda _: image, tags, open_layer, progress)

    def load_growing(
        self, layers: Iterable[Any], finish: Finish, tags: Sequence[str], open_layer: OpenLayer, progress: Progress
    ) -> loading.Loaded:
        """Load and tag the image that `finish` makes of the layers, each sent when the iterator yields it, unless the engine has it.

        `open_layer` must be able to open any of the layers until the end, those that `held` names too: where the engine turns out to
        lack one, all are sent. After a failure tags and images are as they were. Raises `BuildFailed`, `DiskFull`, `NoEngine`.
        """
        self._sweep()
        loaded = loading.load(self, layers, finish, tags, open_layer, progress)
        self._sweep_images()
        return loaded

    def held(self, diff_ids: Sequence[str]) -> frozenset[str]:
        """Which layers of an image, given in its order from the lowest, need not be sent as things stand."""
        return loading.held_layers(self.store, self.images(), diff_ids)

    def load_archive(self, pieces: Iterable[bytes]) -> None:
        """Send an archive as it is (`docker load`)."""
        body = Body(pieces)
        with told(self.endpoint, "loading an image", body):
            for message in wire.messages(self._api, wire.post(self._api, "/images/load", body=body, params={"quiet": 1})):
                if "error" in message:
                    raise of_answer(str(message["error"]), self.endpoint, "loading an image")

    def build(
        self,
        context: BuildContext,
        tag: str,
        progress: Progress,
        log: BinaryIO,
        arguments: Mapping[str, str] | None = None,
        *,
        from_cache: bool = True,
    ) -> buildkit.ImageBuilt:
        """Build a Dockerfile with BuildKit, RUN steps without network, and tag the image.

        Every step is said when it ends, all output goes to `log`. Without `from_cache` every step runs again.
        Raises `BuildFailed` with the end of the log, `EngineRefused`.
        """
        return buildkit.build(self._api, self.endpoint, context, tag, arguments or {}, progress, log, from_cache=from_cache)

    def save(self, reference: str) -> Iterator[bytes]:
        """An image as the engine saves it (`docker save`), in pieces; a graph driver first writes it to its own disk."""
        with told(self.endpoint, "saving an image"):
            yield from wire.pieces(wire.get(self._api, "/images/{0}/get", reference))

    def pull(self, reference: str) -> None:
        """Have the engine fetch an image from its registry, by `name@digest`."""
        with told(self.endpoint, f"pulling {reference}"):
            for message in self._api.pull(reference, stream=True, decode=True):
                if "error" in message:
                    raise of_answer(str(message["error"]), self.endpoint, f"pulling {reference}")

    def export(self, reference: str) -> Iterator[bytes]:
        """The merged file tree of an image as one tar, in pieces."""
        # An engine makes a container's working folder where the image has none; there always is a root folder.
        with self.container(reference, ["none"], workdir="/") as container, told(self.endpoint, "exporting an image"):
            yield from wire.pieces(wire.get(self._api, "/containers/{0}/export", container.id))

    # containers

    def container(
        self,
        image: str,
        command: Sequence[str],
        *,
        network: str = "none",
        environment: Mapping[str, str] | None = None,
        user: str | None = None,
        workdir: str | None = None,
        entrypoint: Sequence[str] | None = None,
        read_only: bool = False,
        tmpfs: Mapping[str, str] | None = None,
        shm_size: str | int | None = None,
        binds: Sequence[Bind] = (),
        gpus: Gpus | None = None,
    ) -> AbstractContextManager[Container]:
        """A container of an image for the time of a `with` block; created, not started.

        `tmpfs` maps folders in the container to mount options, `shm_size` is in bytes or as `8g`. The container is removed at the
        end; what a killed run left is removed by the next one. Raises `ImageMissing`, `WrongPlatform`, and from `Container.start` also
        `NoGpuRuntime`, `CdiUnresolved`, `RequirementUnsatisfied`.
        """
        self._sweep()
        return make_container(
            self._api,
            self.endpoint,
            image,
            command,
            network=network,
            environment=environment or {},
            user=user,
            workdir=workdir,
            entrypoint=entrypoint,
            read_only=read_only,
            tmpfs=tmpfs or {},
            shm_size=shm_size,
            binds=binds,
            gpus=gpus,
        )

    def _sweep(self) -> None:
        """Once in a connection: remove containers whose process is gone."""
        if self._swept:
            return
        self._swept = True
        with told(self.endpoint, "listing its containers"):
            rows = self._api.containers(all=True, filters={"label": LABEL})
        for row in rows:
            if is_forgotten(row["Labels"][LABEL]):
                remove_container(self._api, self.endpoint, row["Id"])

    def _sweep_images(self) -> None:
        """Remove temporary images whose process is gone. After a load, since until then their layers are of use to it."""
        for tag in (tag for row in self._listed(loading.INCOMING) for tag in row["RepoTags"] or ()):
            if is_forgotten(tag.removeprefix(f"{loading.INCOMING}:")):
                self.untag(tag)
