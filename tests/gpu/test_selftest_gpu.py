"""The whole self-test on a real GPU: `pytest -m gpu tests/gpu`. Skipped without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import envlock
from envlock.runtime.hook import pth_line
from envlock.runtime.settings import environment

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")]

LIB = str(Path(envlock.__file__).parents[1])
LIMIT = 180.0
"""Seconds for the usual groups on one data-center GPU."""


def run(folder: Path, *arguments: str, level: str = "strict") -> tuple[int, dict[str, Any], float]:
    import numpy

    (folder / "sitecustomize.py").write_text(pth_line(LIB))
    settings = environment(level, seed=7, threads=4, torch_version=torch.__version__, numpy_version=numpy.__version__)
    base = {name: value for name, value in os.environ.items() if not name.startswith(("ENVLOCK_", "OMP_"))}
    env = {**base, **settings, "PYTHONPATH": os.pathsep.join([str(folder), LIB])}
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "envlock.selftest", *arguments], env=env, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), time.monotonic() - began


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any], float]:
    return run(tmp_path_factory.mktemp("strict"))


def test_all_holds_on_this_gpu(strict: tuple[int, dict[str, Any], float]) -> None:
    status, report, _ = strict
    bad = {check["id"]: check["why"] for check in report["checks"] if check["status"] in ("fail", "not-run")}
    assert bad == {}
    assert status == 0


def test_the_usual_groups_take_less_than_three_minutes(strict: tuple[int, dict[str, Any], float]) -> None:
    assert strict[2] < LIMIT


def test_gpu_checks_ran(strict: tuple[int, dict[str, Any], float]) -> None:
    ran = [check["id"] for check in strict[1]["checks"] if ".gpu" in check["id"] and check["status"] == "pass"]
    assert len(ran) > 60


def test_some_race_shows_with_determinism_off(strict: tuple[int, dict[str, Any], float]) -> None:
    outcomes = {check["id"]: check["outcome"] for check in strict[1]["checks"] if check["id"].startswith("controls.races.gpu.")}
    assert "seen" in outcomes.values()


@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.device_count() < 2, reason="one GPU only")
def test_collectives_over_nccl(tmp_path: Path) -> None:
    status, report, _ = run(tmp_path, "--group", "collectives", "--nproc", str(min(8, torch.cuda.device_count())))
    assert {check["id"]: check["why"] for check in report["checks"] if check["status"] == "fail"} == {}
    assert status == 0
