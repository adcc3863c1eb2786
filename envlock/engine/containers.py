"""A container for the time of a `with` block: files in and out, commands, output, exit status; gone at the end."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from docker import APIClient
from docker.errors import APIError, NotFound
from docker.types import DeviceRequest, LogConfig, Mount

from envlock.engine import wire
from envlock.engine.endpoint import Endpoint
from envlock.engine.faults import Body, told
from envlock.engine.owner import LABEL, stamp
from envlock.engine.wire import PATIENCE, Output
from envlock.errors import EngineRefused

_TRIES = 5
_PAUSE = 0.2  # seconds


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs for a container: `all`, or indices, UUIDs and MIG devices; handed over by NVIDIA's runtime hook or by CDI names."""

    devices: tuple[str, ...] = ("all",)
    by: Literal["nvidia", "cdi"] = "nvidia"


@dataclass(frozen=True, slots=True)
class Bind:
    """A folder or file of the engine's host that shows in the container."""

    source: str
    target: str
    mode: Literal["ro", "rw"] = "ro"


@dataclass(frozen=True, slots=True)
class Executed:
    """The end of a command in a container: exit status, and all it printed on both streams in the order of arrival."""

    status: int
    output: bytes


class Execution:
    """A command that runs in a container: iterate over its output, then ask for its status."""

    def __init__(self, api: APIClient, endpoint: Endpoint, command: str, identity: str) -> None:
        self._api = api
        self._endpoint = endpoint
        self._command = command
        self._identity = identity

    def __iter__(self) -> Iterator[Output]:
        with told(self._endpoint, f"running {self._command}"):
            yield from wire.frames(wire.post_json(self._api, "/exec/{0}/start", self._identity, body={"Tty": False, "Detach": False}))

    @property
    def status(self) -> int:
        """The exit status, once the output has ended."""
        with told(self._endpoint, f"running {self._command}"):
            return int(self._api.exec_inspect(self._identity)["ExitCode"])


class Container:
    """One container of envlock's own. Made by `Engine.container`, which also removes it."""

    def __init__(self, api: APIClient, endpoint: Endpoint, identity: str) -> None:
        self.id = identity
        self.timed_out = False
        self._api = api
        self._endpoint = endpoint
        self._attached: Any = None

    def put(self, folder: str, tar: Iterable[bytes]) -> None:
        """Unpack a tar, given in pieces, below an existing folder."""
        body = Body(tar)
        with told(self._endpoint, "copying files into a container", body):
            wire.put(self._api, "/containers/{0}/archive", self.id, body=body, params={"path": folder})

    def get(self, path: str) -> Iterator[bytes]:
        """A file or folder as a tar, in pieces. Raises `FileNotFoundError` where the container has no such path."""
        try:
            with told(self._endpoint, "copying files out of a container"):
                yield from wire.pieces(wire.get(self._api, "/containers/{0}/archive", self.id, params={"path": path}))
        except EngineRefused as error:
            if isinstance(error.__cause__, NotFound):
                raise FileNotFoundError(path) from None
            raise

    def export(self) -> Iterator[bytes]:
        """The container's whole file tree as one tar, in pieces; mounts show as the empty folders below them."""
        with told(self._endpoint, "exporting a container"):
            yield from wire.pieces(wire.get(self._api, "/containers/{0}/export", self.id))

    def start(self) -> None:
        """Start the container's command; what it prints is kept for `output`."""
        with told(self._endpoint, "starting a container"):
            self._attached = wire.post(self._api, "/containers/{0}/attach", self.id, params={"stream": 1, "stdout": 1, "stderr": 1})
            self._api.start(self.id)

    def output(self, timeout: float | None = None) -> Iterator[Output]:
        """What the command prints from its start to its end; after `timeout` seconds it is killed and `timed_out` is true."""
        timer = threading.Timer(timeout, self._kill_late) if timeout is not None else None
        if timer is not None:
            timer.daemon = True
            timer.start()
        try:
            with told(self._endpoint, "reading a container's output"):
                yield from wire.frames(self._attached)
        finally:
            if timer is not None:
                timer.cancel()

    def wait(self, timeout: int = PATIENCE) -> int:
        """Wait for the command's end and give its exit status (128 + signal where it was killed)."""
        with told(self._endpoint, "waiting for a container"):
            return int(self._api.wait(self.id, timeout=timeout)["StatusCode"])

    def kill(self) -> None:
        """End the command at once; nothing happens where it has ended."""
        with told(self._endpoint, "killing a container"):
            try:
                self._api.kill(self.id)
            except APIError as error:
                if error.status_code not in (404, 409):
                    raise

    def exec(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, user: str = "", workdir: str | None = None
    ) -> Executed:
        """Run a command in the started container to its end."""
        running = self.exec_stream(command, environment=environment, user=user, workdir=workdir)
        output = b"".join(piece.data for piece in running)
        return Executed(running.status, output)

    def exec_stream(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, user: str = "", workdir: str | None = None
    ) -> Execution:
        """A command in the started container whose output is read as it comes; it starts when it is first iterated over."""
        with told(self._endpoint, f"running {command[0]}"):
            made = self._api.exec_create(self.id, list(command), environment=dict(environment or {}), user=user, workdir=workdir)
            return Execution(self._api, self._endpoint, command[0], made["Id"])

    def close(self) -> None:
        """Let go of output that nobody read."""
        if self._attached is not None:
            self._attached.close()

    def _kill_late(self) -> None:
        self.timed_out = True
        self.kill()


@contextmanager
def make_container(
    api: APIClient,
    endpoint: Endpoint,
    image: str,
    command: Sequence[str],
    *,
    network: str,
    environment: Mapping[str, str],
    user: str | None,
    workdir: str | None,
    entrypoint: Sequence[str] | None,
    read_only: bool,
    tmpfs: Mapping[str, str],
    shm_size: str | int | None,
    binds: Sequence[Bind],
    gpus: Gpus | None,
) -> Iterator[Container]:
    """A container that was created and not started; removed at the end, come what may."""
    with told(endpoint, "creating a container"):
        host = api.create_host_config(
            network_mode=network,
            read_only=read_only,
            tmpfs=dict(tmpfs),
            shm_size=shm_size,
            mounts=[Mount(b.target, b.source, type="bind", read_only=b.mode == "ro") for b in binds],
            device_requests=_devices(gpus),
            log_config=LogConfig(type="none"),  # output is attached to; a copy in the engine's log could fill its disk
        )
        name = f"envlock-{secrets.token_hex(8)}"
        try:
            made = api.create_container(
                image,
                list(command),
                name=name,
                environment=dict(environment),
                user=user,
                working_dir=workdir,
                entrypoint=None if entrypoint is None else list(entrypoint),
                host_config=host,
                labels={LABEL: stamp()},
            )
        except KeyboardInterrupt:
            _remove_unfinished(api, name)
            raise
    container = Container(api, endpoint, made["Id"])
    try:
        yield container
    finally:
        container.close()
        remove_container(api, endpoint, made["Id"])


def _remove_unfinished(api: APIClient, name: str) -> None:
    """Remove a container that was asked for and that the engine may still be making."""
    for _ in range(_TRIES):
        try:
            api.remove_container(name, v=True, force=True)
            return
        except NotFound:
            time.sleep(_PAUSE)
        except (APIError, OSError):
            return  # a later run sweeps what cannot be removed now


def remove_container(api: APIClient, endpoint: Endpoint, identity: str) -> None:
    """Remove a container, running or not, and its anonymous volumes; one that is gone or going already is fine."""
    with told(endpoint, "removing a container"):
        try:
            api.remove_container(identity, v=True, force=True)
        except APIError as error:
            if error.status_code not in (404, 409):
                raise


def _devices(gpus: Gpus | None) -> list[DeviceRequest] | None:
    if gpus is None:
        return None
    if gpus.by == "cdi":
        return [DeviceRequest(driver="cdi", device_ids=[f"nvidia.com/gpu={device}" for device in gpus.devices])]
    if gpus.devices == ("all",):
        return [DeviceRequest(count=-1, capabilities=[["gpu"]])]
    return [DeviceRequest(device_ids=list(gpus.devices), capabilities=[["gpu"]])]
