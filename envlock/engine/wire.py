"""Requests that the SDK's own methods cannot make: bodies and answers that are streamed, with a patience of their own."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

PATIENCE = 3600  # seconds without a byte after which an engine at work on something large counts as gone


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of what a process printed, as it came."""

    stream: Literal["stdout", "stderr"]
    data: bytes


def get(api: Any, path: str, *names: str, params: Mapping[str, Any] | None = None) -> Any:
    """GET; the answer's body is not read yet."""
    plain = {"Accept-Encoding": "identity"}  # else the engine compresses what it copies out of a container
    return _checked(api, api._get(api._url(path, *names), params=params, headers=plain, stream=True, timeout=PATIENCE))


def put(api: Any, path: str, *names: str, body: Iterable[bytes], params: Mapping[str, Any]) -> None:
    """PUT a body in pieces."""
    _checked(api, api._put(api._url(path, *names), params=params, data=iter(body), timeout=PATIENCE)).close()


def post(api: Any, path: str, *names: str, body: Iterable[bytes] | None = None, params: Mapping[str, Any]) -> Any:
    """POST a body in pieces; the answer's body is not read yet."""
    data = None if body is None else iter(body)
    return _checked(api, api._post(api._url(path, *names), params=params, data=data, stream=True, timeout=PATIENCE))


def post_json(api: Any, path: str, *names: str, body: Mapping[str, Any]) -> Any:
    """POST a JSON body; the answer's body is not read yet."""
    return _checked(api, api._post_json(api._url(path, *names), data=dict(body), stream=True, timeout=PATIENCE))


def pieces(answer: Any) -> Iterator[bytes]:
    """The answer's body as it comes."""
    try:
        yield from answer.raw.stream(2**20)
    finally:
        answer.close()


def messages(api: Any, answer: Any) -> Iterator[dict[str, Any]]:
    """The JSON objects of a progress stream."""
    try:
        yield from api._stream_helper(answer, decode=True)
    finally:
        answer.close()


def frames(answer: Any) -> Iterator[Output]:
    """The frames of an attached stream: one byte for the stream, three unused, four for the length (Engine API, "Stream format").

    Read from the buffered response: the SDK's own reader goes to the socket below, past what came together with the headers.
    """
    try:
        while len(head := answer.raw.read(8)) == 8:
            number, length = struct.unpack(">BxxxL", head)
            while length and (data := answer.raw.read(min(length, 2**20))):
                length -= len(data)
                yield Output("stderr" if number == 2 else "stdout", data)
    finally:
        answer.close()


def _checked(api: Any, answer: Any) -> Any:
    api._raise_for_status(answer)
    return answer
