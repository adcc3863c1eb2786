"""The two charts of a report as geometry: what determinism costs, and how far results spread without it. Templates draw them.

The figures are those of the self-test's measure.py: by device, by operation or training, `cost` and `spread`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MOST_ROWS = 24
CHART = 460.0
"""Width of the plotted area in pixels."""
SMALLEST = 1e-9
"""Left end of the spread's logarithmic axis: below float32's resolution (6e-8), so that one unit in the last place can be seen."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a chart: its name, where its mark and its interval end (0 to CHART pixels), and the figure in words."""

    name: str
    end: float
    label: str
    tone: str
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Tick:
    """One line of the axis."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Rows, the largest first, and axis; `rows` is empty where nothing was measured, `more` says in words what has no row."""

    rows: tuple[Row, ...]
    ticks: tuple[Tick, ...]
    base: float = 0.0
    more: str = ""


@dataclass(frozen=True, slots=True)
class _Measured:
    name: str
    figures: Mapping[str, Any]


def cost_chart(measurements: Mapping[str, Any]) -> Chart:
    """Time with determinism over time without, one bar for each operation, 1 being no cost."""
    measured = list(_measured(measurements))
    rows = [(ratio, item) for item in measured if (ratio := _number(item.figures, "cost", "ratio")) is not None]
    rows.sort(key=lambda row: (-row[0], row[1].name))
    # Not by the intervals: one wide one, from a busy machine, would press all bars together.
    top = max(2.0, 1.25 * rows[0][0]) if rows else 2.0
    scale = CHART / top
    made = tuple(_cost_row(ratio, item, scale) for ratio, item in rows[:MOST_ROWS])
    step = max(1, math.ceil(top / 6))
    ticks = tuple(Tick(value * scale, f"{value}×") for value in range(0, int(top) + 1, step))
    refused = [item.name for item in measured if "refused" in item.figures]
    words = [f"{len(rows) - MOST_ROWS} with smaller ratios have no bar"] if len(rows) > MOST_ROWS else []
    words += [f"refused, since there is no deterministic kernel: {', '.join(refused)}"] if refused else []
    return Chart(made, ticks, base=scale, more="; ".join(words))


def _cost_row(ratio: float, item: _Measured, scale: float) -> Row:
    off, on = _number(item.figures, "cost", "off"), _number(item.figures, "cost", "on")
    low, high = _number(item.figures, "cost", "low"), _number(item.figures, "cost", "high")
    times = f"  {off * 1000:.3g} → {on * 1000:.3g} ms" if off is not None and on is not None else ""
    interval = (min(CHART, low * scale), min(CHART, high * scale)) if low is not None and high is not None else None
    tone = "bad" if ratio > 2 else "warn" if ratio > 1.2 else "good"
    return Row(item.name, min(CHART, ratio * scale), f"{ratio:.2f}×{times}", tone, interval)


def spread_chart(measurements: Mapping[str, Any]) -> Chart:
    """Largest relative difference between repeats without determinism, on a logarithmic axis; equal results have no row."""
    rows = [(size, item) for item in _measured(measurements) if (size := _number(item.figures, "spread", "relative")) is not None]
    varying = sorted(((size, item) for size, item in rows if size > 0), key=lambda row: (-row[0], row[1].name))
    low = math.log10(SMALLEST)

    def place(size: float) -> float:
        return CHART * min(1.0, max(0.02, 1 - math.log10(size) / low))

    made = tuple(Row(item.name, place(size), _spread_label(size, item), "warn") for size, item in varying[:MOST_ROWS])
    ticks = tuple(Tick(place(10.0**power), f"1e{power}") for power in range(int(low), 1, 3))
    equal = len(rows) - len(varying)
    return Chart(made, ticks, more=f"{equal} of {len(rows)} operations gave the same bits in every repeat" if rows else "")


def _spread_label(size: float, item: _Measured) -> str:
    distinct, runs = _number(item.figures, "spread", "distinct"), _number(item.figures, "spread", "runs")
    return f"{size:.1e}" + (f"  {distinct:.0f} results in {runs:.0f} runs" if distinct and runs else "")


def _measured(measurements: Mapping[str, Any]) -> Iterator[_Measured]:
    """Everything that has figures; what a self-test of another version wrote otherwise is passed over."""
    for device, kinds in measurements.items():
        for kind, word in (("operations", ""), ("trainings", "training ")):
            rows = kinds.get(kind) if isinstance(kinds, Mapping) else None
            for name, figures in rows.items() if isinstance(rows, Mapping) else ():
                if isinstance(figures, Mapping):
                    yield _Measured(f"{word}{name}, {device}", figures)


def _number(figures: Mapping[str, Any], part: str, key: str) -> float | None:
    inner = figures.get(part)
    value = inner.get(key) if isinstance(inner, Mapping) else None
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
        return None
    return float(value)
