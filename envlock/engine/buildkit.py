"""`docker build` with BuildKit, through the API where the engine takes a context so: progress as BuildKit tells it, the whole log kept.

The progress is BuildKit's `StatusResponse` (api/services/control/control.proto, field numbers as there), in protobuf and base64 in
`moby.buildkit.trace` messages. Through the API no session is opened: a Dockerfile that needs one (`# syntax=`, secrets, a FROM that
the engine does not have) fails.
"""

from __future__ import annotations

import base64
import json
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, BinaryIO, Literal

from envlock.engine import dockercli, wire
from envlock.engine.buildcontext import BuildContext
from envlock.engine.endpoint import Endpoint
from envlock.engine.faults import Body, of_answer, told
from envlock.errors import BuildFailed, EngineRefused, EnvlockError
from envlock.progress import Progress

_VARINT = 70  # bits of the longest: ten bytes
_TAIL = 20  # lines of the log that an error shows
_DOING = "building an image"


@dataclass(frozen=True, slots=True)
class ImageBuilt:
    """A built image: its id in the engine, and how the context got there: in the request, fetched by the engine from loopback, or sent
    by the Docker client."""

    id: str
    context: Literal["body", "loopback", "client"]


@dataclass(frozen=True, slots=True)
class _Step:
    name: str = ""
    cached: bool = False
    seconds: float | None = None
    error: str = ""


def build(
    api: Any,
    endpoint: Endpoint,
    context: BuildContext,
    tag: str,
    arguments: Mapping[str, str],
    progress: Progress,
    log: BinaryIO,
    *,
    from_cache: bool = True,
) -> ImageBuilt:
    """Build a Dockerfile from its context, RUN steps without network, and tag the image.

    Every step is said when it ends, all output goes to `log`. Without `from_cache` every step runs, whatever was built before. Containerd
    stores of Docker 26 do not find a context in the request's body (moby#47717): there the engine is asked to fetch it from a loopback
    port, which works where it shares this host's network, and else the Docker client is called. Raises `BuildFailed` with the end of the
    log, `EngineRefused` where no way works, `DiskFull`, `NoEngine`.
    """
    options = {"version": "2", "t": tag, "networkmode": "none", "buildargs": json.dumps(dict(arguments))}
    if not from_cache:
        options["nocache"] = "1"
    try:
        body = Body(context.tar())
        with told(endpoint, _DOING, body):
            answer = wire.post(api, "/build", body=body, params=options)
            return ImageBuilt(_follow(api, answer, endpoint, progress, log), "body")
    except EngineRefused as error:
        if "http://build-context-" not in error.why:
            raise
    fetched = _fetched(api, endpoint, context, options, progress, log) if endpoint.socket is not None else None
    if fetched is not None:
        return ImageBuilt(fetched, "loopback")
    client = dockercli.find_client()
    if client is None:
        raise _unreachable(endpoint)
    progress.say(f"this engine takes no context through its API: {client} builds")
    dockercli.build(client, endpoint, context, tag, arguments, progress, log, from_cache=from_cache)
    with told(endpoint, _DOING):
        return ImageBuilt(str(api.inspect_image(tag)["Id"]), "client")


def _fetched(
    api: Any, endpoint: Endpoint, context: BuildContext, options: Mapping[str, str], progress: Progress, log: BinaryIO
) -> str | None:
    """The id of the image that the engine makes of a context that it fetches from loopback; None where it has a network of its own."""
    with _serving(context.tar) as url, told(endpoint, _DOING):
        answer = wire.post(api, "/build", params={**options, "remote": url})
        try:
            return _follow(api, answer, endpoint, progress, log)
        except EngineRefused as error:
            if url not in error.why:
                raise
            return None


def _unreachable(endpoint: Endpoint) -> EngineRefused:
    apart = "it has a network of its own" if endpoint.socket is not None else "it is on another host"
    why = f"{apart}, and no Docker client on PATH drives BuildKit"
    hint = "install the client's buildx component (Debian: docker-buildx, Docker's own packages: docker-buildx-plugin), then run it again"
    return EngineRefused("this engine takes no context through its API", where=str(endpoint), why=why, hint=hint)


def _follow(api: Any, answer: Any, endpoint: Endpoint, progress: Progress, log: BinaryIO) -> str:
    """Read a build's messages to the end; the image's id."""
    steps: dict[str, _Step] = {}
    tail: deque[str] = deque(maxlen=_TAIL)
    identity = ""
    for message in wire.messages(api, answer):
        if "error" in message:
            raise _failed(str(message["error"]), steps, tail, endpoint)
        if message.get("id") == "moby.image.id":
            identity = str(message["aux"]["ID"])
        elif message.get("id") == "moby.buildkit.trace":
            _tell(base64.b64decode(message["aux"]), steps, tail, progress, log)
    if not identity:
        raise of_answer("the build ended without an image", endpoint, _DOING)
    return identity


def _failed(text: str, steps: Mapping[str, _Step], tail: Iterable[str], endpoint: Endpoint) -> EnvlockError:
    known = of_answer(text, endpoint, _DOING)
    step = next((step for step in steps.values() if step.error), None)
    if not isinstance(known, EngineRefused) or step is None or step.name.startswith("[internal]"):
        return known
    why = "\n".join([step.error, *tail])
    return BuildFailed("a step of the Dockerfile failed", where=step.name, why=why, hint="the log of the build has all of its output")


def _tell(raw: bytes, steps: dict[str, _Step], tail: deque[str], progress: Progress, log: BinaryIO) -> None:
    """Note what a status says: steps that ended, and what they printed."""
    for field, value in _fields(raw):
        if field == 1 and isinstance(value, bytes):
            digest, step = _step(value)
            before = steps.get(digest)
            steps[digest] = step
            if step.seconds is not None and (before is None or before.seconds is None) and not step.error:
                line = f"{step.name}  {'cached' if step.cached else f'{step.seconds:.1f} s'}"
                progress.say(line)
                log.write(f"== {line}\n".encode())
            elif step.error:
                log.write(f"== {step.name}: {step.error}\n".encode())
        elif field == 3 and isinstance(value, bytes):
            printed = next((part for number, part in _fields(value) if number == 4 and isinstance(part, bytes)), b"")
            log.write(printed)
            tail.extend(printed.decode("utf-8", "replace").splitlines())


def _step(raw: bytes) -> tuple[str, _Step]:
    fields = dict(_fields(raw))
    started, completed = (_seconds(fields.get(number)) for number in (5, 6))
    seconds = completed - started if started is not None and completed is not None else None
    return _text(fields.get(1)), _Step(_text(fields.get(3)), bool(fields.get(4)), seconds, _text(fields.get(7)))


def _text(value: int | bytes | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _seconds(raw: int | bytes | None) -> float | None:
    """A protobuf Timestamp in seconds since 1970."""
    if not isinstance(raw, bytes):
        return None
    fields = dict(_fields(raw))
    whole, nanos = (fields.get(number, 0) for number in (1, 2))
    return whole + nanos / 1e9 if isinstance(whole, int) and isinstance(nanos, int) else None


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message: numbers, and bytes for texts and messages within (protobuf.dev, "Encoding")."""
    at = 0

    def varint() -> int:
        nonlocal at
        value, shift = 0, 0
        while shift < _VARINT:
            byte = raw[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise IndexError

    try:
        while at < len(raw):
            key = varint()
            kind = key & 7
            if kind == 0:
                yield key >> 3, varint()
                continue
            length = {1: 8, 5: 4}[kind] if kind != 2 else varint()
            yield key >> 3, raw[at : at + length]
            at += length
    except (IndexError, KeyError):
        return  # a message of a newer kind: what was read of it is told


@contextmanager
def _serving(tar: Callable[[], Iterable[bytes]]) -> Iterator[str]:
    """The context's URL on a loopback port, under a name that nobody can guess."""
    name = f"/{secrets.token_urlsafe(24)}/context.tar"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != name:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Type", "application/x-tar")
            self.end_headers()
            for piece in tar():
                self.wfile.write(piece)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}{name}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
