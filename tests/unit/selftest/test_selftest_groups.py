"""Checks whose process or hardware is replaced: each passes on a good answer, and fails on a bad one."""

from __future__ import annotations

from typing import Any

import pytest

from envlock.selftest import kernels as kernel_matrix
from envlock.selftest.checks import Context, Settings
from envlock.selftest.groups import collectives, environment, kernels, settings
from envlock.selftest.kernels import KERNELS, Measured

CPU = {"vendor": "v", "model": "m", "isa": "i", "threads": 2, "cores": 2, "aten": "AVX2", "onednn": "Intel AVX2", "mkl": "AUTO"}
CPU |= {"mkl_threads": 2, "mkl_dynamic": False, "onednn_threads": 2}
GPUS = [{"index": n, "model": "H", "capability": "9.0", "sm_count": 132, "memory": 1, "mig": "none"} for n in range(2)]
FACTS: dict[str, Any] = {"cuda": "12.4", "gpus": GPUS, "cpu": CPU, "driver": "550.54.15", "torch": "2.5.1", "numpy": "2.4.6"}


def context(level: str = "strict", lock: dict[str, Any] | None = None, **changes: Any) -> Context:
    return Context(Settings(level, threads=2), {**FACTS, "platform": "linux/amd64", **changes}, lock)


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set what every fresh process answers."""

    def set_answer(value: Any) -> None:
        for module in (environment, settings, kernels):
            monkeypatch.setattr(module.children, "call", lambda *_, **__: value)

    return set_answer


def probe(monkeypatch: pytest.MonkeyPatch, **found: Any) -> None:
    monkeypatch.setattr(environment, "_probe", lambda: {"openblas_threads": {}, "openblas_cores": {}, **found})


@pytest.mark.parametrize(
    ("path", "user_site", "status"),
    [
        ("/opt/venv/lib/python3.11/site-packages/torch/__init__.py", False, "pass"),
        ("/home/me/.local/lib/python3.11/site-packages/torch.py", False, "fail"),
        ("/opt/venv/lib/python3.11/site-packages/torch/__init__.py", True, "fail"),
        ("/opt/venv2/torch/__init__.py", False, "fail"),
    ],
)
def test_torch_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, path: str, user_site: bool, status: str) -> None:
    probe(monkeypatch, imports={"files": {"torch": path}, "prefix": "/opt/venv", "user_site": user_site})
    assert environment.imports(context()).status == status


@pytest.mark.parametrize(
    ("found", "status"),
    [
        ({"loaded": "9.1.0", "compiled": "9.1.0", "package": "9.1.0.70"}, "pass"),
        ({"loaded": "9.1.0", "compiled": None, "package": None}, "pass"),
        ({"loaded": "8.9.2", "compiled": "9.1.0", "package": "9.1.0.70"}, "fail"),
    ],
)
def test_there_is_one_cudnn(monkeypatch: pytest.MonkeyPatch, found: dict[str, str | None], status: str) -> None:
    probe(monkeypatch, cudnn=found)
    outcome = environment.cudnn(context())
    assert outcome.status == status
    assert outcome.finding == (None if status == "pass" else "cudnn-shadowed")


@pytest.mark.parametrize(
    ("changes", "openblas", "status"),
    [
        ({}, {"numpy": 2}, "pass"),
        ({"threads": 1}, {}, "fail"),
        ({"mkl_threads": 8}, {}, "fail"),
        ({"mkl_dynamic": True}, {}, "fail"),
        ({}, {"numpy": 1}, "fail"),
    ],
)
def test_threads_are_asked_of_every_library(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], openblas: dict[str, int], status: str
) -> None:
    probe(monkeypatch, openblas_threads=openblas)
    assert environment.threads(context(cpu={**CPU, **changes})).status == status


@pytest.mark.parametrize(
    ("changes", "core", "status"),
    [
        ({}, "Haswell", "pass"),
        ({"aten": "AVX512"}, "Haswell", "fail"),
        ({"onednn": "Intel AVX-512"}, "Haswell", "fail"),
        ({}, "SkylakeX", "fail"),
    ],
)
def test_instruction_sets_are_asked_of_every_library(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], core: str, status: str
) -> None:
    probe(monkeypatch, openblas_cores={"numpy": core})
    monkeypatch.setattr(environment, "numpy_above", lambda disabled: [])
    assert environment.instruction_set(context(cpu={**CPU, **changes})).status == status


@pytest.mark.parametrize(
    ("paths", "status"), [(["/v/nvidia/cudnn/lib/libcudnn.so.9"], "pass"), (["/a/libcudnn.so.9", "/b/libcudnn.so.9"], "fail")]
)
def test_loaded_libraries_are_judged(monkeypatch: pytest.MonkeyPatch, paths: list[str], status: str) -> None:
    probe(monkeypatch, mapped=paths)
    assert environment.loaded(context()).status == status


def test_shared_memory_is_what_the_lock_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment.shutil, "disk_usage", lambda path: type("Usage", (), {"total": 2**30})())
    monkeypatch.setattr(environment.os, "access", lambda *_: True)
    assert environment.shared_memory(context(lock={"run": {"shm_size": "1g"}})).status == "pass"
    small = environment.shared_memory(context(lock={"run": {"shm_size": "8g"}}))
    assert (small.status, small.finding, small.fault) == ("fail", "shm-too-small", "host")


def test_flags_are_held_by_name(answer: Any) -> None:
    answer({"torch.backends.cudnn.benchmark": [False, False]})
    assert settings.flags(context()).status == "pass"
    answer({"torch.backends.cudnn.benchmark": [False, True]})
    assert "cudnn.benchmark is True" in settings.flags(context()).why


def test_warn_mode_is_not_the_strict_level(answer: Any) -> None:
    answer({"deterministic algorithms": ["raise", "warn"]})
    assert settings.flags(context()).status == "fail"


def test_the_hook_s_switch_means_what_torch_s_means(answer: Any) -> None:
    answer({"ours": {"enabled": True}, "public": {"enabled": True}})
    assert settings.public_switch(context()).status == "pass"
    answer({"ours": {"enabled": False}, "public": {"enabled": True}})
    assert settings.public_switch(context()).status == "fail"


def test_nothing_refused_is_a_failure(answer: Any) -> None:
    answer({"put": {"strict": True, "off": False}})
    assert settings.refuses("cpu", context()).status == "pass"
    answer({"put": {"strict": False, "off": False}})
    assert settings.refuses("cpu", context()).status == "fail"


def test_precision_is_held_on_every_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"set as here": {"matmul 256": 1e-7}, "lowered": {"matmul 256": 1e-7}, "half": {"float16": 1e-8}}
    bad = {"set as here": {"matmul 256": 1e-4}, "lowered": {"matmul 256": 1e-4}, "half": {"float16": 1e-4}}
    monkeypatch.setattr(settings, "measured", lambda place: good)
    assert settings.full_precision("cuda", "lowered", context()).status == "pass"
    assert settings.half_sums("cuda", context()).status == "pass"
    monkeypatch.setattr(settings, "measured", lambda place: bad if place == "cuda:1" else good)
    assert "cuda:1" in settings.full_precision("cuda", "set as here", context()).why
    assert settings.half_sums("cuda", context()).status == "fail"


def test_tf32_that_is_asked_for_is_not_held_against() -> None:
    asked = Context(Settings("strict", tf32=True), FACTS)
    assert settings.full_precision("cuda", "lowered", asked).status == "unsupported"


def test_cuda_starts_or_says_why_not() -> None:
    assert kernels.starts(context()).status == "pass"
    assert kernels.starts(context(gpus=[])).status == "not-run"
    old = kernels.starts(context(gpus=[], gpu_error="RuntimeError: The NVIDIA driver on your system is too old (found version 11040)"))
    assert (old.status, old.finding, old.fault) == ("fail", "driver-too-old", "host")


@pytest.mark.parametrize(
    ("codes", "lock", "status", "fault"),
    [
        (["sm_80", "sm_90"], None, "pass", None),
        (["sm_80"], None, "fail", "image"),
        (["sm_80"], {"stack": {"gpus": ["sm_80"]}}, "fail", "host"),
    ],
)
def test_the_wheel_has_code_for_every_gpu(
    monkeypatch: pytest.MonkeyPatch, codes: list[str], lock: dict[str, Any] | None, status: str, fault: str | None
) -> None:
    monkeypatch.setattr("torch.cuda.get_arch_list", lambda: codes)
    found = kernels.architecture(context(lock=lock))
    assert (found.status, found.fault) == (status, fault)


def test_one_bad_gpu_is_the_host_s_fault_and_all_are_the_image_s(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = KERNELS[0]
    monkeypatch.setattr(kernel_matrix, "measure", lambda kernel, dtype, place: Measured(1e-7, 1e-5))
    assert kernels.right(kernel, "float32", "cuda", context()).status == "pass"
    monkeypatch.setattr(kernel_matrix, "measure", lambda kernel, dtype, place: Measured(1.0 if place == "cuda:1" else 0.0, 1e-5))
    assert kernels.right(kernel, "float32", "cuda", context()).fault == "host"
    monkeypatch.setattr(kernel_matrix, "measure", lambda kernel, dtype, place: Measured(float("nan"), 1e-5))
    assert kernels.right(kernel, "float32", "cuda", context()).fault == "image"


@pytest.mark.parametrize(
    ("ptx", "usual", "ran", "status"),
    [
        (223, 0, {"matmul": "ran", "fp8": "lacking"}, "pass"),
        (223, 0, {"matmul": "failed: no kernel image"}, "fail"),
        (0, 0, {"matmul": "ran"}, "unsupported"),
        (223, 223, {"matmul": "ran"}, "unsupported"),
    ],
)
def test_native_code_is_shown_only_where_ptx_is_refused(
    monkeypatch: pytest.MonkeyPatch, ptx: int, usual: int, ran: dict[str, str], status: str
) -> None:
    def call(function: str, arguments: Any = None, *, env: dict[str, str | None], timeout: float = 1) -> Any:
        if function.endswith("run_all"):
            return ran
        return ptx if env.get("CUDA_DISABLE_PTX_JIT") == "1" else usual

    monkeypatch.setattr(kernels.children, "call", call)
    assert kernels.native_only(context()).status == status


def rank(**changes: Any) -> dict[str, Any]:
    base = {
        "world": 3,
        "collectives": {"all_reduce": ["a", "a"], "exact": ["e", "e"]},
        "orders": {"float": ["f", "g", "h"], "exact": ["e", "e", "e"]},
        "initial": "w",
        "gradients": ["1", "2"],
        "dropout": ["x", "y"],
    }
    return {**base, **changes}


OTHER_DROPOUT = {"dropout": ["p", "q"]}
COLLECTIVES: list[tuple[Any, dict[str, Any], dict[str, Any], str]] = [
    (collectives.repeated, {}, {}, "pass"),
    (collectives.repeated, {"collectives": {"all_reduce": ["a", "b"], "exact": ["e"]}}, {}, "fail"),
    (collectives.launched_again, {}, {}, "pass"),
    (collectives.launched_again, {}, {"collectives": {"all_reduce": ["z", "z"], "exact": ["e", "e"]}}, "fail"),
    (collectives.initial_weights, {}, {}, "pass"),
    (collectives.initial_weights, {"initial": "v"}, {}, "fail"),
    (collectives.ranks_differ, {}, {}, "pass"),
    (collectives.ranks_differ, {"dropout": ["x", "q"]}, {}, "fail"),
    (collectives.gradients, {}, {}, "pass"),
    (collectives.gradients, {}, {"gradients": ["1", "9"]}, "fail"),
    (collectives.exact_order, {}, {}, "pass"),
    (collectives.exact_order, {"orders": {"float": [], "exact": ["e", "d", "e"]}}, {}, "fail"),
    (collectives.control, {}, {}, "pass"),
    (collectives.control, {"orders": {"float": ["f"] * 3, "exact": ["e"] * 3}}, {}, "pass"),
]


@pytest.mark.parametrize(("check", "second_rank", "second_launch", "status"), COLLECTIVES)
def test_collectives_are_judged(
    monkeypatch: pytest.MonkeyPatch, check: Any, second_rank: dict[str, Any], second_launch: dict[str, Any], status: str
) -> None:
    def launch(number: int, backend: str, count: int) -> list[dict[str, Any]]:
        ranks = [rank(), rank(**OTHER_DROPOUT), rank(**{**OTHER_DROPOUT, "dropout": ["r", "s"], **second_rank})]
        return ranks if number == 1 else [{**each, **second_launch} for each in ranks]

    monkeypatch.setattr(collectives, "_launch", launch)
    assert check("gloo", context()).status == status


def test_two_ranks_show_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    same = {"float": ["f", "f"], "exact": ["e", "e"]}
    monkeypatch.setattr(collectives, "_launch", lambda *_: [rank(orders=same), rank(orders=same)])
    found = collectives.control("gloo", context())
    assert (found.status, found.outcome) == ("unsupported", "not-discriminating")
    assert "commute" in found.why
