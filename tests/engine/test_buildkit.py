"""Builds with BuildKit: on graph drivers with the context in the request, on containerd stores over loopback or by the Docker client."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import newer
import pytest
from conftest import Sample

from envlock.engine import BuildContext, Engine, dockercli
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "given").write_text("a gift")
    return tmp_path


def context(folder: Path, dockerfile: str = DOCKERFILE) -> BuildContext:
    return BuildContext(folder, dockerfile.encode())


@pytest.fixture(params=["engine", "newer_overlay2", "newer_containerd"])
def each(request: pytest.FixtureRequest, sample: Sample) -> Iterator[Engine]:
    """Each engine with the base; on the containerd store, which has a network of its own, the client builds."""
    if request.param == "newer_containerd" and dockercli.find_client() is None:
        pytest.skip("needs a Docker client with BuildKit: Debian 12's docker.io, or a newer one with docker-buildx")
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


def test_a_dockerfile_is_built(each: Engine, folder: Path) -> None:
    steps, log = Steps(), io.BytesIO()
    built = each.build(context(folder), TAG, steps, log, {"WORD": "hello"})
    image = each.image(TAG)
    assert image is not None
    assert (built.id, built.context) == (image.id, "client" if each.store == "containerd" else "body")
    assert files_of(each) == b"1a gifthello\n"
    assert b"some output" in log.getvalue().replace(b'RUN echo "some output', b"")
    assert any("RUN echo" in line for line in steps.lines)
    again = Steps()
    each.build(context(folder), TAG, again, io.BytesIO(), {"WORD": "hello"})
    assert any("RUN echo" in line and line.endswith("  cached") for line in again.lines)


def test_a_step_that_fails(each: Engine, folder: Path) -> None:
    log = io.BytesIO()
    with pytest.raises(BuildFailed) as caught:
        each.build(context(folder, f"FROM {BASE}\nRUN (seq 300; echo told) >&2; exit 9"), TAG, Silent(), log)
    assert "RUN (seq 300" in caught.value.where
    assert "exit code: 9" in caught.value.why
    assert caught.value.why.endswith("told")
    assert caught.value.why.count("\n") <= 20
    assert {line.split()[-1] for line in log.getvalue().splitlines() if line.strip()} >= {b"%d" % n for n in range(1, 301)}
    assert each.image(TAG) is None


def test_a_dockerfile_with_a_mistake(each: Engine, folder: Path) -> None:
    with pytest.raises(EngineRefused) as caught:
        each.build(context(folder, f"FROM {BASE}\nRAN x"), TAG, Silent(), io.BytesIO())
    assert "RAN" in caught.value.why


def test_an_engine_with_a_network_of_its_own_and_no_client(
    containerd_engine: Engine, folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer client without its buildx component does not count as one that builds."""
    client = tmp_path_factory.mktemp("bin") / "docker"
    client.write_text("#!/bin/sh\n[ $1 = --version ] && echo Docker version 26.1.5, build x\n")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", str(client.parent))
    with pytest.raises(EngineRefused, match="takes no context through its API") as caught:
        containerd_engine.build(context(folder), TAG, Silent(), io.BytesIO())
    assert "a network of its own" in caught.value.why
    assert "docker-buildx" in caught.value.hint


def test_a_containerd_store_fetches_the_context(containerd_engine: Engine, folder: Path) -> None:
    """In the engine's own network namespace, as an engine and its user usually share one."""
    url, own_network = containerd_engine.endpoint.url, f"/proc/{newer.engine_process(containerd_engine.endpoint.url)}/ns/net"
    done = subprocess.run(
        ["nsenter", f"--net={own_network}", sys.executable, "-c", BUILD, url, TAG, folder, DOCKERFILE],
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
from pathlib import Path
from envlock.engine import BuildContext, connect
from envlock.progress import Silent

url, tag, folder, dockerfile = sys.argv[1:]
print(connect(url).build(BuildContext(Path(folder), dockerfile.encode()), tag, Silent(), io.BytesIO(), {"WORD": "hello"}).context)
"""
