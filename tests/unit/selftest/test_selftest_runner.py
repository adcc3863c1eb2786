"""A check that dies, hangs or leaves CUDA broken: its own failure, and the others go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from selftest_run import Run

PLUGIN = """
import os, signal, sys, time
from envlock.selftest.checks import Check
from envlock.selftest.protocol import failed, passed

def aborts(context):
    sys.stderr.write("terminate called: no kernel image is available for execution on the device\\n")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGABRT)

def hangs(context):
    import subprocess
    subprocess.Popen(["sleep", "600"])
    time.sleep(600)

def raises(context):
    raise ValueError("third line\\nof many")

def broken_cuda(context):
    open(PIDS, "a").write(f"{os.getpid()}\\n")
    raise RuntimeError("CUDA error: an illegal memory access was encountered")

def after(context):
    open(PIDS, "a").write(f"{os.getpid()}\\n")
    print("noise on stdout")
    os.write(1, b"more noise\\n")
    return passed()

def leaves(context):
    os._exit(0)

PIDS = os.path.join(os.path.dirname(__file__), "pids")
CHECKS = [
    Check("aborts", "a", "a", aborts),
    Check("hangs", "b", "b", hangs, limit=2),
    Check("raises", "c", "c", raises),
    Check("broken-cuda", "d", "d", broken_cuda),
    Check("after", "e", "e", after),
    Check("leaves", "f", "f", leaves),
    Check("last", "g", "g", lambda context: passed("still here")),
]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plugin")


@pytest.fixture(scope="module")
def run(selftest: Callable[..., Run], folder: Path) -> Run:
    (folder / "checks.py").write_text(PLUGIN)
    return selftest("--group", "plugin", "--plugin", str(folder / "checks.py"))


def test_the_last_check_runs_whatever_happened_before_it(run: Run) -> None:
    assert run.checks["plugin.last"]["status"] == "pass"
    assert run.status == 1


def test_an_abort_is_the_check_s_failure_with_its_diagnosis(run: Run) -> None:
    check = run.checks["plugin.aborts"]
    assert (check["status"], check["outcome"], check["finding"], check["fault"]) == ("fail", "crashed", "no-kernel-image", "image")
    assert "SIGABRT" in check["why"]


def test_a_check_that_hangs_is_ended_with_all_it_started(run: Run) -> None:
    check = run.checks["plugin.hangs"]
    assert (check["status"], check["outcome"]) == ("fail", "timed-out")
    assert 2 <= check["seconds"] < 30


def test_an_exception_is_a_failure_that_says_its_line(run: Run) -> None:
    check = run.checks["plugin.raises"]
    assert check["why"] == "ValueError: third line"
    assert check["finding"] == "check-crashed"
    assert "of many" in check["evidence"]["printed"]


def test_a_process_whose_cuda_broke_is_not_used_again(run: Run, folder: Path) -> None:
    assert "illegal memory access" in run.checks["plugin.broken-cuda"]["why"]
    first, second = (folder / "pids").read_text().split()
    assert first != second


def test_noise_does_not_reach_the_lines(run: Run) -> None:
    assert run.checks["plugin.after"]["status"] == "pass"


def test_leaving_early_is_a_failure(run: Run) -> None:
    check = run.checks["plugin.leaves"]
    assert (check["status"], check["why"]) == ("fail", "the process ended with status 0")


def test_functions_named_repeat_are_repeated(selftest: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("""
import torch
calls = [0]
def repeat_same(device): return torch.ones(3, device=device)
def repeat_other(device):
    calls[0] += 1
    return torch.full((3,), float(calls[0]), device=device)
""")
    run = selftest("--group", "plugin", "--plugin", str(tmp_path / "mine.py"))
    assert run.statuses() == {"plugin.cpu.other": "fail", "plugin.cpu.same": "pass"}


@pytest.mark.parametrize("text", ["raise SystemExit(3)", "x = 1", "CHECKS = [1]", "def"], ids=["exits", "empty", "wrong", "syntax"])
def test_a_file_that_is_no_plugin_is_one_failure(selftest: Callable[..., Run], tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    run = selftest("--group", "plugin", "--plugin", str(tmp_path / "mine.py"))
    assert run.statuses() == {"plugin.load": "fail"}
    assert run.status == 1
