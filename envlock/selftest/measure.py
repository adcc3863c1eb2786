"""What determinism costs, and how far results spread without it: the figures by which people decide whether it is worth it.

Costs are those of torch's flags, switched in one process and measured in turns, so that a slow minute hits both sides. Variables of the
environment (threads, instruction sets, cuBLAS workspaces) are as they are on both sides. Intervals are 95%: of a ratio by resampling
its rounds, of a mean by Student's t.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from envlock.selftest import children
from envlock.selftest.operations import OPERATIONS, Operation
from envlock.selftest.trainings import first_difference

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from envlock.selftest.checks import Context

ROUNDS = 9
SAMPLES = 2000
TRAININGS = 5
# 97.5% points of Student's t by degrees of freedom, 1 to 30; beyond, the normal distribution's is within 2%.
STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True)
class Cost:
    """Seconds with determinism off and on, their ratio with its interval."""

    off: float
    on: float
    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class Spread:
    """How far runs with determinism off lay apart: distinct results, and the largest difference, absolute and relative to the largest
    value."""

    runs: int
    distinct: int
    largest: float
    relative: float


def all_devices(context: Context) -> dict[str, Any]:
    """Measurements of the CPU and of the first GPU, each in a process of its own; one that dies says so in place of its figures."""
    devices = ["cpu", *(["cuda:0"] if context.facts.get("gpus") else [])]
    found: dict[str, Any] = {}
    for device in devices:
        try:
            found[device] = children.call("envlock.selftest.measure:measure", {"device": device, "runs": context.repeats}, timeout=1800)
        except children.ChildFailed as error:
            found[device] = {"error": error.why}
    return found


def measure(device: str, runs: int) -> dict[str, Any]:
    """Operations and trainings on a device."""
    operations = {operation.name: measured(operation, device, runs) for operation in OPERATIONS}
    return {"operations": operations, "trainings": {kind: training(kind, device) for kind in ("conv", "transformer")}}


def measured(operation: Operation, device: str, runs: int) -> dict[str, Any]:
    """Cost and spread of one operation; where determinism refuses it, `refused`, and where it is lacking, `lacking`."""
    from envlock.runtime.flags import deterministic

    try:
        with deterministic("off"):
            step = operation.step(device)
            apart = spread([step() for _ in range(runs)])
    except (AttributeError, NotImplementedError) as error:
        return {"lacking": str(error)}
    try:
        return {"spread": asdict(apart), "cost": asdict(cost(step, device))}
    except RuntimeError as error:
        return {"spread": asdict(apart), "refused": str(error).splitlines()[0]}


def cost(step: Callable[[], Any], device: str) -> Cost:
    """What determinism costs a step."""
    from envlock.runtime.flags import deterministic

    off: list[float] = []
    on: list[float] = []
    for number in range(ROUNDS + 1):
        for level, times in (("off", off), ("strict", on)):
            with deterministic(level):
                seconds = timed(step, device)
            if number:  # the first round is for caches to fill
                times.append(seconds)
    return compared(off, on)


def timed(step: Callable[[], Any], device: str) -> float:
    """Seconds for one step, its GPU work done."""
    import torch

    if device != "cpu":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    step()
    if device != "cpu":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def compared(off: Sequence[float], on: Sequence[float]) -> Cost:
    """Medians, and the ratio of each round's times with the interval of its median."""
    ratios = [second / first for first, second in zip(off, on)]  # noqa: B905
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(SAMPLES))
    low, high = medians[int(0.025 * SAMPLES)], medians[int(0.975 * SAMPLES)]
    return Cost(statistics.median(off), statistics.median(on), statistics.median(ratios), low, high)


def spread(results: Sequence[Sequence[Any]]) -> Spread:
    """How far apart results of the same computation lie."""
    from envlock.runtime.fingerprints import fingerprint

    distinct = len({fingerprint(list(result)) for result in results})
    largest, relative = 0.0, 0.0
    for place in range(len(results[0])):
        values = [result[place].detach().cpu().double() for result in results]
        if values[0].numel() == 0:
            continue
        apart = max(float((value - values[0]).abs().max()) for value in values)
        size = float(values[0].abs().max())
        largest, relative = max(largest, apart), max(relative, apart / size if size else 0.0)
    return Spread(len(results), distinct, largest, relative)


def training(kind: str, device: str) -> dict[str, Any]:
    """Cost of a training step, and the spread of trainings with determinism off."""
    from envlock.runtime.flags import deterministic
    from envlock.selftest.trainings import Training

    with deterministic("off"):
        runs = [[vars(step) for step in Training(kind, device).run(50)] for _ in range(TRAININGS)]
    losses = [float.fromhex(run[-1]["loss"]) for run in runs]
    parts = [number for number in (_first_step(runs[0], run) for run in runs[1:]) if number is not None]
    mean, half = interval(losses)
    found = {"runs": len(runs), "first_step_that_differs": min(parts) if parts else None}
    final = {"mean": mean, "low": mean - half, "high": mean + half, "largest_difference": max(losses) - min(losses)}
    one = Training(kind, device)
    try:
        return {**found, "final_loss": final, "cost": asdict(cost(lambda: one.run(1), device))}
    except RuntimeError as error:
        return {**found, "final_loss": final, "refused": str(error).splitlines()[0]}


def _first_step(one: list[dict[str, str]], other: list[dict[str, str]]) -> int | None:
    parts = first_difference(one, other)
    return int(parts.rpartition(" ")[2]) if parts else None


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean of some values, and half the width of its 95% interval."""
    degrees = len(values) - 1
    factor = STUDENT[degrees - 1] if degrees <= len(STUDENT) else 1.96
    return statistics.fmean(values), factor * statistics.stdev(values) / math.sqrt(len(values))
