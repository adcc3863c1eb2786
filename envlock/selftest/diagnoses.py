"""Known faults, recognised by what libraries print. The rows are data, in diagnoses.json beside this file."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@dataclass(frozen=True)
class Diagnosis:
    """One known fault: `fault` is whose matter it is (`image`, `host`, or None where it depends)."""

    id: str
    fault: str | None
    printed: str
    hint: str
    source: str


@lru_cache
def rows() -> tuple[Diagnosis, ...]:
    """All known faults, those that are told apart first before the more general ones."""
    data = json.loads(Path(__file__).with_name("diagnoses.json").read_text(encoding="utf-8"))
    return tuple(Diagnosis(**row) for row in data["rows"])


def diagnose(printed: str) -> Diagnosis | None:
    """The first known fault that a text tells of."""
    return next((row for row in rows() if re.search(row.printed, printed)), None)
