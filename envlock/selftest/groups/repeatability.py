"""Operations give the same bits again: in one process, beside other work, in fresh processes, on every GPU of one model."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from envlock.selftest import children
from envlock.selftest.checks import Check, Context
from envlock.selftest.operations import OPERATIONS, named
from envlock.selftest.protocol import Outcome, failed, passed, unsupported
from envlock.selftest.repeats import Run, judge, noise, runs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

FRESH = ("fresh process 1", "fresh process 2")


def checks(context: Context) -> tuple[Check, ...]:
    """One check for each operation on the CPU and on the first GPU, and one that compares all GPUs."""
    del context
    found = []
    for device, label, needs in (("cpu", "cpu", ()), ("cuda:0", "gpu", ("gpu",))):
        for operation in OPERATIONS:
            proves = f"{operation.name} gives the same bits again on the {label.upper()}, forward and backward"
            run = partial(repeats, operation.name, device)
            found.append(Check(f"repeatability.{label}.{operation.name}", operation.name, proves, run, needs=needs))
    proves = "GPUs of one model give the same bits"
    found.append(Check("repeatability.gpu.all-alike", "GPUs alike", proves, gpus_alike, needs=("gpus",), limit=900))
    return tuple(found)


def repeats(name: str, device: str, context: Context) -> Outcome:
    try:
        step = named(name).step(device)
    except AttributeError as error:
        return unsupported(f"this torch lacks it: {error}")
    except RuntimeError as error:
        step = _refusing(error)
    runs = runs_of(step, "repeat", context.repeats)
    with noise(device):
        runs += runs_of(step, "beside other work", max(2, context.repeats // 4))
    runs += [_run(process, fresh_result(process, name, device)) for process in FRESH]
    return judge(runs, context, name, device)


def _refusing(error: RuntimeError) -> Any:
    """A step that refuses as its preparation did."""

    def step() -> Any:
        raise error

    return step


def _run(process: str, result: dict[str, Any]) -> Run:
    return Run(process, result["value"], result["refused"])


def fresh_result(process: str, name: str, device: str) -> dict[str, Any]:
    """What one operation came out as in a fresh process that ran them all; if that died, in one of its own."""
    together = _all_in_fresh_process(process, device)
    if name in together:
        return together[name]
    found: dict[str, Any] = children.call("envlock.selftest.groups.repeatability:results", {"names": [name], "device": device})[name]
    return found


@lru_cache(maxsize=None)  # noqa: UP033
def _all_in_fresh_process(process: str, device: str) -> dict[str, dict[str, Any]]:
    """Each operation once in one fresh process; empty where that process died. `process` names it, and keeps two apart."""
    del process
    names = [operation.name for operation in OPERATIONS]
    try:
        found: dict[str, dict[str, Any]] = children.call(
            "envlock.selftest.groups.repeatability:results", {"names": names, "device": device}
        )
    except children.ChildFailed:
        return {}
    return found


def results(names: Sequence[str], device: str) -> dict[str, dict[str, Any]]:
    """Each operation once, here: {name: {value, refused}}. One that this torch lacks or that fails is left out."""
    found = {}
    for name in names:
        try:
            step = named(name).step(device)
        except AttributeError:
            continue
        except RuntimeError as error:
            step = _refusing(error)
        try:
            run = runs_of(step, "run", 1)[0]
        except Exception:
            if len(names) == 1:
                raise
            continue
        found[name] = {"value": run.value, "refused": run.refused}
    return found


def gpus_alike(context: Context) -> Outcome:
    gpus = context.facts["gpus"]
    names = [operation.name for operation in OPERATIONS]
    first: dict[tuple[str, ...], tuple[int, dict[str, Any]]] = {}
    wrong = []
    for gpu in gpus:
        kind = tuple(str(gpu[key]) for key in ("model", "capability", "sm_count", "mig"))
        found = children.call(
            "envlock.selftest.groups.repeatability:results", {"names": names, "device": f"cuda:{gpu['index']}"}, timeout=600
        )
        if kind not in first:
            first[kind] = (gpu["index"], found)
            continue
        index, reference = first[kind]
        wrong += [f"{name} on GPU {gpu['index']}, against GPU {index}" for name in names if found.get(name) != reference.get(name)]
    evidence = {"models": [" ".join(kind) for kind in first], "gpus": len(gpus), "operations": len(names)}
    if len(first) == len(gpus):
        return unsupported("no two GPUs are of one model", evidence=evidence)
    if wrong and context.settings.level == "strict":
        hint = "test the GPU that is named most often with its vendor's diagnostics"
        return failed(f"different: {'; '.join(wrong[:8])}", outcome="differs", fault="host", hint=hint, evidence={**evidence, "odd": wrong})
    if wrong:
        return passed(f"different: {'; '.join(wrong[:8])}", outcome="differs", evidence={**evidence, "odd": wrong})
    return passed(f"{len(gpus)} GPUs, one result", outcome="equal", evidence=evidence)
