"""The self-test as a whole: in a good environment all holds; each break of the environment fails its own check."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import numpy
import pytest
import torch
from selftest_run import Run

from envlock.runtime.settings import environment
from envlock.selftest import protocol

SCHEMA = json.loads(Path(protocol.__file__).with_name("report.schema.json").read_text())


def test_all_holds_where_all_is_as_it_should_be(good_run: Run) -> None:
    bad = {id_: check["why"] for id_, check in good_run.checks.items() if check["status"] not in ("pass", "unsupported")}
    assert bad == {}
    assert (good_run.status, good_run.report["verdict"]) == (0, "holds")


def test_the_report_is_as_its_schema_says(good_run: Run) -> None:
    jsonschema.validate(good_run.report, SCHEMA)


def test_every_announced_check_is_begun_and_reported_in_order(good_run: Run) -> None:
    announced = [check["id"] for check in good_run.lines[0]["checks"]]
    assert [line["id"] for line in good_run.lines if line["event"] == "begin"] == announced
    assert [check["id"] for check in good_run.report["checks"]] == announced
    assert len(set(announced)) == len(announced)


def test_a_torch_without_cuda_has_no_gpu_checks(good_run: Run) -> None:
    assert torch.version.cuda is None
    assert not [id_ for id_ in good_run.checks if ".gpu" in id_]


def test_every_check_says_what_it_proves(good_run: Run) -> None:
    assert all(check["title"] and check["proves"] for check in good_run.report["checks"])


def test_fingerprints_name_what_they_depend_on(good_run: Run) -> None:
    prints = [mark for check in good_run.report["checks"] for mark in check["fingerprints"]]
    assert len(prints) > 40
    for mark in prints:
        assert {"level", "selftest", "tf32", "cpu.vendor", "cpu.isa", "cpu.threads"} <= set(mark["depends"])
    assert len({mark["name"] for mark in prints}) > 40


BREAKS: list[tuple[str, dict[str, str | None], set[str]]] = [
    ("environment", {"CUBLAS_WORKSPACE_CONFIG": ":4096:8 "}, {"environment.variables", "environment.overrides"}),
    ("environment", {"NVIDIA_TF32_OVERRIDE": "1"}, {"environment.variables", "environment.overrides"}),
    ("environment", {"PYTHONHASHSEED": None}, {"environment.variables", "environment.hash-seed"}),
    ("environment", {"OPENBLAS_NUM_THREADS": "1"}, {"environment.variables", "environment.threads"}),
    (
        "environment",
        {"ATEN_CPU_CAPABILITY": "default", "PYTHONPATH": None, "LD_LIBRARY_PATH": "/usr/local/cuda/lib64"},
        {"environment.variables", "environment.cpu", "environment.hook", "environment.overrides"},
    ),
]


@pytest.mark.parametrize(("group", "changes", "fails"), BREAKS, ids=[next(iter(changes)) for _, changes, _ in BREAKS])
def test_a_broken_environment_fails_the_checks_that_are_there_for_it(
    selftest: Callable[..., Run], group: str, changes: dict[str, str | None], fails: set[str]
) -> None:
    # Without the hook the worker starts it itself: what is held to is ENVLOCK_*.
    run = selftest("--group", group, **changes)
    assert {id_ for id_, status in run.statuses().items() if status == "fail"} == fails
    assert run.status == 1


def lock(**changes: object) -> dict[str, object]:
    env = environment("strict", seed=7, threads=2, torch_version=torch.__version__, numpy_version=numpy.__version__)
    stack = {"torch": torch.__version__.partition("+")[0], "python": "3.11", "variant": "cpu", "platform": "linux/amd64"}
    base: dict[str, object] = {
        "stack": stack,
        "wheels": [],
        "environment": env,
        "determinism": {"level": "strict", "seed": 7, "threads": 2, "tf32": False},
    }
    return {**base, **changes}


def test_a_lock_is_held_against_what_is_here(selftest: Callable[..., Run], tmp_path: Path) -> None:
    wheels = [{"name": "torch", "version": "2.0.1"}, {"name": "numpy", "version": numpy.__version__}]
    wrong = lock(wheels=wheels, stack={**lock()["stack"], "torch": "2.0.1"}, run={"shm_size": "9000g"})  # type: ignore[dict-item]
    path = tmp_path / "lock.json"
    path.write_text(json.dumps(wrong))
    run = selftest("--group", "environment", "--lock", str(path))
    failed = {id_ for id_, status in run.statuses().items() if status == "fail"}
    assert failed == {"environment.versions", "environment.packages", "environment.shared-memory"}
    assert "2.0.1" in run.checks["environment.versions"]["why"]
    assert run.checks["environment.shared-memory"]["fault"] == "host"


def test_the_level_is_the_lock_s_unless_another_is_asked_for(selftest: Callable[..., Run], tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    path.write_text(json.dumps(lock(determinism={"level": "seeded", "seed": 3, "threads": 2, "tf32": True})))
    run = selftest("--lock", str(path), "--list", ENVLOCK_DETERMINISM=None)
    assert run.lines[0]["settings"] == {"level": "seeded", "seed": 3, "threads": 2, "tf32": True}
    run = selftest("--lock", str(path), "--list", "--level", "strict")
    assert run.lines[0]["settings"]["level"] == "strict"


def test_a_wrong_command_line_is_said_in_one_line(selftest: Callable[..., Run]) -> None:
    assert selftest("--group", "sedes").status == 2
    run = selftest("--lock", "/nowhere/lock.json")
    assert run.status == 2
    assert "there is no lock /nowhere/lock.json" in run.stderr


def test_without_torch_everything_says_so(selftest: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudnn.so.9: cannot open shared object file')\n")
    run = selftest("--group", "repeatability", PYTHONPATH=str(tmp_path))
    assert run.status == 8
    assert set(run.statuses().values()) == {"not-run"}
    assert "libcudnn.so.9" in next(iter(run.checks.values()))["why"]
