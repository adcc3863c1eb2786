"""The private engine of scripts/engine, for real: it starts, outlives a kill, shares nothing, and leaves nothing."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

CHECKOUT = Path(__file__).parents[2]
SCRIPT = CHECKOUT / "scripts/engine"

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(os.geteuid() != 0, reason="starting an engine takes root"),
    pytest.mark.skipif(Path(sys.prefix).resolve() != CHECKOUT / ".venv", reason="the script runs what scripts/test sets up"),
]


class PrivateEngine:
    """One private engine with its data in a folder of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "engine"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DOCKER_")}
        self.environment = kept | {"ENVLOCK_STATE": str(folder), "ENVLOCK_PRIVATE_ENGINE": "1"}

    def do(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([SCRIPT, *words], env=self.environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)

    def start(self) -> str:
        """Start it; the URL it answers at."""
        done = self.do("start")
        assert done.returncode == 0, done.stderr
        return done.stdout.removeprefix("export DOCKER_HOST='").removesuffix("'\n")

    @property
    def process(self) -> int:
        return int((self.folder / "pid").read_text().split()[0])


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[PrivateEngine]:
    engine = PrivateEngine(tmp_path)
    yield engine
    engine.do("stop", "--purge")


def machine_network() -> str:
    return "".join(Path(f"/proc/net/{name}").read_text().split("|")[0] for name in ("route", "if_inet6"))


def tiny_image(url: str) -> list[str]:
    """Import an image of one file; the tags that the engine has then."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("file"))
    with docker_client(url) as client:
        client.api.import_image_from_data(archive.getvalue(), repository="private-engine-test", tag="1")
    return tags(url)


def tags(url: str) -> list[str]:
    with docker_client(url) as client:
        return [tag for image in client.images.list() for tag in image.tags]


class docker_client:  # noqa: N801
    """A client that is closed."""

    def __init__(self, url: str) -> None:
        self.client = docker.DockerClient(base_url=url, timeout=60)

    def __enter__(self) -> docker.DockerClient:
        return self.client

    def __exit__(self, *_: object) -> None:
        self.client.close()


def test_it_starts_once_keeps_images_and_leaves_nothing(engine: PrivateEngine) -> None:
    mounts, network = Path("/proc/self/mounts").read_text(), machine_network()
    url = engine.start()
    first = engine.process
    assert engine.start() == url
    assert engine.process == first
    assert engine.do("running").returncode == 0
    assert tiny_image(url) == ["private-engine-test:1"]
    assert Path("/proc/self/mounts").read_text() == mounts
    assert machine_network() == network

    assert engine.do("stop").returncode == 0
    assert engine.do("running").returncode == 1
    assert tags(engine.start()) == ["private-engine-test:1"]

    engine.do("stop", "--purge")
    assert not engine.folder.exists()
    assert not Path(url.removeprefix("unix://")).exists()
    assert Path("/proc/self/mounts").read_text() == mounts


def test_it_starts_again_after_it_was_killed(engine: PrivateEngine) -> None:
    tiny_image(engine.start())
    os.kill(engine.process, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while engine.do("running").returncode == 0 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert tags(engine.start()) == ["private-engine-test:1"]
