"""torch.compile gives the same bits: run again, and compiled again from empty caches. Needs a C++ compiler, and C's for GPUs."""

from __future__ import annotations

import os
import shutil
from functools import lru_cache, partial
from typing import Any

from envlock.selftest import children, compiled
from envlock.selftest.checks import Check, Context
from envlock.selftest.protocol import Outcome, failed, passed, unsupported
from envlock.selftest.repeats import Run, judge

FUNCTIONS = ("pointwise", "cumsum", "softmax", "layer_norm", "dropout")


def checks(context: Context) -> tuple[Check, ...]:
    """The group's checks."""
    del context
    found = []
    for device, label, needs in (("cpu", "cpu", ()), ("cuda:0", "gpu", ("gpu",))):
        for name in FUNCTIONS:
            proves = f"{name}, compiled twice from empty caches, gives the same bits each time, forward and backward"
            run = partial(repeats, name, device)
            found.append(Check(f"compile.{label}.{name}", f"{name}, {label}", proves, run, needs=needs, limit=1200))
        proves = "compiled dropout draws what eager mode draws, with fallback_random"
        run = partial(as_eager, device)
        found.append(Check(f"compile.{label}.dropout-as-eager", f"dropout as eager, {label}", proves, run, needs=needs, limit=1200))
    return tuple(found)


def compiler() -> str | None:
    """The compiler that torch.compile would use."""
    return shutil.which(os.environ.get("CXX") or "g++") or shutil.which("clang++")


@lru_cache(maxsize=None)  # noqa: UP033
def _compiled(device: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return compiled.fresh(device), compiled.fresh(device)


def _obstacle() -> Outcome | None:
    if compiler() is None:
        return unsupported("no C++ compiler here; torch.compile cannot be used", hint="add g++ to the spec's `apt:`")
    if not children.call("envlock.selftest.groups.compile:has_compile"):
        return unsupported("this torch has no torch.compile")
    return None


def has_compile() -> bool:
    """Whether this torch has torch.compile for this Python."""
    import torch

    if not hasattr(torch, "compile"):
        return False
    try:
        torch.compile(lambda x: x)
    except RuntimeError:
        return False
    return True


def repeats(name: str, device: str, context: Context) -> Outcome:
    blocked = _obstacle()
    if blocked is not None:
        return blocked
    runs = [
        Run(f"compilation {number}, run {place}", value)
        for number, found in enumerate(_compiled(device), start=1)
        for place, value in enumerate(found[name], start=1)
    ]
    return judge(runs, context, f"compile.{name}", device)


def as_eager(device: str, context: Context) -> Outcome:
    blocked = _obstacle()
    if blocked is not None:
        return blocked
    found, _ = _compiled(device)
    if found["dropout"][0] == found["dropout-eager"][0]:
        return passed(outcome="equal")
    why = "compiled dropout differs from eager dropout"
    if context.settings.level == "strict":
        return failed(why, outcome="differs", hint="compare runs of one mode only")
    return passed(why, outcome="differs")
