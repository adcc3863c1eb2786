"""A lock becomes a tagged image in a real engine, and the image is what the lock says."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tiny import Tiny, copied_store, envlock, launched, left_in, remove_images, result, said, stored_wheel

from envlock import dockerfile, locking
from envlock import lock as locks
from envlock.build import build_image
from envlock.bundle import open_bundle
from envlock.config import image_labels
from envlock.engine import Container, Engine
from envlock.lock import LockFile, Run
from envlock.progress import Silent
from envlock.store import Store

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from test_runtime_layer import stored

pytestmark = pytest.mark.network

HOLDS = ["virtual environment", "weighty 1", "2 smaller wheels", "self-test, start-up hook, lock"]


@contextmanager
def started(engine: Engine, image: str) -> Iterator[Container]:
    with engine.container(image, ["sleep", "infinity"]) as container:
        container.start()
        yield container


def output(container: Container, *command: str) -> str:
    ended = container.exec(command)
    assert ended.status == 0, ended.output
    return ended.output.decode()


def test_what_build_prints_is_what_the_engine_has(tiny_built: tuple[Tiny, Any], engine: Engine) -> None:
    tiny, printed = tiny_built
    assert list(printed) == ["image", "tags", "image_digest", "manifest_digest", "lock_digest", "layers", "seconds"]
    assert printed["image"] == tiny.tag
    assert printed["tags"] == [tiny.tag, f"{tiny.lock.name}:latest", f"{tiny.lock.name}:mine"]
    assert printed["lock_digest"] == tiny.lock.digest
    for tag in printed["tags"]:
        image = engine.image(tag)
        assert (image.digest, image.manifest_digest) == (printed["image_digest"], printed["manifest_digest"])
        assert list(image.diff_ids) == [layer["digest"] for layer in printed["layers"]]
    assert all(list(layer) == ["digest", "size", "holds", "state"] for layer in printed["layers"])
    base, *others = printed["layers"]
    assert base["holds"] == f"Debian bookworm, {len(tiny.lock.base.debs)} packages"
    assert [layer["holds"] for layer in others] == HOLDS
    assert {layer["state"] for layer in printed["layers"]} <= {"sent", "reused"}
    assert others[-1]["state"] == "sent"
    assert {"base", "venv", "fetch", "wheels", "runtime", "load", "total"} <= set(printed["seconds"])


def test_the_engines_images_are_listed(tiny_built: tuple[Tiny, Any]) -> None:
    tiny, printed = tiny_built
    (row,) = [image for image in result(envlock("images", "--json")) if image["lock_digest"] == tiny.lock.digest]
    assert list(row) == ["tags", "image_digest", "manifest_digest", "lock_digest", "size"]
    assert row["image_digest"] == printed["image_digest"]
    assert sorted(row["tags"]) == sorted(printed["tags"])
    assert tiny.tag in envlock("images").stdout


def test_what_was_built_is_kept_beside_the_lock(tiny_built: tuple[Tiny, Any], engine: Engine) -> None:
    tiny, printed = tiny_built
    kept = locks.read(tiny.lock_path)
    assert kept.lock == tiny.lock
    assert (kept.built.lock, kept.built.image_digest, kept.built.manifest_digest) == (
        tiny.lock.digest,
        printed["image_digest"],
        printed["manifest_digest"],
    )
    assert list(kept.built.diff_ids) == [layer["digest"] for layer in printed["layers"]]
    rendered = dockerfile.render(tiny.lock, open_bundle(tiny.lock.shipped, tiny.store))
    assert (tiny.folder / "tiny.Dockerfile").read_bytes() == rendered
    with started(engine, tiny.tag) as container:
        assert output(container, "cat", "/opt/envlock/Dockerfile").encode() == rendered
        # The digests of what was built are no part of the copy inside the image.
        assert output(container, "cat", "/opt/envlock/lock.json").encode() == tiny.lock.json_bytes


def test_an_unchanged_build_starts_and_sends_nothing(tiny_built: tuple[Tiny, Any], engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny, printed = tiny_built
    content, written = tiny.lock_path.read_bytes(), tiny.lock_path.stat().st_mtime_ns
    for what in ("container", "load_archive", "load_growing"):
        monkeypatch.setattr(Engine, what, lambda *_, **__: pytest.fail("the image is there"))
    engine.untag(f"{tiny.lock.name}:latest")
    again = build_image(locking.find_lock(tiny.lock_path), engine, tiny.store, Silent())
    assert again.image.digest == printed["image_digest"]
    assert again.sent == frozenset()
    assert "unchanged" in again.summary()
    assert {layer["state"] for layer in again.as_json()["layers"]} == {"reused"}
    assert (tiny.lock_path.read_bytes(), tiny.lock_path.stat().st_mtime_ns) == (content, written)
    assert engine.image(f"{tiny.lock.name}:latest").digest == printed["image_digest"]


def test_a_container_finds_what_the_lock_says(tiny_built: tuple[Tiny, Any], engine: Engine) -> None:
    tiny, _ = tiny_built
    image = engine.image(tiny.tag)
    assert image.environment == tiny.lock.environment
    assert image.labels.items() >= image_labels(tiny.lock).items()
    assert image.labels["org.opencontainers.image.title"] == tiny.lock.name
    assert image.labels["dev.envlock.lock.digest"] == tiny.lock.digest
    assert (image.user, image.workdir, image.command) == ("", "", ("python",))
    assert image.created == tiny.lock.epoch
    with started(engine, tiny.tag) as container:
        seen = json.loads(output(container, "python", "-c", "import json, os; print(json.dumps(dict(os.environ)))"))
        assert {name: seen[name] for name in tiny.lock.environment} == tiny.lock.environment
        assert seen["GREETING"] == 'a "b" $HOME \\ c'
        raw = output(container, "cat", "/opt/envlock/lock.json").encode()
        assert f"sha256:{hashlib.sha256(raw).hexdigest()}" == image.labels["dev.envlock.lock.digest"]
        where = "import sys, tiny, weighty, other; print(sys.executable, sys.prefix, tiny.__cached__, weighty.SIZE, other.double(21))"
        cached = "/opt/venv/lib/python3.11/site-packages/tiny/__pycache__/__init__.cpython-311.pyc"
        assert output(container, "python", "-c", where).split() == ["/opt/venv/bin/python", "/opt/venv", cached, "21", "42"]
        assert output(container, "test", "-f", cached) == ""
        assert output(container, "tiny-tool") == "tool of /opt/venv\n"
        assert output(container, "other-script") == "script\n"
        assert output(container, "sh", "-c", "command -v python") == "/opt/venv/bin/python\n"


def test_one_more_small_wheel_leaves_the_layers_below_as_they_are(tiny_built: tuple[Tiny, Any], engine: Engine) -> None:
    tiny, printed = tiny_built
    one_more = stored_wheel(tiny.store, tiny.folder, "late", {"late.py": "X = 1\n"})
    more = replace(tiny.with_lock(wheels=(*tiny.lock.wheels, one_more)), lock_path=tiny.folder / "more.lock.yaml").built(engine)
    assert [layer.diff_id for layer in more.image.layers[:3]] == [layer["digest"] for layer in printed["layers"][:3]]
    assert more.sent == {layer.diff_id for layer in more.image.layers[3:]}


def test_files_user_and_folder_of_the_spec(tiny_built: tuple[Tiny, Any], engine: Engine) -> None:
    tiny, _ = tiny_built
    files = (
        stored(tiny.store, "/workspace/src/train.py", b"print('trained')\n"),
        stored(tiny.store, "/workspace/src/run.sh", b"#!/bin/sh\nexec python train.py\n", executable=True),
    )
    changed = tiny.with_lock(files=files, run=Run(user="1234:1235", workdir="/workspace/src", shm_size="64m"))
    replace(changed, lock_path=tiny.folder / "files.lock.yaml").built(engine)
    with started(engine, changed.tag) as container:
        me = "id -u; id -g; id -un; pwd; echo $HOME"
        assert output(container, "sh", "-c", me).split() == ["1234", "1235", "user", "/workspace/src", "/home/user"]
        assert output(container, "./run.sh") == "trained\n"
        modes = output(container, "stat", "-c", "%a %u:%g", "train.py", "run.sh", ".").splitlines()
        assert modes == ["644 1234:1235", "755 1234:1235", "755 1234:1235"]
        assert output(container, "sh", "-c", "touch new && touch ~/new") == ""


SPEC = """\
name: {name}
python: "3.11"
stack: {{torch: "2.13.0", cuda: cpu}}
packages: [numpy]
requirements: [requirements.txt]
determinism: {{level: deterministic, seed: 11, threads: 2}}
env: {{DATA_ROOT: "/data with spaces"}}
files: [{{from: src/, to: /workspace/src}}, {{from: note.txt, to: /workspace/}}]
run: {{user: "1000", workdir: /workspace}}
"""


@dataclass(frozen=True)
class Project:
    """A folder with a spec and all that it names, its store, and what the first build of the spec printed."""

    folder: Path
    store: Store
    printed: Any

    @property
    def spec(self) -> Path:
        return self.folder / "spec.yaml"

    @property
    def lock(self) -> LockFile:
        return locks.read(self.folder / "spec.lock.yaml")

    def build(self) -> subprocess.CompletedProcess[str]:
        return envlock("build", self.spec, "--store", self.store.root, "--json")


@pytest.fixture(scope="module")
def project(tiny_session: Tiny, engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """An image with torch, built from a spec alone by the command line."""
    folder = tmp_path_factory.mktemp("project")
    store = copied_store(tiny_session.store, tmp_path_factory.mktemp("own") / "store")
    name = f"{tiny_session.lock.name}-torch"
    (folder / "spec.yaml").write_text(SPEC.format(name=name))
    (folder / "requirements.txt").write_text("safetensors  # a comment\n")
    (folder / "note.txt").write_text("a note\n")
    (folder / "src/__pycache__").mkdir(parents=True)
    (folder / "src/__pycache__/main.pyc").write_text("no")
    (folder / "src/main.py").write_text("import torch, safetensors\nprint(torch.arange(3).sum().item())\n")
    try:
        yield Project(folder, store, result(Project(folder, store, None).build()))
    finally:
        remove_images(engine, name)


def test_a_spec_without_a_lock_is_locked_and_built(project: Project, engine: Engine) -> None:
    lock = project.lock.lock
    assert {"torch", "numpy", "safetensors"} < {wheel.name for wheel in lock.wheels}
    assert [file.to for file in lock.files] == ["/workspace/note.txt", "/workspace/src/main.py"]
    assert project.printed["lock_digest"] == lock.digest
    left = {"note.txt", "requirements.txt", "spec.Dockerfile", "spec.lock.yaml", "spec.yaml", "src"}
    assert {path.name for path in project.folder.iterdir()} == left
    with started(engine, project.printed["image"]) as container:
        assert output(container, "python", "src/main.py") == "3\n"
        assert output(container, "printenv", "DATA_ROOT", "PYTHONHASHSEED").splitlines() == ["/data with spaces", "11"]
        assert output(container, "cat", "note.txt") == "a note\n"
        in_force = "import torch; print(torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), torch.initial_seed())"
        assert output(container, "python", "-c", in_force).split() == ["2", "True", "11"]


def test_a_spec_with_a_fresh_lock_is_unchanged(project: Project) -> None:
    again = result(project.build())
    assert {layer["state"] for layer in again["layers"]} == {"reused"}
    assert list(again["seconds"]) == ["total"]
    assert again["image_digest"] == project.printed["image_digest"]


@pytest.mark.parametrize(
    ("what", "file", "old", "new"),
    [
        ("the spec", "spec.yaml", "seed: 11", "seed: 12"),
        ("requirements.txt", "requirements.txt", "safetensors", "safetensors>=0.4"),
        ("/workspace/src/main.py", "src/main.py", "arange(3)", "arange(4)"),
    ],
)
def test_a_spec_that_changed_is_not_built_from_its_old_lock(project: Project, what: str, file: str, old: str, new: str) -> None:
    path = project.folder / file
    before = path.read_text()
    path.write_text(before.replace(old, new))
    try:
        told = said(project.build(), 4)
    finally:
        path.write_text(before)
    assert what in told
    assert "[lock-stale]" in told
    assert f"envlock lock {project.spec}" in " ".join(told.split())


def test_a_spec_is_locked_to_the_same_bytes_after_kills(project: Project, tmp_path: Path) -> None:
    path = tmp_path / "spec.lock.yaml"
    words = ("lock", project.spec, "--output", path, "--store", project.store.root)
    for seconds in (1.5, 3, 5):
        process = launched(*words)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=seconds)
        process.kill()
        process.communicate()
    said(envlock(*words), 0)
    assert path.read_bytes() == locks.dump(LockFile(lock=project.lock.lock))
    assert [other.name for other in tmp_path.iterdir()] == [path.name]
    assert left_in(project.store) == []
    assert project.store.verify() == ()
