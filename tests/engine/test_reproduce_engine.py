"""An image made again from its lock alone, by both routes, in a real engine; and what is said when something differs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny import Tiny, envlock, renamed, result, said

from envlock import lock as locks
from envlock.config import LOCK_LABEL
from envlock.engine import Engine
from envlock.foundation import debian_layer
from envlock.image import Settings, archive, make_image
from envlock.progress import Silent
from envlock.resolve.baseimage import resolve_archive

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def built(tiny_session: Tiny, engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    for tiny in renamed(tiny_session, engine, tmp_path_factory.mktemp("reproduce")):
        tiny.built(engine)
        yield tiny


@pytest.fixture(scope="module")
def reproduced(built: Tiny) -> Any:
    return result(envlock("reproduce", built.lock_path, "--via", "both", "--store-files", "--store", built.store.root, "--json"))


def test_both_routes_give_what_was_built(built: Tiny, reproduced: Any) -> None:
    assert reproduced["outcome"] == "reproduced"
    assembled, docker = reproduced["rebuilt"]
    recorded = locks.read(built.lock_path).built
    assert assembled["image_digest"] == recorded.image_digest
    assert assembled["rootfs_digest"] == docker["rootfs_digest"] == recorded.rootfs_digest
    assert reproduced["comparisons"] == []


def test_nothing_is_left_behind(built: Tiny, reproduced: Any, engine: Engine) -> None:
    tags = [tag for image in engine.images() if image.labels.get(LOCK_LABEL) == built.lock.digest for tag in image.tags]
    assert sorted(tags) == sorted([built.tag, f"{built.lock.name}:latest"])
    assert list((built.store.root / "work").glob("*/*")) == []
    log = built.store.root / "logs" / f"{built.lock.name}-{built.lock.short_digest}-dockerfile.log"
    assert b"RUN --mount=type=bind" in log.read_bytes()


def test_an_image_that_was_changed_is_explained_by_file(built: Tiny, engine: Engine) -> None:
    changed = f"{built.lock.name}:changed"
    module = "/opt/venv/lib/python3.11/site-packages/tiny/__init__.py"
    with engine.container(built.tag, ["sh", "-c", f"echo 'ANSWER = 43' > {module}; rm /usr/bin/env"]) as container:
        container.start()
        assert container.wait() == 0
        engine._api.commit(container.id, *changed.split(":"))
    words = ("diff", built.lock_path, changed, "--files")
    done = envlock(*words, "--json")
    said(done, 1)
    rows = {(row["path"], row["kind"]): row for row in json.loads(done.stdout)["files"]["differences"]}
    content = rows[module.lstrip("/"), "content"]
    assert (content["package"], content["layer"]) == ("tiny 1", "2 smaller wheels")
    assert (content["first"]["line"], content["first"]["one"], content["first"]["other"]) == (1, "ANSWER = 42", "ANSWER = 43")
    gone = rows["usr/bin/env", "missing"]
    assert gone["package"].startswith("coreutils ")
    assert gone["layer"].startswith("Debian bookworm, ")
    assert "line 1, byte 10: 'ANSWER = 42' against 'ANSWER = 43'" in envlock(*words).stdout


def test_docker_builds_it_beside_the_assembled_one(built: Tiny, reproduced: Any, engine: Engine, tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    words = ("build", built.lock_path, "--via", "dockerfile", "--rootfs", "--log", log, "--store", built.store.root, "--json")
    printed = result(envlock(*words))
    assert printed["image"] == f"{built.tag}-dockerfile"
    assert printed["rootfs_digest"] == reproduced["rebuilt"][0]["rootfs_digest"]
    assert engine.image(printed["image"]).labels[LOCK_LABEL] == built.lock.digest
    assert b"steps/wheels.sh" in log.read_bytes()
    assert engine.image(built.tag).digest == locks.read(built.lock_path).built.image_digest


def test_a_flipped_byte_is_named(built: Tiny, engine: Engine) -> None:
    wheel = next(wheel for wheel in built.lock.wheels if wheel.name == "tiny")
    path = built.store.path(wheel.sha256)
    raw = path.read_bytes()
    path.unlink()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    try:
        told = said(envlock("reproduce", built.lock_path, "--store-files", "--store", built.store.root), 6)
        assert f"{wheel.file} in the store is damaged" in told
    finally:
        path.unlink()
        path.write_bytes(raw)


def test_a_step_that_fails_shows_its_end_and_where_all_of_it_is(built: Tiny, tmp_path: Path, engine: Engine) -> None:
    broken = built.with_lock(installer=built.lock.wheels[0])  # which cannot install anything
    path = tmp_path / "broken.lock.yaml"
    path.write_bytes(locks.dump(locks.LockFile(lock=broken.lock)))
    done = envlock("build", path, "--via", "dockerfile", "--log", tmp_path / "log", "--store", built.store.root)
    assert done.returncode == 7
    assert "steps/wheels.sh" in done.stderr
    assert "No module named 'installer'" in done.stderr
    assert f"{tmp_path / 'log'} has all that its steps printed" in done.stderr
    assert b"No module named" in (tmp_path / "log").read_bytes()
    assert engine.image(f"{broken.tag}-dockerfile") is None


@pytest.mark.parametrize("kind", ["archive", "image"])
def test_a_base_image_comes_from_the_store(built: Tiny, engine: Engine, tmp_path: Path, kind: str) -> None:
    """The archive is gone, and no registry has the image any more."""
    layer = debian_layer(built.lock.base, built.store, Silent())
    image = make_image((layer,), Settings(engine.platform, 0, {"PATH": "/usr/bin:/bin"}, {}))
    path = tmp_path / "base.tar"
    with path.open("wb") as stream:
        stream.writelines(archive(image, ("some-base:1",), lambda layer: built.store.path(layer.diff_id[7:]).open("rb")))
    base = resolve_archive(path, "base.tar", engine.platform, built.store, Silent())
    path.unlink()
    reference = "base.tar" if kind == "archive" else "localhost:1/gone/base:1"
    other = built.with_lock(base=base.model_copy(update={"kind": kind, "reference": reference}))
    path = tmp_path / "base.lock.yaml"
    path.write_bytes(locks.dump(locks.LockFile(lock=other.lock)))
    found = result(envlock("reproduce", path, "--via", "both", "--store-files", "--store", built.store.root, "--json"))
    assert (found["outcome"], len(found["held"])) == ("reproduced", 1)
