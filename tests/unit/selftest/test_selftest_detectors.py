"""Detectors against the real torch: a patched operation, a low precision, a training with another seed. Each passes and fails here."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

from envlock.selftest import kernels, measure, operations, precision, trainings
from envlock.selftest.checks import Context, Settings
from envlock.selftest.groups import compile as compile_checks
from envlock.selftest.groups import controls, repeatability, seeds, training
from envlock.selftest.kernels import Kernel

CPU = {"vendor": "v", "model": "m", "isa": "i", "threads": 2, "cores": 2}
STRICT = Context(Settings("strict", threads=2), {"cuda": None, "gpus": [], "cpu": CPU}, repeats=3)


@pytest.fixture
def no_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh processes give what this one gives."""

    def here(process: str, name: str, device: str) -> dict[str, object]:
        return repeatability.results([name], device)[name]

    monkeypatch.setattr(repeatability, "fresh_result", here)


@pytest.mark.usefixtures("no_children")
def test_an_operation_that_repeats_passes() -> None:
    found = repeatability.repeats("matmul", "cpu", STRICT)
    assert (found.status, found.outcome) == ("pass", "equal")


@pytest.mark.usefixtures("no_children")
def test_an_operation_patched_to_differ_in_one_bit_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    count = itertools.count()
    real = torch.Tensor.scatter_add

    def patched(*arguments: object, **options: object) -> torch.Tensor:
        result = real(*arguments, **options)  # type: ignore[arg-type]
        if next(count) == 4:
            with torch.no_grad():
                result.view(torch.int32)[3] ^= 1
        return result

    monkeypatch.setattr(torch.Tensor, "scatter_add", patched)
    found = repeatability.repeats("scatter_add", "cpu", STRICT)
    assert (found.status, found.outcome) == ("fail", "differs")


@pytest.mark.usefixtures("no_children")
def test_an_operation_that_torch_lacks_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.nn.functional, "scaled_dot_product_attention")
    assert repeatability.repeats("attention", "cpu", STRICT).status == "unsupported"


def test_a_fresh_process_that_differs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    other = {"value": "0" * 64, "refused": False}
    monkeypatch.setattr(repeatability, "fresh_result", lambda *_: other)
    found = repeatability.repeats("matmul", "cpu", STRICT)
    assert found.status == "fail"
    assert "fresh process 1" in found.why


def test_names_of_operations_are_their_own() -> None:
    names = [operation.name for operation in operations.OPERATIONS]
    assert len(set(names)) == len(names)


def test_gpus_of_one_model_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def gpu(index: int, model: str = "A") -> dict[str, object]:
        return {"index": index, "model": model, "capability": "8.0", "sm_count": 108, "memory": 1, "mig": "none"}

    def answers(wrong: str) -> object:
        def call(function: str, arguments: dict[str, str], timeout: float) -> dict[str, object]:
            value = "odd" if arguments["device"] == wrong else "same"
            return {operation.name: {"value": value, "refused": False} for operation in operations.OPERATIONS}

        return call

    context = Context(Settings("strict"), {"cuda": "12.4", "gpus": [gpu(0), gpu(1), gpu(2)], "cpu": CPU})
    monkeypatch.setattr(repeatability.children, "call", answers(""))
    assert repeatability.gpus_alike(context).status == "pass"
    monkeypatch.setattr(repeatability.children, "call", answers("cuda:2"))
    found = repeatability.gpus_alike(context)
    assert (found.status, found.fault) == ("fail", "host")
    assert "on GPU 2" in found.why
    mixed = Context(Settings("strict"), {"cuda": "12.4", "gpus": [gpu(0), gpu(1, "B")], "cpu": CPU})
    assert repeatability.gpus_alike(mixed).status == "unsupported"


def test_float32_is_exact_and_tf32_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(error < precision.FULL for error in precision.errors("cpu").values())
    real = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: real(_short(a), _short(b)))
    assert precision.matmul_error("cpu", 256) > precision.FULL


def _short(values: torch.Tensor) -> torch.Tensor:
    return precision.as_tf32(values) if values.dtype == torch.float32 else values


def test_sums_of_halves_in_short_parts_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from envlock.selftest.groups.settings import HALF_FULL

    assert precision.half_error("cpu", "float16") < HALF_FULL
    real = torch.Tensor.__matmul__

    def in_parts(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.dtype != torch.float16:
            return real(a, b)
        parts = [real(left, right) for left, right in zip(a.chunk(16, 1), b.chunk(16, 0), strict=True)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    monkeypatch.setattr(torch.Tensor, "__matmul__", in_parts)
    assert precision.half_error("cpu", "float16") > HALF_FULL


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("kernel", [k for k in kernels.KERNELS if not k.gpu_only], ids=lambda kernel: kernel.name)
def test_each_kernel_is_right_and_a_wrong_one_is_seen(kernel: Kernel) -> None:
    good = kernels.measure(kernel, "float32", "cpu")
    assert good.error <= good.bound
    calls = itertools.count()

    def once_wrong(operands: kernels.Operands) -> torch.Tensor:
        result = kernel.compute(operands)
        return result * 1.01 if next(calls) == 0 else result

    bad = kernels.measure(Kernel(kernel.name, kernel.library, once_wrong, kernel.dtypes, factor=kernel.factor), "float32", "cpu")
    assert not bad.error <= bad.bound


def test_a_kernel_that_gives_nan_is_wrong() -> None:
    bad = kernels.measure(Kernel("nan", "torch", lambda o: o.normal(4) * float("nan")), "float32", "cpu")
    assert not bad.error <= bad.bound


def test_what_is_not_there_is_lacking_and_what_broke_is_not() -> None:
    assert kernels.is_lacking("\"addmm_impl_cpu_\" not implemented for 'Half'")
    assert not kernels.is_lacking("CUDA error: operation not supported on this device")
    with pytest.raises(kernels.Lacking, match="no float3"):
        kernels.Operands("cpu", "float3", exact=False)


@pytest.mark.parametrize("kind", ["conv", "transformer"])
def test_a_resumed_training_ends_with_the_same_bits(kind: str) -> None:
    assert trainings.first_difference(trainings.whole(kind, "cpu", 6), trainings.resumed(kind, "cpu", 6)) == ""


@pytest.mark.parametrize("forgotten", ["optimizer", "cpu", "data"])
def test_a_training_resumed_without_a_part_of_its_state_is_seen(monkeypatch: pytest.MonkeyPatch, forgotten: str) -> None:
    def without(saved: dict[str, object], *arguments: object, **options: object) -> dict[str, object]:
        state = real(saved, *arguments, **options)  # type: ignore[arg-type]
        fresh = trainings.Training("conv", "cpu")
        state[forgotten] = {
            "optimizer": fresh._optimizer.state_dict(),
            "cpu": torch.get_rng_state(),
            "data": torch.Generator().manual_seed(0).get_state(),
        }[forgotten]
        return state

    real = torch.load
    whole = trainings.whole("conv", "cpu", 6)
    monkeypatch.setattr(torch, "load", without)
    parts = trainings.first_difference(whole, trainings.resumed("conv", "cpu", 6))
    assert parts.endswith("step 4")
    assert training.judge(whole, trainings.resumed("conv", "cpu", 6), "x", "cpu", STRICT, "resumed").status == "fail"


def test_fingerprints_that_were_blind_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert controls.fingerprints(STRICT).status == "pass"
    monkeypatch.setattr("envlock.runtime.fingerprints.fingerprint", lambda thing: "always")
    assert controls.fingerprints(STRICT).status == "fail"


def test_races_that_do_not_show_are_not_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "_races", lambda device: {"x": {"seen": False, "tries": 400}})
    found = controls.race("x", "cpu", STRICT)
    assert (found.status, found.outcome) == ("unsupported", "not-discriminating")
    monkeypatch.setattr(controls, "_races", lambda device: {"x": {"seen": True, "tries": 2}})
    assert controls.race("x", "cpu", STRICT).status == "pass"


@pytest.mark.parametrize(
    ("control", "blind"),
    [
        (controls.unseeded, [{"torch": "a"}, {"torch": "a"}]),
        (controls.workers_alike, [[{"worker": 0, "torch": "a"}, {"worker": 1, "torch": "b"}]]),
        (controls.low_precision, {"tf32": 0.0, "float32": 0.0}),
        (controls.training, {"seed": "", "weights": ""}),
    ],
    ids=["processes", "workers", "precision", "training"],
)
def test_a_blind_detector_fails_its_control(monkeypatch: pytest.MonkeyPatch, control: object, blind: object) -> None:
    monkeypatch.setattr(controls.children, "call", lambda *_, **__: blind)
    monkeypatch.setattr(controls.children, "call_each", lambda *_, **__: blind)
    assert control(STRICT).status == "fail"  # type: ignore[operator]


def test_a_blind_library_map_fails_its_control(monkeypatch: pytest.MonkeyPatch) -> None:
    assert controls.shadowed(STRICT).status == "pass"
    monkeypatch.setattr(controls.libraries, "judge", lambda paths: [])
    assert controls.shadowed(STRICT).status == "fail"


SEEDS: list[tuple[str, object, object]] = [
    ("libraries", {"untouched": {"torch": "a"}, "cuda": False, "ranks": []}, {"untouched": {"torch": "b"}, "cuda": False, "ranks": []}),
    ("untouched", {"cuda": True}, {"cuda": False}),
    ("ranks", {"ranks": [{"torch": "a"}, {"torch": "a"}]}, {"ranks": [{"torch": "a"}, {"torch": "a"}]}),
    ("ranks", {"ranks": [{"torch": "a"}, {"torch": "b"}]}, {"ranks": [{"torch": "a"}, {"torch": "c"}]}),
]


@pytest.mark.parametrize(("name", "first", "second"), SEEDS, ids=["libraries", "cuda", "alike", "unrepeatable"])
def test_seeds_that_do_not_hold_are_seen(monkeypatch: pytest.MonkeyPatch, name: str, first: object, second: object) -> None:
    monkeypatch.setattr(seeds, "_probes", lambda seed: (first, second))
    monkeypatch.setattr(seeds.children, "call", lambda *_, **__: {"torch": "a"})
    assert getattr(seeds, name)(STRICT).status == "fail"


def test_workers_that_draw_otherwise_in_another_run_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(*values: str) -> list[list[dict[str, object]]]:
        return [[{"worker": worker, "torch": value} for worker, value in enumerate(values)]]

    for first, second, status in (("ab", "ab", "pass"), ("ab", "ac", "fail"), ("aa", "aa", "fail")):
        monkeypatch.setattr(seeds, "_worker_draws", lambda f=first, s=second: ({"fork.map": drawn(*f)}, {"fork.map": drawn(*s)}))
        assert seeds.workers("fork", "map", STRICT).status == status


def test_children_that_draw_alike_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    import random

    from envlock.runtime.seeds import derive

    def child(python: str, torch_draw: str = "t") -> dict[str, str]:
        return {"python": python, "torch": torch_draw}

    own = {name: child(random.Random(derive(0, "process", name)).random().hex(), name) for name in ("S-1", "S-2")}
    fork = {"F-1": child("a"), "F-2": child("b")}
    cases: list[tuple[object, object, str]] = [
        ({"fork": fork, "spawn": own}, {"fork": fork}, "pass"),
        ({"fork": {"F-1": child("a"), "F-2": child("a")}, "spawn": own}, {"fork": fork}, "fail"),
        ({"fork": fork, "spawn": own}, {"fork": {"F-1": child("x"), "F-2": child("b")}}, "fail"),
        ({"fork": fork, "spawn": {**own, "S-2": child("z")}}, {"fork": fork}, "fail"),
    ]
    for first, second, status in cases:
        monkeypatch.setattr(seeds.children, "call_each", lambda calls, f=first, s=second: [f, s])
        assert seeds.processes(STRICT).status == status


def test_without_a_compiler_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    found = compile_checks.repeats("cumsum", "cpu", STRICT)
    assert (found.status, found.why) == ("unsupported", "no C++ compiler here; torch.compile cannot be used")


def test_compilations_that_differ_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_checks, "_obstacle", lambda: None)
    for first, second, status in ((["a", "a"], ["a", "a"], "pass"), (["a", "a"], ["a", "b"], "fail")):
        monkeypatch.setattr(compile_checks, "_compiled", lambda device, f=first, s=second: ({"cumsum": f}, {"cumsum": s}))
        assert compile_checks.repeats("cumsum", "cpu", STRICT).status == status
    for dropout, status in (("a", "pass"), ("b", "fail")):
        found = {"dropout": [dropout], "dropout-eager": ["a"]}
        monkeypatch.setattr(compile_checks, "_compiled", lambda device, found=found: (found, found))
        assert compile_checks.as_eager("cpu", STRICT).status == status


@pytest.fixture
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
def test_cost_and_spread_are_measured() -> None:
    found = measure.measured(operations.named("matmul"), "cpu", 3)
    assert found["spread"] == {"runs": 3, "distinct": 1, "largest": 0.0, "relative": 0.0}
    assert found["cost"]["low"] <= found["cost"]["ratio"] <= found["cost"]["high"]
    assert "refused" in measure.measured(operations.named("max_unpool2d"), "cpu", 2)


def test_spread_is_the_largest_difference() -> None:
    found = measure.spread([[torch.tensor([1.0, 4.0])], [torch.tensor([1.5, 4.0])], [torch.tensor([1.0, 4.0])]])
    assert (found.distinct, found.largest, found.relative) == (2, 0.5, 0.125)


def test_intervals_are_student_s() -> None:
    mean, half = measure.interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean == 3.0
    assert half == pytest.approx(2.776 * 1.5811388 / 5**0.5, rel=1e-4)


def test_a_ratio_has_an_interval_around_it() -> None:
    found = measure.compared([1.0] * 9, [2.0, 2.1, 1.9, 2.0, 2.2, 2.0, 1.8, 2.0, 2.0])
    assert found.ratio == 2.0
    assert 1.8 <= found.low <= 2.0 <= found.high <= 2.2
