"""Small trainings give the same bits in each process, and when they are resumed in the middle."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

from envlock.runtime.fingerprints import fingerprint
from envlock.selftest import children
from envlock.selftest.checks import Check, Context
from envlock.selftest.protocol import Fingerprint, Outcome, failed, passed
from envlock.selftest.trainings import STEPS, first_difference

KINDS = ("conv", "transformer")


def checks(context: Context) -> tuple[Check, ...]:
    """The group's checks."""
    del context
    found = []
    for device, label, needs in (("cpu", "cpu", ()), ("cuda:0", "gpu", ("gpu",))):
        for kind in KINDS:
            proves = f"{STEPS} steps of a small {kind} model give the same losses, gradient norms and weights in two processes"
            run = partial(repeated, kind, device)
            found.append(Check(f"training.{label}.{kind}.repeats", f"{kind}, {label}", proves, run, needs=needs, level="seeded"))
            proves = f"a {kind} training that is stopped and resumed ends with the same weights"
            run = partial(resumed, kind, device)
            found.append(Check(f"training.{label}.{kind}.resumes", f"{kind} resumed, {label}", proves, run, needs=needs, level="seeded"))
    return tuple(found)


@lru_cache(maxsize=None)  # noqa: UP033
def _runs(device: str) -> tuple[dict[str, Any], dict[str, Any]]:
    wanted = [[f"{kind}.{how}" for kind in KINDS for how in hows] for hows in (["whole"], ["whole", "resumed"])]
    first, second = children.call_each([("envlock.selftest.trainings:all_of", {"device": device, "runs": runs}) for runs in wanted])
    return first, second


def repeated(kind: str, device: str, context: Context) -> Outcome:
    first, second = (found[f"{kind}.whole"] for found in _runs(device))
    return judge(first, second, f"training.{kind}", device, context, "two processes")


def resumed(kind: str, device: str, context: Context) -> Outcome:
    first, second = _runs(device)
    return judge(first[f"{kind}.whole"], second[f"{kind}.resumed"], f"training.{kind}", device, context, "the resumed training")


def judge(first: list[dict[str, str]], second: list[dict[str, str]], name: str, device: str, context: Context, what: str) -> Outcome:
    """Whether two trainings are one, by what the level promises."""
    ends = {"first": first[-1], "second": second[-1]}
    parts = first_difference(first, second)
    if not parts:
        found = (Fingerprint(name, fingerprint([list(step.values()) for step in first]), context.depends(device)),)
        return passed(f"{len(first)} steps, the same bits", outcome="equal", fingerprints=found)
    why = f"{what}: different from {parts} on"
    if context.settings.level == "strict":
        return failed(why, outcome="differs", fault="image", evidence=ends, hint="the group repeatability tells which operation differs")
    return passed(f"{why}; the level {context.settings.level} does not promise more", outcome="differs", evidence=ends)
