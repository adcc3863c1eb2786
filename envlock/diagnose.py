"""From what a failing build, container or host printed to what it means: whose fault, which exit status, what to do.

The patterns are data (`diagnoses.yaml`). What text alone cannot tell is given beside it, as `Evidence`: which libcuda was mapped
decides between image and host, and a GPU that is not among the spec's targets is the host's matter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import yaml

from envlock.errors import Exit, Finding

Fault = Literal["image", "host", "spec", "upstream", "network"]

TABLE = Path(__file__).with_name("diagnoses.yaml")
MOST_TEXT = 2**20
"""Characters looked at, from the end: output is not ours and may be endless, and what ended a process stands last."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known beside the text: the libcuda that was mapped (empty: unknown), and whether the GPU is one the spec names."""

    libcuda: str = ""
    gpu_is_target: bool | None = None


UNKNOWN = Evidence()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What some output means. `retry` says that another try may help."""

    id: str
    fault: Fault
    exit: Exit
    what: str
    why: str = ""
    hint: str = ""
    retry: bool = False

    @property
    def finding(self) -> Finding:
        """The same as a finding for people."""
        return Finding(self.id, "error", self.what, "", self.why, self.hint)


@dataclass(frozen=True, slots=True)
class _Row:
    id: str
    fault: str
    exit: Exit
    patterns: tuple[re.Pattern[str], ...]
    what: str
    why: str
    hint: str
    retry: bool


def diagnose(printed: str, evidence: Evidence = UNKNOWN) -> Diagnosis | None:
    """The diagnosis of some output, or None where nothing in it is known."""
    text = printed[-MOST_TEXT:]
    for row in _table():
        matches = [pattern.search(text) for pattern in row.patterns]
        if all(matches):
            return _filled(row, [match for match in matches if match is not None], evidence)
    return None


def diagnose_exit(status: int, printed: str, evidence: Evidence = UNKNOWN) -> Diagnosis | None:
    """The diagnosis of a process that ended with `status` (shells and engines report a signal N as 128 + N, Python as -N)."""
    signal = -status if status < 0 else status - 128 if 128 < status < 192 else 0
    found = diagnose(printed, evidence)
    if found is None and signal:
        return diagnose(f"the process ended by signal {signal}", evidence)
    return found


def exit_of(id_: str) -> Exit | None:
    """The exit status that goes with a diagnosis; None for an id that is not in the table."""
    return next((row.exit for row in _table() if row.id == id_), None)


def comes_with_image(libcuda: str) -> bool:
    """Whether a libcuda at this path was brought by the image: the container toolkit mounts the host's outside these folders."""
    return bool(re.search(r"/compat/|/cuda-compat|/cuda[-.\d]*/lib64/|/site-packages/|/stubs/", libcuda))


def _filled(row: _Row, matches: list[re.Match[str]], evidence: Evidence) -> Diagnosis:
    values = {name: value or "" for match in matches for name, value in match.groupdict().items()}
    for name in [name for name in values if name.endswith("_number")]:
        values[name.removesuffix("_number")] = _cuda_version(values.pop(name))
    what, why, hint = (_sentence(text, values) for text in (row.what, row.why, row.hint))
    return Diagnosis(row.id, _fault(row, evidence), row.exit, what, why, hint, row.retry)


def _sentence(text: str, values: dict[str, str]) -> str:
    """The text with its groups filled in; nothing where one of them matched nothing."""
    names = re.findall(r"\{(\w+)\}", text)
    if any(name in values and not values[name] for name in names):
        return ""
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), text)


def _fault(row: _Row, evidence: Evidence) -> Fault:
    match row.fault:
        case "libcuda":
            return "image" if comes_with_image(evidence.libcuda) else "host"
        case "gpu-targets":
            return "host" if evidence.gpu_is_target is False else "image"
        case "image" | "host" | "spec" | "upstream" | "network" as fault:
            return fault
    raise ValueError(f"diagnoses.yaml: {row.id}: unknown fault {row.fault!r}")


def _cuda_version(number: str) -> str:
    """CUDA's versions as one integer: 1000 for the major, 10 for the minor (11040 is 11.4)."""
    return f"{int(number) // 1000}.{int(number) % 1000 // 10}" if number else ""


@cache
def _table() -> tuple[_Row, ...]:
    return tuple(
        _Row(
            id=row["id"],
            fault=row["fault"],
            exit=Exit(row["exit"]),
            patterns=tuple(re.compile(pattern, re.IGNORECASE) for pattern in row["all"]),
            what=row["what"],
            why=row.get("why", ""),
            hint=row["hint"],
            retry=row.get("retry", False),
        )
        for row in yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    )
