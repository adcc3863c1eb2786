"""What the SDK and the engine answer when something is wrong, turned into our errors: what, why, and what to do."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import requests
import urllib3
from docker.errors import APIError, DockerException, ImageNotFound, InvalidVersion

from envlock.diagnose import diagnose
from envlock.engine.endpoint import Endpoint
from envlock.errors import (
    CdiUnresolved,
    DiskFull,
    EngineApi,
    EngineRefused,
    EnvlockError,
    ImageMissing,
    NoEngine,
    NoGpuRuntime,
    RequirementUnsatisfied,
    SdkTooOld,
    WrongPlatform,
)

_FOREIGN = (APIError, DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError)


_KNOWN: dict[str, type[EnvlockError]] = {
    error.id: error for error in (CdiUnresolved, DiskFull, EngineApi, NoGpuRuntime, RequirementUnsatisfied, SdkTooOld, WrongPlatform)
}


class Body:
    """A request's body in pieces, which remembers when its own source failed: the SDK would blame the connection."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces
        self.fault: Exception | None = None

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._pieces
        except Exception as error:
            self.fault = error
            raise


@contextmanager
def told(endpoint: Endpoint, doing: str, body: Body | None = None) -> Iterator[None]:
    """Run a piece of work with the engine; whatever the SDK raises comes out as one of our errors. `doing` completes "while …"."""
    try:
        yield
    except EnvlockError:
        raise
    except _FOREIGN as error:
        if body is not None and body.fault is not None:
            raise body.fault from None
        raise explain(error, endpoint, doing) from error


def explain(error: BaseException, endpoint: Endpoint, doing: str) -> EnvlockError:
    """The error that stands for what the SDK raised."""
    if isinstance(error, ImageNotFound):
        return ImageMissing("the engine has no such image", where=str(endpoint), why=_text(error), hint="see `envlock images`")
    text = _text(error)
    if isinstance(error, InvalidVersion):
        hint = "update the older of the two: the engine, or the SDK with `pip install --upgrade docker`"
        return EngineApi("the engine and the Docker SDK speak different API versions", where=str(endpoint), why=text, hint=hint)
    if isinstance(error, APIError) or "Not supported URL scheme" in text:
        return of_answer(text, endpoint, doing)
    return _no_engine(error, text, endpoint, doing)


def of_answer(text: str, endpoint: Endpoint, doing: str) -> EnvlockError:
    """The error that stands for an engine's answer in words."""
    found = diagnose(text)
    if found is not None and found.id in _KNOWN:
        return _KNOWN[found.id](found.what, where=str(endpoint), why=text, hint=found.hint)
    return EngineRefused(f"the engine refused while {doing}", where=str(endpoint), why=text, hint="the engine's own log says more")


def _no_engine(error: BaseException, text: str, endpoint: Endpoint, doing: str) -> NoEngine:
    socket_path = endpoint.socket
    number = next((e.errno for e in _chain(error) if isinstance(e, OSError) and e.errno is not None), None)
    if number == errno.ENOENT and socket_path is not None:
        what, why = "no Docker engine answers", f"there is no socket {socket_path}"
        hint = "install Docker and start it, or name another engine with --host or DOCKER_HOST"
    elif number == errno.EACCES or number == errno.EPERM:
        what, why = "the Docker engine may not be used by this user", f"permission denied on {socket_path or endpoint.url}"
        hint = "join the group `docker` (`sudo usermod -aG docker $USER`, then log in again), or use a rootless engine"
    elif number == errno.ECONNREFUSED:
        what, why = "no Docker engine answers", f"nothing listens on {socket_path or endpoint.url}"
        start = "start the engine: `sudo systemctl start docker`" if socket_path else "check address and port, and that the engine runs"
        hint = f"{start}; then run it again"
    elif any(isinstance(e, socket.gaierror) for e in _chain(error)):
        what, why = "no Docker engine answers", f"the host in {endpoint.url} is not known"
        hint = "check the address in --host, DOCKER_HOST or the Docker context"
    elif any(isinstance(e, TimeoutError | requests.Timeout | urllib3.exceptions.TimeoutError) for e in _chain(error)):
        what, why = "the Docker engine does not answer", f"it was silent for too long while {doing}"
        hint = "see whether it is busy or hangs: `docker info`"
    elif "paramiko" in text:
        what, why = "no Docker engine answers", "ssh:// needs the package paramiko"
        hint = "install it with `pip install paramiko`, or forward the engine's socket with `ssh -L` and name that with --host"
    else:
        what, why = f"the Docker engine went away while {doing}", text
        hint = "see whether it runs (`docker info`) and what its log says, then run the command again: what was finished is kept"
    return NoEngine(what, where=str(endpoint), why=why, hint=hint)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, what caused it, and the exceptions that libraries hide among its arguments."""
    todo, seen = [error], set[int]()
    while todo:
        current = todo.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        around = (current.__cause__, current.__context__, getattr(current, "reason", None), *current.args)
        todo += [e for e in around if isinstance(e, BaseException)]


def _text(error: BaseException) -> str:
    """The telling part of an exception's text, on one line."""
    text = str(error.explanation) if isinstance(error, APIError) and error.explanation else str(error)
    return " ".join(text.split())[:600]
