"""BuildKit's progress, read without a protobuf library."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envlock.engine import BuildContext, Endpoint, buildkit, wire
from envlock.errors import BuildFailed, DiskFull, EngineRefused, EnvlockError
from envlock.progress import Silent

HERE = Endpoint("unix:///run/docker.sock", "--host")
CONTEXT = BuildContext(Path("/proc/none"), b"FROM scratch\n")


class Steps(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, message: str) -> None:
        self.lines.append(message)


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def vertex(name: str, *, seconds: int | None = 2, cached: bool = False, error: str = "") -> dict[str, Any]:
    parts = field(1, f"sha256:{name}".encode()) + field(3, name.encode()) + field(5, field(1, 1_700_000_000))
    parts += field(4, 1) if cached else b""
    parts += field(6, field(1, 1_700_000_000 + seconds) + field(2, 500_000_000)) if seconds is not None else b""
    return trace(field(1, parts + (field(7, error.encode()) if error else b"")))


def printed(text: str) -> dict[str, Any]:
    return trace(field(3, field(1, b"sha256:x") + field(3, 1) + field(4, text.encode())))


def trace(status: bytes) -> dict[str, Any]:
    return {"id": "moby.buildkit.trace", "aux": base64.b64encode(status).decode()}


def run(monkeypatch: pytest.MonkeyPatch, *messages: dict[str, Any]) -> tuple[buildkit.ImageBuilt, list[str], str]:
    def answers(api: object, answer: object) -> Iterator[dict[str, Any]]:
        return iter(messages)

    monkeypatch.setattr(wire, "post", lambda *_, **__: None)
    monkeypatch.setattr(wire, "messages", answers)
    steps, log = Steps(), io.BytesIO()
    try:
        return buildkit.build(None, HERE, CONTEXT, "a:b", {}, steps, log), steps.lines, log.getvalue().decode()
    except EnvlockError as error:
        error.args = (log.getvalue().decode(),)
        raise


DONE = {"id": "moby.image.id", "aux": {"ID": "sha256:00"}}


def test_steps_are_said_when_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = vertex("RUN one", seconds=None), vertex("RUN one", seconds=300)
    built, lines, log = run(monkeypatch, one, printed("hello\n"), two, two, vertex("COPY two", cached=True), DONE)
    assert built == buildkit.ImageBuilt("sha256:00", "body")
    assert lines == ["RUN one  300.5 s", "COPY two  cached"]
    assert log == "hello\n== RUN one  300.5 s\n== COPY two  cached\n"


def test_the_log_has_all_and_the_message_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [printed(f"line {number}\n") for number in range(300)]
    with pytest.raises(BuildFailed) as caught:
        run(monkeypatch, *lines, vertex("RUN bad", error="exit code: 1"), {"error": "failed to solve: exit code: 1"})
    assert caught.value.where == "RUN bad"
    assert caught.value.why.splitlines() == ["exit code: 1", *(f"line {number}" for number in range(280, 300))]
    assert caught.value.args[0].count("line ") == 300


def test_a_full_disk_is_the_hosts_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    error = "write /data: no space left on device"
    with pytest.raises(DiskFull):
        run(monkeypatch, vertex("RUN big", error=error), {"error": error})


def test_a_build_that_ends_without_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineRefused) as caught:
        run(monkeypatch, vertex("RUN one"))
    assert "without an image" in caught.value.why


def test_a_message_that_is_cut_or_new_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = trace(field(1, field(3, b"RUN x"))[:-2])
    strange = trace(bytes([0x0B]))
    assert run(monkeypatch, cut, strange, trace(field(9, 7)), DONE)[0].id == "sha256:00"


def test_the_context_is_served_to_who_knows_its_name() -> None:
    import requests

    with buildkit._serving(lambda: [b"a ", b"tar"]) as url:
        with requests.get(url, timeout=10) as answer:
            assert answer.content == b"a tar"
        with requests.get(url.rpartition("/")[0], timeout=10) as answer:
            assert answer.status_code == 404
