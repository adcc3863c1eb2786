"""Builds with BuildKit through the API: on graph drivers with the context in the request, on containerd stores over loopback."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import newer
import pytest
from conftest import Sample, tar_of

from envlock.engine import Engine
from envlock.errors import BuildFailed, EngineRefused
from envlock.progress import Silent

BASE, TAG = "envlock-test-buildkit:base", "envlock-test-buildkit:built"
DOCKERFILE = f"""\
ARG WORD=none
FROM {BASE}
ARG WORD
RUN echo "some output {os.urandom(8).hex()}"; echo $WORD > /data/word
RUN --mount=type=bind,target=/dev/context cat /dev/context/given > /data/given
"""


class Steps(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, message: str) -> None:
        self.lines.append(message)


def context(dockerfile: str) -> list[bytes]:
    return [tar_of({"Dockerfile": dockerfile.encode(), "given": b"a gift"})]


@pytest.fixture(params=["engine", "newer_overlay2"])
def graph_engine(request: pytest.FixtureRequest, sample: Sample) -> Iterator[Engine]:
    yield from with_base(request.getfixturevalue(request.param), sample)


@pytest.fixture
def containerd_engine(newer_containerd: Engine, sample: Sample) -> Iterator[Engine]:
    yield from with_base(newer_containerd, sample)


def with_base(engine: Engine, sample: Sample) -> Iterator[Engine]:
    engine.load(sample.image, [BASE], sample.open_layer, Silent())
    yield engine
    engine.untag(TAG)
    engine.untag(BASE)


def files_of(engine: Engine) -> bytes:
    with engine.container(TAG, ["cat", "/data/one", "/data/given", "/data/word"]) as container:
        container.start()
        return b"".join(piece.data for piece in container.output(60))


def test_a_dockerfile_is_built(graph_engine: Engine) -> None:
    steps, log = Steps(), io.BytesIO()
    built = graph_engine.build(lambda: context(DOCKERFILE), TAG, steps, log, {"WORD": "hello"})
    image = graph_engine.image(TAG)
    assert image is not None
    assert (built.id, built.context) == (image.id, "body")
    assert files_of(graph_engine) == b"1a gifthello\n"
    assert b"some output" in log.getvalue().replace(b'RUN echo "some output', b"")
    assert any("RUN echo" in line for line in steps.lines)


def test_a_step_that_fails(graph_engine: Engine) -> None:
    log = io.BytesIO()
    with pytest.raises(BuildFailed) as caught:
        graph_engine.build(lambda: context(f"FROM {BASE}\nRUN seq 300; echo told >&2; exit 9"), TAG, Silent(), log)
    assert "RUN seq 300" in caught.value.where
    assert "exit code: 9" in caught.value.why
    assert caught.value.why.endswith("told")
    assert caught.value.why.count("\n") <= 20
    assert b"\n1\n2\n3\n" in b"\n" + log.getvalue()
    assert graph_engine.image(TAG) is None


def test_a_dockerfile_with_a_mistake(graph_engine: Engine) -> None:
    with pytest.raises(EngineRefused) as caught:
        graph_engine.build(lambda: context(f"FROM {BASE}\nRAN x"), TAG, Silent(), io.BytesIO())
    assert "RAN" in caught.value.why


def test_an_engine_with_a_network_of_its_own(containerd_engine: Engine) -> None:
    with pytest.raises(EngineRefused, match="takes no context through its API") as caught:
        containerd_engine.build(lambda: context(DOCKERFILE), TAG, Silent(), io.BytesIO())
    assert "docker build --network none" in caught.value.hint


def test_a_containerd_store_fetches_the_context(containerd_engine: Engine) -> None:
    """In the engine's own network namespace, as an engine and its user usually share one."""
    url, own_network = containerd_engine.endpoint.url, f"/proc/{newer.engine_process(containerd_engine.endpoint.url)}/ns/net"
    done = subprocess.run(
        ["nsenter", f"--net={own_network}", sys.executable, "-c", BUILD, url, TAG, context(DOCKERFILE)[0].hex()],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "loopback\n"
    assert files_of(containerd_engine) == b"1a gifthello\n"


BUILD = """
import io, sys
from envlock.engine import connect
from envlock.progress import Silent

content = bytes.fromhex(sys.argv[3])
print(connect(sys.argv[1]).build(lambda: [content], sys.argv[2], Silent(), io.BytesIO(), {"WORD": "hello"}).context)
"""
