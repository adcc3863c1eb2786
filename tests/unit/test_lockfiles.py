"""The committed locks of the examples: current against their specs, and such that this checkout can build them."""

from __future__ import annotations

from pathlib import Path

import pytest

from envlock import lock as locks
from envlock.bundle import open_bundle, own_shipped
from envlock.context import require_current
from envlock.dockerfile import render
from envlock.locking import lock_path_of, staleness
from envlock.spec import read_spec
from envlock.store import Store

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("spec", EXAMPLES, ids=lambda path: path.stem)
def test_the_lock_of_an_example_is_current(spec: Path, tmp_path: Path) -> None:
    path = lock_path_of(spec)
    found = locks.read(path)
    assert path.read_bytes() == locks.dump(found)
    assert staleness(read_spec(spec), spec.parent, found.lock) == []
    remedy = f"self-test, hook or templates changed: run `envlock lock examples/{spec.name}` and build it"
    assert found.lock.shipped == own_shipped(), remedy
    assert found.built is not None, remedy
    assert found.built.lock == found.lock.digest
    require_current(path.with_name(f"{spec.stem}.Dockerfile"), render(found.lock, open_bundle(found.lock.shipped, Store(tmp_path))))


@pytest.mark.parametrize("spec", EXAMPLES, ids=lambda path: path.stem)
def test_a_committed_lock_names_no_host_and_no_place(spec: Path) -> None:
    text = lock_path_of(spec).read_text()
    for word in ("://", "/root", "/home", "/work", "/tmp", "localhost"):
        assert word not in text


@pytest.mark.parametrize("spec", EXAMPLES, ids=lambda path: path.stem)
def test_a_dockerfile_fits_on_a_page(spec: Path) -> None:
    dockerfile = lock_path_of(spec).with_name(f"{spec.stem}.Dockerfile")
    assert len(dockerfile.read_text().splitlines()) < 60


def test_the_readme_shows_a_run_of_the_committed_lock() -> None:
    text = (ROOT / "README.md").read_text()
    file = locks.read(ROOT / "lockfiles" / "cpu.lock.yaml")
    assert file.built is not None
    assert file.lock.digest in text
    assert file.built.image_digest in text
