"""Engines for the tests: the host's own (or a private one), Debian 13's with a graph driver and with a containerd store."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import newer
import pytest
from tiny import tiny, tiny_built, tiny_session  # noqa: F401

from envlock.engine import Engine, connect
from envlock.errors import NoEngine
from envlock.image import Image, Settings, make_image
from envlock.layers import Layer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """The engine that the environment points at; `scripts/test` starts one where there is none."""
    try:
        with connect() as found:
            yield found
    except NoEngine as error:
        pytest.skip(f"{error.what}: {error.why}")


@pytest.fixture(scope="session")
def newer_overlay2() -> Iterator[Engine]:
    """Debian 13's engine with a graph driver."""
    yield from _newer("overlay2")


@pytest.fixture(scope="session")
def newer_containerd() -> Iterator[Engine]:
    """Debian 13's engine with a containerd store."""
    yield from _newer("containerd")


def _newer(store: newer.Store) -> Iterator[Engine]:
    reason = newer.why_not()
    if reason:
        pytest.skip(reason)
    with newer.newer_engine(store) as url, connect(url) as engine:
        yield engine


@pytest.fixture(params=["newer_overlay2", "newer_containerd"])
def newer_engine(request: pytest.FixtureRequest) -> Engine:
    """Debian 13's engine, with each kind of image store in turn."""
    engine: Engine = request.getfixturevalue(request.param)
    return engine


@pytest.fixture(params=["engine", "newer_overlay2", "newer_containerd"])
def any_engine(request: pytest.FixtureRequest) -> Engine:
    """Each of the three engines in turn: for what must hold on all."""
    engine: Engine = request.getfixturevalue(request.param)
    return engine


@dataclass(frozen=True)
class Sample:
    """A small image that runs, and its layers' files."""

    image: Image
    files: dict[str, Path]
    folder: Path

    def open_layer(self, layer: Layer) -> BinaryIO:
        return self.files[layer.diff_id].open("rb")

    def with_layer(self, holds: str, files: dict[str, bytes]) -> Sample:
        """The same with one more layer of files on top."""
        return self.with_tar(holds, tar_of(files))

    def with_tar(self, holds: str, tar: bytes) -> Sample:
        """The same with one more layer on top."""
        layer, path = _layer(self.folder, holds, tar)
        return Sample(make_image([*self.image.layers, layer], SETTINGS), {**self.files, layer.diff_id: path}, self.folder)


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """Three layers: a shell with a few tools and their libraries from this host, and two layers of files."""
    folder = tmp_path_factory.mktemp("sample")
    tars = {
        "a shell": _tools(),
        "a file": tar_of({"etc/passwd": b"root:x:0:0::/root:/bin/sh\nguest:x:1000:1000::/:/bin/sh\n", "data/one": b"1"}),
        "another file": tar_of({"data/two": b"22"}),
    }
    made = [_layer(folder, holds, content) for holds, content in tars.items()]
    layers = [layer for layer, _ in made]
    return Sample(make_image(layers, SETTINGS), {layer.diff_id: path for layer, path in made}, folder)


def _layer(folder: Path, holds: str, content: bytes) -> tuple[Layer, Path]:
    digest = hashlib.sha256(content).hexdigest()
    (folder / digest).write_bytes(content)
    return Layer(f"sha256:{digest}", len(content), holds), folder / digest


SETTINGS = Settings(
    platform="linux/amd64" if os.uname().machine == "x86_64" else "linux/arm64",
    created=1_700_000_000,
    environment={"PATH": "/bin", "ENVLOCK_SAMPLE": "with = and spaces"},
    labels={"dev.envlock.lock": "sha256:0", "org.opencontainers.image.title": "sample"},
    workdir="/data",
    command=("cat", "one"),
)


def _tools() -> bytes:
    wanted = {f"bin/{tool}": Path(shutil.which(tool) or f"/bin/{tool}") for tool in ("sh", "cat", "id", "env", "sleep", "seq")}
    for tool in list(wanted.values()):
        listed = subprocess.run(["ldd", str(tool)], check=True, capture_output=True, text=True).stdout
        paths = [word for word in listed.split() if word.startswith("/")]
        wanted |= {path.lstrip("/"): Path(path) for path in paths}
    return tar_of({name: path.resolve().read_bytes() for name, path in sorted(wanted.items())}, mode=0o755)


def tar_of(files: dict[str, bytes], mode: int = 0o644) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        folders = {str(parent) for name in files for parent in Path(name).parents if str(parent) != "."}
        for folder in sorted(folders):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
