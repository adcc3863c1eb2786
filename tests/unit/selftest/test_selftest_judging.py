"""Judging what was seen: each judgement passes where it should, and fails where it must."""

from __future__ import annotations

import json
import math

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from envlock.selftest import architectures, diagnoses, facts, libraries, loaders, printed, protocol, repeats, trainings
from envlock.selftest.checks import Check, Context, Settings, applies, obstacle
from envlock.selftest.groups import environment, settings
from envlock.selftest.groups import kernels as kernel_checks
from envlock.selftest.protocol import Outcome, passed
from envlock.selftest.repeats import Run, judge, odd_ones

CPU = {"vendor": "v", "model": "m", "isa": "i", "threads": 2, "cores": 2}


def context(level: str = "strict", **changes: object) -> Context:
    found = {"cuda": None, "gpus": [], "cpu": CPU, **changes}
    return Context(Settings(level, threads=2), found)


def runs(*values: str) -> list[Run]:
    return [Run(f"run {number}", value) for number, value in enumerate(values, start=1)]


@pytest.mark.parametrize(
    ("values", "odd"),
    [("aaa", []), ("aab", ["run 3"]), ("abb", ["run 1"]), ("ab", ["run 2"]), ("abab", ["run 2", "run 4"])],
)
def test_the_runs_that_differ_are_named(values: str, odd: list[str]) -> None:
    assert odd_ones(runs(*values)) == odd


@pytest.mark.parametrize(("level", "status"), [("strict", "fail"), ("deterministic", "pass"), ("seeded", "pass"), ("off", "pass")])
def test_a_silent_difference_fails_at_the_strict_level_and_is_named_below_it(level: str, status: str) -> None:
    found = judge(runs("a", "a", "b"), context(level), "x", "cpu")
    assert (found.status, found.outcome, found.fingerprints) == (status, "differs", ())
    assert "run 3" in found.why


def test_equal_runs_pass_with_their_fingerprint() -> None:
    found = judge(runs("a", "a"), context(), "x", "cpu")
    assert (found.status, found.outcome, found.fingerprints[0].value) == ("pass", "equal", "a")


def test_a_refusal_is_unsupported_but_not_when_only_some_runs_refuse() -> None:
    refused = [Run("run 1", "no deterministic kernel", refused=True), Run("run 2", "no deterministic kernel", refused=True)]
    assert judge(refused, context(), "x", "cpu").status == "unsupported"
    assert judge([*refused, Run("run 3", "a")], context(), "x", "cpu").status == "fail"


def test_a_missing_cublas_workspace_is_no_refusal() -> None:
    assert repeats.is_refusal(RuntimeError("put_ does not have a deterministic implementation"))
    assert not repeats.is_refusal(RuntimeError("Deterministic behavior was enabled … you must set CUBLAS_WORKSPACE_CONFIG=:4096:8"))


def test_values_are_compared_by_their_bits() -> None:
    nan, zero = torch.tensor([math.nan, 0.0]), torch.tensor([math.nan, -0.0])
    steps = iter([nan, nan, zero])
    found = repeats.runs_of(lambda: next(steps), "repeat", 3)
    assert odd_ones(found) == ["repeat 3"]


IMAGE = "/opt/venv/lib/python3.11/site-packages/nvidia"


@pytest.mark.parametrize(
    ("paths", "ids"),
    [
        ([], []),
        ([f"{IMAGE}/cudnn/lib/libcudnn.so.9", f"{IMAGE}/cudnn/lib/libcudnn_ops.so.9", f"{IMAGE}/cublas/lib/libcublas.so.12"], []),
        (["/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15"], []),
        ([f"{IMAGE}/cudnn/lib/libcudnn.so.9", "/lib/x86_64-linux-gnu/libcudnn_engines_tensor_ir.so.9"], ["cudnn-shadowed"]),
        (["/usr/local/cuda-11.3/compat/libcuda.so.465.19.01"], ["compat-in-image"]),
        (["/usr/local/cuda/lib64/stubs/libcuda.so"], ["libcuda-stub"]),
        ([f"{IMAGE}/nvjitlink/lib/libnvJitLink.so.12", "/usr/local/cuda/lib64/libnvJitLink.so.12"], ["nvjitlink-shadowed"]),
        ([f"{IMAGE}/nccl/lib/libnccl.so.2", "/usr/lib/libnccl.so.2"], ["nccl-shadowed"]),
        ([f"{IMAGE}/cublas/lib/libcublasLt.so.12", "/usr/local/cuda/lib64/libcublas.so.12"], ["cublas-shadowed"]),
    ],
)
def test_libraries_come_from_one_place_each(paths: list[str], ids: list[str]) -> None:
    found = libraries.judge(paths)
    assert [fault.id for fault in found] == ids
    if ids and ids[0].endswith("-shadowed"):
        assert all(path.rsplit("/", 1)[0] in found[0].what for path in paths)


@pytest.mark.parametrize(
    ("printed_text", "id_", "fault"),
    [
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040)", "driver-too-old", "host"),
        ("Error 804: forward compatibility was attempted on non supported HW", "compat-unsupported-gpu", "image"),
        ("Error 803: system has unsupported display driver / cuda driver combination", "compat-driver-mismatch", None),
        ("Failed to initialize NVML: Driver/library version mismatch", "driver-library-mismatch", "host"),
        ("Failed to initialize NVML: Unknown Error", "gpu-lost", "host"),
        ("Error 500: named symbol not found", "wsl-toolkit-old", "host"),
        ("DataLoader worker (pid 37) is killed by signal: Bus error", "shm-too-small", "host"),
        ("CUDA driver is a stub library", "libcuda-stub", "image"),
        ("CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH", "cudnn-shadowed", "image"),
        ("libcudnn_ops_infer.so.8: cannot open shared object file", "cudnn-missing", "image"),
        ("undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12", "nvjitlink-shadowed", "image"),
        ("undefined symbol: ncclCommRegister", "nccl-shadowed", "image"),
        ("operator torchvision::nms does not exist", "torchvision-abi", "image"),
        ("_ARRAY_API not found", "numpy-abi", "image"),
        ("no kernel image is available for execution on the device", "no-kernel-image", "image"),
        ("exec format error", "wrong-platform", "image"),
    ],
)
def test_known_faults_are_recognised(printed_text: str, id_: str, fault: str | None) -> None:
    found = diagnoses.diagnose(f"Traceback …\n{printed_text}\n")
    assert found is not None
    assert (found.id, found.fault) == (id_, fault)
    assert found.hint


def test_other_text_is_no_known_fault() -> None:
    assert diagnoses.diagnose("ValueError: shapes do not match") is None


@pytest.mark.parametrize(
    ("codes", "capability", "cuda", "code"),
    [
        (["sm_80", "sm_86", "sm_90"], "8.9", "12.4", "sm_86"),
        (["sm_50", "sm_80"], "12.0", "12.4", None),
        (["sm_80", "compute_80"], "9.0", "12.4", None),
        (["sm_100", "sm_120"], "10.3", "13.0", "sm_100"),
        (["sm_120"], "12.1", "13.0", "sm_120"),
        (["sm_80"], "8.7", "12.4", None),
        (["sm_80"], "8.7", "13.2", "sm_80"),
        (["sm_90a"], "9.0", "12.4", "sm_90a"),
        (["sm_70"], "7.5", "12.4", "sm_70"),
        (["sm_75"], "7.0", "12.4", None),
    ],
)
def test_which_device_runs_which_code(codes: list[str], capability: str, cuda: str, code: str | None) -> None:
    assert architectures.native_code(codes, capability, cuda) == code


@pytest.mark.parametrize(
    ("value", "status"), [(":4096:8", "pass"), (":16:8", "pass"), (":4096:8 ", "fail"), ("", "fail"), (":4096", "fail")]
)
def test_the_cublas_workspace_is_one_of_two(value: str, status: str) -> None:
    assert settings.judge_workspace({"CUBLAS_WORKSPACE_CONFIG": value}, "strict").status == status


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        ({"GPU 0 memory errors": "0"}, {"GPU 0 memory errors": "0"}, "pass"),
        ({"GPU 0 memory errors": "[N/A]"}, {"GPU 0 memory errors": "[N/A]"}, "pass"),
        ({"GPU 0 memory errors": "0", "Xid lines": 1}, {"GPU 0 memory errors": "0", "Xid lines": 2}, "fail"),
        ({"GPU 0 memory errors": "0"}, {"GPU 0 memory errors": "4"}, "fail"),
        (None, {}, "unsupported"),
    ],
)
def test_a_gpu_whose_errors_grow_is_unhealthy(before: dict[str, object] | None, after: dict[str, object], status: str) -> None:
    assert kernel_checks.judge_health(before, after).status == status


@pytest.mark.parametrize(("number", "version"), [(8500, "8.5.0"), (8902, "8.9.2"), (90100, "9.1.0"), (91002, "9.10.2"), (91300, "9.13.0")])
def test_cudnn_numbers_are_versions(number: int, version: str) -> None:
    assert environment.cudnn_version(number) == version


def test_versions_are_compared_as_far_as_the_lock_goes() -> None:
    wanted = {"torch": "2.5.1", "python": "3.11", "cuda": "12.4"}
    assert environment.differences(wanted, {"torch": "2.5.1+cu124", "python": "3.11.2", "cuda": "12.4"}) == []
    wrong = environment.differences(wanted, {"torch": "2.5.0", "python": "3.12.1", "cuda": None})
    assert [line.split()[0] for line in wrong] == ["torch", "python", "cuda"]


def test_names_of_packages_are_compared_as_indexes_write_them() -> None:
    assert environment.normal_name("Typing_Extensions") == environment.normal_name("typing-extensions")


def test_sizes_are_read_as_docker_reads_them() -> None:
    assert [environment.size_in_bytes(text) for text in ("8g", "512m", "64k", "100")] == [8 * 2**30, 512 * 2**20, 64 * 2**10, 100]


def test_numpy_above_the_cap_is_seen() -> None:
    import numpy

    above = [name for name in numpy._core._multiarray_umath.__cpu_dispatch__ if numpy._core._multiarray_umath.__cpu_features__[name]]
    assert environment.numpy_above(" ".join(above)) == above
    assert environment.numpy_above("NO_SUCH_FEATURE") == []


MKL = "MKL_VERBOSE SGEMM(N,N,300,300) 6.77ms CNR:AUTO Dyn:0 FastMM:1 TID:0  NThr:4\n"
ONEDNN = "onednn_verbose,v1,info,cpu,runtime:OpenMP,nthr:4\nonednn_verbose,v1,info,cpu,isa:Intel AVX2\n"


def test_what_libraries_say_is_read() -> None:
    said = MKL + ONEDNN
    assert (printed.mkl_branch(said), printed.mkl_threads(said), printed.mkl_dynamic(said)) == ("AUTO", 4, False)
    assert (printed.onednn_isa(said), printed.onednn_threads(said)) == ("Intel AVX2", 4)
    assert (printed.mkl_branch(""), printed.onednn_isa("onednn_verbose,info,cpu,isa:AVX\n")) == (None, "AVX")


def test_where_mkl_chooses_by_itself_what_it_can_choose_from_is_part_of_the_key() -> None:
    asked = {"aten": "AVX2", "onednn": "Intel AVX2", "mkl": "AUTO"}
    assert facts.isa_in_force(asked, wide=True) != facts.isa_in_force(asked, wide=False)
    assert facts.isa_in_force({**asked, "mkl": "AVX2"}, wide=True) == facts.isa_in_force({**asked, "mkl": "AVX2"}, wide=False)


def sample(worker: int, **values: str) -> dict[str, object]:
    return {"worker": worker, **values}


def test_workers_that_draw_alike_are_seen() -> None:
    fine = [[sample(0, torch="a"), sample(1, torch="b")], [sample(0, torch="c"), sample(1, torch="d")]]
    alike = [[sample(0, torch="a"), sample(1, torch="a")], [sample(0, torch="c"), sample(1, torch="d")]]
    epochs = [[sample(0, torch="a"), sample(1, torch="b")]] * 2
    idle = [[sample(0, torch="a"), sample(0, torch="b")]]
    assert loaders.faults(fine) == []
    assert loaders.faults(alike) == ["torch: 1 of 4 draws are repeats"]
    assert loaders.faults(epochs) == ["torch: 2 of 4 draws are repeats"]
    assert loaders.faults(idle) == ["not every worker drew"]


def test_where_trainings_part_is_named() -> None:
    step = {"loss": "1", "norm": "2", "weights": "3"}
    assert trainings.first_difference([step, step], [step, step]) == ""
    assert trainings.first_difference([step, step], [step, {**step, "norm": "9"}]) == "norm at step 2"
    assert trainings.first_difference([step], [step, step]) == "the number of steps"


def check(*needs: str, level: str = "off") -> Check:
    return Check("x.y", "t", "p", lambda _: passed(), needs=needs, level=level)


GPU = {"index": 0, "model": "H", "capability": "9.0", "sm_count": 132, "memory": 1, "mig": "none"}


@pytest.mark.parametrize(
    ("needs", "found", "applicable", "status"),
    [
        (("gpu",), {}, False, None),
        (("gpu",), {"cuda": "12.4"}, True, "not-run"),
        (("gpu",), {"cuda": "12.4", "gpus": [GPU]}, True, None),
        (("gpus",), {"cuda": "12.4", "gpus": [GPU]}, True, "unsupported"),
        (("cuda",), {"cuda": "12.4"}, True, None),
        (("lock",), {}, False, None),
        ((), {"error": "ImportError"}, True, "not-run"),
    ],
)
def test_what_applies_and_what_stands_in_the_way(
    needs: tuple[str, ...], found: dict[str, object], applicable: bool, status: str | None
) -> None:
    here = context(**found)
    assert applies(check(*needs), here) is applicable
    if applicable:
        blocked = obstacle(check(*needs), here)
        assert (None if blocked is None else blocked.status) == status


def test_a_level_promises_what_lower_ones_do_and_no_more() -> None:
    assert applies(check(level="seeded"), context("strict"))
    assert not applies(check(level="strict"), context("deterministic"))


def test_a_gpu_s_fingerprints_depend_on_its_model_and_sm_count() -> None:
    found = context(cuda="12.4", gpus=[GPU]).depends("cuda:0")
    assert (found["gpu.model"], found["gpu.sm_count"], found["gpu.mig"]) == ("H", "132", "none")
    assert not any(key.startswith("cpu.") for key in found)


@pytest.mark.parametrize(
    ("statuses", "verdict", "status"),
    [
        (["pass", "unsupported"], "holds", 0),
        (["pass", "not-run"], "inconclusive", 8),
        (["pass", "not-run", "fail"], "fails", 1),
        ([], "inconclusive", 8),
    ],
)
def test_the_verdict(statuses: list[str], verdict: str, status: int) -> None:
    assert protocol.verdict([{"status": each} for each in statuses]) == (verdict, status)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(json_like)
def test_a_line_is_one_line_of_json_whatever_the_evidence(evidence: object) -> None:
    line = protocol.dumps("check", evidence={"x": evidence})
    assert "\n" not in line
    assert json.loads(line)["event"] == "check"


def test_every_outcome_that_the_schema_knows_is_ours() -> None:
    from pathlib import Path

    schema = json.loads(Path(protocol.__file__).with_name("report.schema.json").read_text())
    known = schema["$defs"]["check"]["properties"]
    assert tuple(known["outcome"]["enum"][1:]) == protocol.OUTCOMES
    assert tuple(known["status"]["enum"]) == protocol.STATUSES
    assert set(Outcome("pass").__dataclass_fields__) <= set(known)


def test_the_list_of_known_prints_covers_the_cases(request: pytest.FixtureRequest) -> None:
    root = request.config.rootpath
    found = [path for path in (folder / "shared/cases/diagnoses.yaml" for folder in (root, root.parent)) if path.is_file()]
    if not found:
        pytest.skip("no shared cases beside this checkout")
    ids = {row["id"] for row in yaml.safe_load(found[0].read_text())}
    assert {row.id for row in diagnoses.rows()} <= ids | {"illegal-instruction"}
