"""Two ways to one image: `envlock build`, and plain `docker build` of what `envlock render` wrote."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny import TOOL, Tiny, envlock, remove_images, renamed, said, stored_wheel

from envlock.engine import Engine
from envlock.engine.images import EngineImage
from envlock.layers.sandbox import stream_of
from envlock.lock import Run
from envlock.rootfs import Rootfs, differences, read_rootfs

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from test_runtime_layer import stored

pytestmark = pytest.mark.network

# What installers and compilers have trouble with: scripts, a module that does not compile, names and modes of all kinds.
TRICKY: dict[str, bytes | str] = {
    "tricky/__init__.py": "X = {'a', 'b', 'c'}\n",
    "tricky/broken.py": "def (:\n",
    "tricky/ä name with spaces.txt": "text\n",
    "tricky/__pycache__/__init__.cpython-311.pyc": b"shipped by the wheel",
    "tricky/empty.py": "",
    "tricky/bin/run.sh": "#!/bin/sh\n",
    "tricky-1.data/scripts/tricky-script": "#!python\nprint(1)\n",
    "tricky-1.data/data/share/tricky/data.txt": "data\n",
    "tricky-1.data/purelib/tricky_more/__init__.py": "MORE = 1\n",
    "tricky-1.data/headers/tricky.h": "int x;\n",
    "tiny/tool.py": TOOL,  # the very file of another wheel
}


def docker_build(engine: Engine, context: Path, tag: str) -> subprocess.CompletedProcess[str]:
    """Plain `docker build`, by the first client on PATH that has BuildKit: newer ones need a component for it, older ones have it."""
    environment = {**os.environ, "DOCKER_BUILDKIT": "1", "DOCKER_HOST": engine.endpoint.url}
    for folder in os.get_exec_path():
        if client := shutil.which("docker", path=folder):
            command = [client, "build", "--network", "none", "--no-cache", "--tag", tag, str(context)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if "buildx component is missing" not in done.stderr:
                return done
    pytest.skip("needs a Docker client with BuildKit: Debian 12's docker.io, or a newer one with docker-buildx")


@dataclass(frozen=True)
class Routes:
    """The same lock made by either route: what the engine knows of each image, and their file trees."""

    tiny: Tiny
    context: Path
    assembled: EngineImage
    built: EngineImage
    one: Rootfs
    other: Rootfs


@pytest.fixture(scope="module")
def routes(tiny_session: Tiny, engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routes]:
    folder = tmp_path_factory.mktemp("routes")
    for plain in renamed(tiny_session, engine, folder):
        tricky = stored_wheel(plain.store, folder, "tricky", TRICKY)
        files = (
            stored(plain.store, "/workspace/src/train.py", b"print(1)\n"),
            stored(plain.store, "/workspace/src/run.sh", b"#!/bin/sh\n", executable=True),
            stored(plain.store, "/etc/lab/settings", b"x"),
        )
        nasty = {"NASTY": "$HOME ${PATH} \\ \"'` # é", "EMPTY": ""}
        tiny = plain.with_lock(
            wheels=(*plain.lock.wheels, tricky),
            files=files,
            run=Run(user="1234:1235", workdir="/workspace/my code"),
            environment=dict(sorted({**plain.lock.environment, **nasty}.items())),
        )
        tiny.built(engine)
        said(envlock("render", tiny.lock_path, "-o", folder / "context", "--store", tiny.store.root), 0)
        tag = f"{tiny.lock.name}:by-docker"
        done = docker_build(engine, folder / "context", tag)
        assert done.returncode == 0, done.stderr
        trees = [read_rootfs(stream_of(engine.export(name)), name) for name in (tiny.tag, tag)]
        yield Routes(tiny, folder / "context", engine.image(tiny.tag), engine.image(tag), *trees)
        remove_images(engine, tiny.lock.name)


def test_both_have_the_same_files(routes: Routes) -> None:
    assert [difference for difference in differences(routes.one, routes.other) if difference.counts] == []
    assert routes.one.digest == routes.other.digest
    assert {"opt/venv/bin/tricky-script", "opt/venv/share/tricky/data.txt", "workspace/src/train.py"} <= routes.one.nodes.keys()
    assert routes.one.nodes["workspace/src/run.sh"].mode == 0o755
    assert routes.one.nodes["home/user"].uid == 1234


def test_both_start_the_same(routes: Routes) -> None:
    one, other = routes.assembled, routes.built
    assert one.environment == other.environment
    assert one.environment["NASTY"] == "$HOME ${PATH} \\ \"'` # é"
    assert (one.user, one.workdir, one.command, one.entrypoint) == (other.user, other.workdir, other.command, other.entrypoint)
    ours = {name: value for name, value in one.labels.items() if name != "dev.envlock.layers"}
    assert ours == {name: value for name, value in other.labels.items() if name in ours}
    assert one.platform == other.platform


def test_the_context_holds_what_it_lists_and_names_no_place_of_this_machine(routes: Routes) -> None:
    listed = dict(reversed(line.split("  ", 1)) for line in (routes.context / "SHA256SUMS").read_text().splitlines())
    for name, sha256 in listed.items():
        with (routes.context / name).open("rb") as stream:
            assert hashlib.file_digest(stream, "sha256").hexdigest() == sha256, name
    texts = [path for path in routes.context.rglob("*") if path.is_file() and path.relative_to(routes.context).as_posix() not in listed]
    assert {path.name for path in texts} >= {"Dockerfile", "SHA256SUMS", ".dockerignore", "wheels.sh"}
    for path in texts:
        assert str(routes.tiny.folder) not in path.read_text()


def test_a_context_is_written_again_and_only_over_a_context(routes: Routes, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in routes.context.rglob("*") if path.is_file() and path.stat().st_size < 10**6}
    (routes.context / "wheels/of-another-lock.whl").write_text("x")
    said(envlock("render", routes.tiny.lock_path, "-o", routes.context, "--store", routes.tiny.store.root), 0)
    assert {path: path.read_bytes() for path in routes.context.rglob("*") if path.is_file() and path.stat().st_size < 10**6} == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("precious")
    told = said(envlock("render", routes.tiny.lock_path, "-o", tmp_path / "mine", "--store", routes.tiny.store.root), 2)
    assert "holds other things" in told
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_the_dockerfile_alone_and_whether_one_is_current(routes: Routes, tmp_path: Path) -> None:
    words = ("render", routes.tiny.lock_path, "--store", routes.tiny.store.root)
    printed = envlock(*words)
    assert printed.stdout.encode() == (routes.context / "Dockerfile").read_bytes() == (routes.tiny.folder / "tiny.Dockerfile").read_bytes()
    said(envlock(*words, "--check", routes.context / "Dockerfile"), 0)
    (tmp_path / "Dockerfile").write_text(printed.stdout.replace("USER 1234:1235", "USER 0"))
    told = said(envlock(*words, "--check", tmp_path / "Dockerfile"), 4)
    assert "-USER 0" in told
    assert "+USER 1234:1235" in told
    assert "there is no such file" in said(envlock(*words, "--check", tmp_path / "none"), 4)


def test_a_wheel_that_was_changed_in_the_context_is_refused(routes: Routes, engine: Engine, tmp_path: Path) -> None:
    context = tmp_path / "context"
    shutil.copytree(routes.context, context)
    wheel = next((context / "wheels").glob("tricky-*"))
    raw = wheel.read_bytes()
    wheel.unlink()
    wheel.write_bytes(raw[:-1] + b"X")
    done = docker_build(engine, context, f"{routes.tiny.lock.name}:bad")
    assert done.returncode != 0
    assert "is not the file that the list names" in done.stderr
    assert engine.image(f"{routes.tiny.lock.name}:bad") is None
