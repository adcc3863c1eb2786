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
from contextlib import closing
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


def tiny_image(url: str) -> list[str]:
    """Import an image of one file; the tags that the engine has then."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("file"))
    with closing(docker.DockerClient(base_url=url)) as client:
        client.api.import_image_from_data(archive.getvalue(), repository="private-engine-test", tag="1")
    return tags(url)


def tags(url: str) -> list[str]:
    with closing(docker.DockerClient(base_url=url)) as client:
        return [tag for image in client.images.list() for tag in image.tags]


def mounts_of(engine: PrivateEngine) -> list[str]:
    """Mounts of the engine that the machine sees."""
    return [
        line
        for line in Path("/proc/self/mounts").read_text().splitlines()
        if str(engine.folder.parent) in line or "/run/containerd" in line
    ]


def test_it_starts_once_keeps_images_and_leaves_nothing(engine: PrivateEngine) -> None:
    interfaces = set(Path("/sys/class/net").iterdir())
    url = engine.start()
    first = engine.process
    assert engine.start() == url
    assert engine.process == first
    assert engine.do("running").returncode == 0
    assert tiny_image(url) == ["private-engine-test:1"]
    assert mounts_of(engine) == []
    assert set(Path("/sys/class/net").iterdir()) == interfaces

    assert engine.do("stop").returncode == 0
    assert engine.do("running").returncode == 1
    assert tags(engine.start()) == ["private-engine-test:1"]

    engine.do("stop", "--purge")
    assert not engine.folder.exists()
    assert not Path(url.removeprefix("unix://")).parent.exists()


def test_it_starts_again_after_it_was_killed(engine: PrivateEngine) -> None:
    tiny_image(engine.start())
    os.kill(engine.process, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while engine.do("running").returncode == 0 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert tags(engine.start()) == ["private-engine-test:1"]


def test_it_leaves_the_bridge_of_another_engine(engine: PrivateEngine) -> None:
    add_bridge = "import fcntl, socket; fcntl.ioctl(socket.socket(), 0x89A0, b'docker0\\0')"  # SIOCBRADDBR
    text = '"$1" -c "$2" && "$3" start >&2 && cat /proc/net/dev'
    command = ["unshare", "--net", "sh", "-euc", text, "sh", sys.executable, add_bridge, str(SCRIPT)]
    done = subprocess.run(command, env=engine.environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "docker0:" in done.stdout
