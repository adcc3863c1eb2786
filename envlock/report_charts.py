"""The two charts of a report as geometry: what determinism costs, and how far results spread without it. Templates draw them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST_ROWS = 40
CHART = 460.0
"""Width of the plotted area in pixels."""
SMALLEST = 1e-9
"""Left end of the spread's logarithmic axis: below float32's resolution (6e-8), so that one unit in the last place can be seen."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a chart: its name, where its mark ends (0 to CHART pixels), and the figure in words."""

    name: str
    end: float
    label: str
    tone: str


@dataclass(frozen=True, slots=True)
class Tick:
    """One line of the axis."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Rows and axis; `rows` is empty where nothing was measured."""

    rows: tuple[Row, ...]
    ticks: tuple[Tick, ...]
    base: float = 0.0


def cost_chart(measurements: Mapping[str, Any]) -> Chart:
    """Time with determinism over time without, one bar for each operation, 1 being no cost."""
    rows = [(_name(row), ratio, row) for row in _rows(measurements, "cost") if (ratio := _number(row, "ratio")) is not None]
    top = max([2.0, *(ratio for _, ratio, _ in rows)])
    scale = CHART / top
    made = tuple(
        Row(name, min(CHART, ratio * scale), f"{ratio:.2f}×{_times(row)}", "bad" if ratio > 2 else "warn" if ratio > 1.2 else "good")
        for name, ratio, row in rows
    )
    step = max(1, math.ceil(top / 6))
    ticks = tuple(Tick(value * scale, f"{value}×") for value in range(0, int(top) + 1, step))
    return Chart(made, ticks, base=scale)


def spread_chart(measurements: Mapping[str, Any]) -> Chart:
    """Largest relative difference between repeats without determinism, on a logarithmic axis; equal results lie at its left end."""
    rows = [(_name(row), size, row) for row in _rows(measurements, "spread") if (size := _number(row, "relative")) is not None]
    low, high = math.log10(SMALLEST), 0.0

    def place(size: float) -> float:
        return 0.0 if size <= 0 else CHART * min(1.0, max(0.02, (math.log10(size) - low) / (high - low)))

    made = tuple(
        Row(name, place(size), f"{size:.1e}{_repeats(row)}" if size > 0 else f"equal{_repeats(row)}", "warn" if size > 0 else "good")
        for name, size, row in rows
    )
    ticks = tuple(Tick(place(10.0**power), f"1e{power}") for power in range(int(low), 1, 3))
    return Chart(made, ticks)


def _rows(measurements: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    rows = measurements.get(key)
    return [row for row in rows if isinstance(row, Mapping)][:MOST_ROWS] if isinstance(rows, list) else []


def _name(row: Mapping[str, Any]) -> str:
    device = row.get("device")
    name = str(row.get("name", ""))
    return f"{name} ({device})" if device not in (None, "", "cpu") else name


def _number(row: Mapping[str, Any], key: str) -> float | None:
    value = row.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
        return None
    return float(value)


def _times(row: Mapping[str, Any]) -> str:
    """Both times in milliseconds, where they were given in seconds."""
    without, with_ = _number(row, "seconds_without"), _number(row, "seconds_with")
    return f"  {without * 1000:.2f} → {with_ * 1000:.2f} ms" if without is not None and with_ is not None else ""


def _repeats(row: Mapping[str, Any]) -> str:
    count = _number(row, "repeats")
    return f"  in {count:.0f} repeats" if count is not None else ""
