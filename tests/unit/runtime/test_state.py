"""What is in force, and what a result depended on."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from fresh_process import Fresh

from envlock.runtime import hardware, settings, snapshot, snapshots


def whole_environment(level: str = "strict", **changes: str) -> dict[str, str]:
    import numpy

    env = settings.environment(level, seed=7, threads=2, torch_version=torch.__version__, numpy_version=numpy.__version__)
    return {**env, **changes}


def test_all_is_in_force_in_an_image(fresh: Fresh) -> None:
    done = fresh("import torch, json; from envlock.runtime import status; print(json.dumps(status()))", **whole_environment())
    found = json.loads(done.stdout)
    assert found["holds"], found
    assert (found["level"], found["seed"], found["active"]) == ("strict", 7, True)
    assert "torch" in found["set_up"]


def test_what_is_not_in_force_is_named(fresh: Fresh) -> None:
    code = """
import torch, json, os
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # too late
torch.backends.cudnn.benchmark = True
from envlock.runtime import status
print(json.dumps(status()))
"""
    done = fresh(code, **whole_environment(CUBLAS_WORKSPACE_CONFIG=":4096", PYTHONHASHSEED="8"))
    found = json.loads(done.stdout)
    assert not found["holds"]
    assert set(found["environment"]) == {"CUBLAS_WORKSPACE_CONFIG", "PYTHONHASHSEED"}
    assert set(found["flags"]) == {"torch.backends.cudnn.benchmark"}
    assert any("CUBLAS_WORKSPACE_CONFIG" in fault for fault in found["faults"])


def test_another_value_that_keeps_the_level_is_as_good(fresh: Fresh) -> None:
    code = "import torch, numpy; from envlock.runtime import status; print(status()['environment'])"
    assert fresh(code, **whole_environment(CUBLAS_WORKSPACE_CONFIG=":16:8")).stdout.strip() == "{}"


def test_a_snapshot_is_plain_data_with_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVLOCK_IMAGE_DIGEST", "sha256:abc")
    model = torch.nn.Linear(2, 2)
    found = snapshot(model)
    assert json.loads(json.dumps(found))["image_digest"] == "sha256:abc"
    assert found["seeds"]["torch"] == torch.initial_seed()
    with torch.no_grad():
        model.weight[0, 0] += 1
    assert snapshot(model)["weights"] != found["weights"]


def test_the_code_s_commit_and_whether_it_is_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
        subprocess.run(["git", "-C", str(tmp_path), *arguments], env={**os.environ, **identity}, check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "train.py").write_text("1")
    git("add", ".")
    git("commit", "-qm", "one")
    clean = snapshots.code_state(tmp_path)
    (tmp_path / "train.py").write_text("2")
    changed = snapshots.code_state(tmp_path)
    assert (len(clean["commit"]), clean["dirty"], changed["dirty"]) == (40, False, True)
    assert changed["commit"] == clean["commit"]


def test_code_outside_git_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert snapshots.code_state(tmp_path) == {"commit": None, "dirty": None}


def test_the_driver_is_read_from_either_kernel_module() -> None:
    closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
    open_ = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build  (dvs-builder@U16-I3)\n"
    assert (hardware.driver_in(closed), hardware.driver_in(open_), hardware.driver_in("")) == ("550.54.15", "570.86.10", None)


def test_a_mig_device_says_its_profile() -> None:
    assert hardware.mig_profile("NVIDIA H100 80GB HBM3 MIG 3g.40gb") == "3g.40gb"
    assert hardware.mig_profile("NVIDIA H100 80GB HBM3") == "none"


def test_memory_errors_are_read_by_gpu() -> None:
    assert hardware.ecc_counts("0, 0\n1, [N/A]\n") == {"GPU 0 memory errors": "0", "GPU 1 memory errors": "[N/A]"}
