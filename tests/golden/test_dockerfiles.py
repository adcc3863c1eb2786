"""The rendered Dockerfile of each kind of lock, as a person reads it. To accept a change: ENVLOCK_UPDATE_GOLDEN=1 pytest tests/golden"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from envlock.bundle import own_bundle, read_bundle
from envlock.dockerfile import render
from envlock.lock import Lock

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from sample_locks import ARCHIVE, LASTING, REGISTRY, cpu_lock, cuda_lock

LOCKS = {
    "cpu": cpu_lock(),
    "cuda": cuda_lock(),
    "image-base": cuda_lock(base=REGISTRY, apt=None),
    "archive-base": cpu_lock(base=ARCHIVE),
    "lasting-base": cpu_lock(base=LASTING),
}


@pytest.mark.parametrize("name", LOCKS)
def test_dockerfile(name: str) -> None:
    lock: Lock = LOCKS[name]
    kept = Path(__file__).parent / f"{name}.Dockerfile"
    rendered = render(lock, read_bundle(own_bundle())).decode()
    if os.environ.get("ENVLOCK_UPDATE_GOLDEN"):
        kept.write_text(rendered)
    assert rendered == kept.read_text()


def test_no_other_file_is_kept() -> None:
    assert sorted(path.name for path in Path(__file__).parent.glob("*.Dockerfile")) == sorted(f"{name}.Dockerfile" for name in LOCKS)
