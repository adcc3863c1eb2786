"""Precision and determinism are in force: by what is computed, and only then by what flags say."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from envlock.runtime import settings as table
from envlock.selftest import children, precision
from envlock.selftest.checks import Check, Context
from envlock.selftest.operations import named
from envlock.selftest.protocol import Outcome, failed, passed, unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE = "envlock.selftest.groups.settings"
REFUSED = ("max_unpool2d", "put", "ctc_loss", "histc", "adaptive_max_pool2d", "kthvalue-ties")
"""Operations that torch refuses under the strict level, on one device or another, in one release or another."""
HALF_FULL = 2.0**-20
"""Largest error of a short type's product, beyond its last rounding, that counts as summed in float32."""


def checks(context: Context) -> tuple[Check, ...]:
    """The group's checks."""
    del context
    found = [
        Check("settings.flags", "Flags", "torch's flags are those of the level in a fresh process", flags, level="deterministic"),
        Check(
            "settings.public-switch",
            "Public switch",
            "the hook sets what torch.use_deterministic_algorithms sets",
            public_switch,
            level="deterministic",
        ),
        Check(
            "settings.cublas-workspace",
            "cuBLAS workspace",
            "the workspace is fixed before the process starts, to one of the two values that repeat",
            cublas_workspace,
            needs=("cuda",),
            level="deterministic",
        ),
    ]
    for device, label, needs in (("cpu", "cpu", ()), ("cuda", "gpu", ("gpu",))):
        proves = "an operation without a deterministic kernel is refused, not computed"
        found.append(Check(f"settings.refuses.{label}", f"Refusal, {label}", proves, partial(refuses, device), needs=needs, level="strict"))
        proves = "float32 is computed as float32: measured against float64"
        run = partial(full_precision, device, "set as here")
        found.append(Check(f"settings.precision.{label}", f"Precision, {label}", proves, run, needs=needs, level="deterministic"))
        proves = "float32 stays float32 when code asks for lower precision"
        run = partial(full_precision, device, "lowered")
        found.append(Check(f"settings.precision-kept.{label}", f"Precision kept, {label}", proves, run, needs=needs, level="deterministic"))
        proves = "products of float16 and bfloat16 are summed in float32"
        run = partial(half_sums, device)
        found.append(Check(f"settings.half-sums.{label}", f"Sums of halves, {label}", proves, run, needs=needs, level="deterministic"))
    return tuple(found)


def flags(context: Context) -> Outcome:
    settings = context.settings
    found = children.call(f"{HERE}:flags_here", {"level": settings.level, "tf32": settings.tf32, "threads": settings.threads})
    wrong = [f"{name} is {pair[1]!r}, not {pair[0]!r}" for name, pair in found.items() if pair[0] != pair[1]]
    evidence = {name: pair[1] for name, pair in found.items()}
    if wrong:
        return failed("; ".join(wrong), evidence=evidence, hint="see environment.hook; or code that runs at the start changes flags")
    return passed(f"{len(found)} flags", evidence=evidence)


def flags_here(level: str, tf32: bool, threads: int) -> dict[str, tuple[Any, Any]]:
    """Each flag's wanted and present value, as text or number."""
    import torch

    from envlock.runtime import flags

    wanted = flags.wanted(torch, level, tf32=tf32, threads=threads)
    found = flags.in_force(torch, wanted)
    return {name: (value, found[name]) for name, value in wanted.items()}


def public_switch(context: Context) -> Outcome:
    found = children.call(f"{HERE}:both_switches", {"level": context.settings.level})
    if found["ours"] != found["public"]:
        return failed("the hook's switch and torch's differ", evidence=found)
    return passed(evidence=found)


def both_switches(level: str) -> dict[str, dict[str, Any]]:
    """What is in force after the hook, and after torch's public switch was turned off and on."""
    import torch

    ours = _switch_state(torch)
    torch.use_deterministic_algorithms(False)
    torch.use_deterministic_algorithms(True, warn_only=level == "deterministic")
    return {"ours": ours, "public": _switch_state(torch)}


def _switch_state(torch: Any) -> dict[str, Any]:
    return {
        "enabled": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "debug_mode": torch.get_deterministic_debug_mode(),
    }


def cublas_workspace(context: Context) -> Outcome:
    found = children.call("envlock.selftest.groups.environment:environment_here")
    return judge_workspace(found, context.settings.level)


def judge_workspace(env: Mapping[str, str], level: str) -> Outcome:
    """Whether a process's first environment fixes the workspace."""
    value = env.get("CUBLAS_WORKSPACE_CONFIG", "")
    row = next(row for row in table.table().variables if row.name == "CUBLAS_WORKSPACE_CONFIG")
    assert row.allowed is not None
    if not row.allowed.holds(value):
        why = f"CUBLAS_WORKSPACE_CONFIG is {value!r} at the start; it must be {row.allowed.text} at the level {level}"
        return failed(why, finding="env-value", evidence={"value": value}, hint="set it before the process starts: later is too late")
    return passed(value)


def refuses(device: str, context: Context) -> Outcome:
    del context
    found = children.call(f"{HERE}:refusals", {"device": device})
    refused = [name for name, answer in found.items() if answer["strict"] and not answer["off"]]
    if not refused:
        hint = "torch's deterministic mode is not in force"
        return failed(f"nothing was refused, of {', '.join(found)}", outcome="differs", evidence=found, hint=hint)
    return passed(f"refused: {', '.join(refused)}", outcome="raises", evidence=found)


def refusals(device: str) -> dict[str, dict[str, bool]]:
    """For operations without a deterministic kernel: whether torch refuses them as set now, and with determinism off."""
    from envlock.runtime.flags import deterministic

    found = {}
    for name in REFUSED:
        try:
            strict = _refused(name, device)
            with deterministic("off"):
                found[name] = {"strict": strict, "off": _refused(name, device)}
        except AttributeError:
            continue
    return found


def _refused(name: str, device: str) -> bool:
    import torch

    from envlock.selftest.repeats import is_refusal

    try:
        if name == "put":
            torch.zeros(9, device=device).put_(torch.zeros(2, dtype=torch.int64, device=device), torch.ones(2, device=device))
        else:
            named(name).step(device)()
    except RuntimeError as error:
        if not is_refusal(error):
            raise
        return True
    return False


def full_precision(device: str, state: str, context: Context) -> Outcome:
    if context.settings.tf32:
        return unsupported("the lock allows TF32")
    found = {place: measured(place)[state] for place in places(device, context)}
    wrong = [
        f"{what} on {place}: {error:.1e}" for place, errors in found.items() for what, error in errors.items() if error > precision.FULL
    ]
    if wrong:
        hint = "set NVIDIA_TF32_OVERRIDE=0 at the start" if device == "cuda" else ""
        return failed(f"less exact than float32 (limit {precision.FULL:.1e}): {'; '.join(wrong)}", evidence=found, hint=hint)
    return passed(f"largest error {max(max(errors.values()) for errors in found.values()):.1e}", evidence=found)


@lru_cache(maxsize=None)  # noqa: UP033
def measured(place: str) -> dict[str, dict[str, float]]:
    """All errors of one device, measured in one fresh process."""
    found: dict[str, dict[str, float]] = children.call("envlock.selftest.precision:measure", {"device": place})
    return found


def places(device: str, context: Context) -> list[str]:
    """The CPU, or every GPU."""
    return ["cpu"] if device == "cpu" else [f"cuda:{gpu['index']}" for gpu in context.facts["gpus"]]


def half_sums(device: str, context: Context) -> Outcome:
    found = {f"{kind} on {place}": error for place in places(device, context) for kind, error in measured(place)["half"].items()}
    wrong = [f"{what}: {error:.1e}" for what, error in found.items() if error > HALF_FULL]
    if wrong:
        return failed(f"less exact than sums in float32 (limit {HALF_FULL:.1e}): {'; '.join(wrong)}", evidence=found)
    return passed(evidence=found)
