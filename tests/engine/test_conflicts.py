"""Wheels that bring different bytes to one path: neither route decides which of them wins."""

from __future__ import annotations

import pytest
from tiny import Tiny, envlock, said, stored_wheel

from envlock.engine import Engine

pytestmark = pytest.mark.network


def test_both_routes_refuse_and_name_the_path(tiny: Tiny, engine: Engine) -> None:
    clash = stored_wheel(tiny.store, tiny.folder, "clash", {"tiny/__init__.py": "ANSWER = 43\n"})
    clashing = tiny.with_lock(wheels=(*tiny.lock.wheels, clash))
    path = clashing.written()
    assembled = said(envlock("build", path, "--store", tiny.store.root), 3)
    assert "[file-conflict]" in assembled
    assert "tiny 1 and clash bring different files to one path" in assembled
    by_docker = said(envlock("build", path, "--via", "dockerfile", "--store", tiny.store.root), 7)
    assert "would be written twice, with different" in by_docker
    for told in (assembled, by_docker):
        assert "/opt/venv/lib/python3.11/site-packages/tiny/__init__.py" in told
    assert engine.image(clashing.tag) is None
