"""Figures of repeated runs: mean, spread and a 95 % interval, which is what to report where bits differ."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from envlock.errors import FileUnreadable

T_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's t for a two-sided 95 % interval, by degrees of freedom from 1 to 30. Source: NIST/SEMATECH e-Handbook, 1.3.6.7.2."""
NORMAL_95 = 1.960
MOST = 1e150
"""What is larger is no figure of an experiment, and its square no float."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure over repeats. `half_width` is half of the 95 % interval of the mean; None for a single run."""

    name: str
    values: tuple[float, ...]
    mean: float
    deviation: float | None
    half_width: float | None

    @property
    def text(self) -> str:
        """As a paper has it: `0.912 ± 0.004 (95 %, n = 5, s = 0.003)`."""
        if self.half_width is None or self.deviation is None:
            return f"{self.mean:.6g} (n = 1)"
        if self.deviation == 0:
            return f"{self.mean:.6g} in all {len(self.values)} runs"
        return f"{self.mean:.6g} ± {self.half_width:.2g} (95 %, n = {len(self.values)}, s = {self.deviation:.2g})"


def read_metrics(path: Path) -> dict[str, float]:
    """The numbers in a JSON file, by their path in it (`test.accuracy`). Raises `FileUnreadable`."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        hint = "write one JSON object with numbers into the outputs folder"
        raise FileUnreadable(f"cannot read metrics from {path.name}", why=str(error), hint=hint) from None
    return dict(_numbers(data, ""))


def summarise(runs: Sequence[Mapping[str, float]]) -> tuple[Metric, ...]:
    """Mean, sample standard deviation and 95 % interval (Student's t) of each figure that all runs have."""
    names = [name for name in (runs[0] if runs else {}) if all(name in run for run in runs)]
    return tuple(_metric(name, tuple(run[name] for run in runs)) for name in names)


def _metric(name: str, values: tuple[float, ...]) -> Metric:
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Metric(name, values, mean, None, None)
    deviation = 0.0 if len(set(values)) == 1 else statistics.stdev(values)
    return Metric(name, values, mean, deviation, _t(len(values) - 1) * deviation / math.sqrt(len(values)))


def _t(freedom: int) -> float:
    return T_95[freedom - 1] if freedom <= len(T_95) else NORMAL_95 + (T_95[-1] - NORMAL_95) * len(T_95) / freedom


def _numbers(value: Any, place: str) -> list[tuple[str, float]]:
    if isinstance(value, bool):
        return []
    if isinstance(value, int | float):
        return [(place or "value", float(value))] if abs(value) < MOST else []
    if isinstance(value, dict):
        return [found for key, inner in value.items() for found in _numbers(inner, f"{place}.{key}" if place else str(key))]
    if isinstance(value, list):
        return [found for index, inner in enumerate(value) for found in _numbers(inner, f"{place}[{index}]")]
    return []


def as_json(metric: Metric) -> dict[str, Any]:
    """Plain data, with the text that a paper needs."""
    return {**asdict(metric), "values": list(metric.values), "text": metric.text}
