"""What the files of a project say about its environment, each statement with its place, and what was left out and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from envlock.secrecy import redact_text


class Weight(IntEnum):
    """How directly a statement decides which build is installed; of two that contradict each other, the heavier one is taken.

    What weighs no more than `BASE` is told, and held against the others, but decides nothing by itself.
    """

    LABEL = 0
    ELSEWHERE = 1
    BASE = 2
    IMAGE = 3
    TOOL = 4
    INDEX = 5
    PIN = 6


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement: its value, the words that say it, and where they stand as `file:line`."""

    value: str
    words: str
    where: str
    weight: Weight = Weight.PIN


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something of a source that the spec does not hold."""

    what: str
    where: str
    why: str


@dataclass
class Said:
    """All that was read, in the order of the files.

    `torch` and `python` are versions (`2.5.1`, `2.5`) or specifiers (`>=2,<3`); `cuda` is a version as `12.4`, or `cpu`; `bases` are
    image references; `packages` requirement texts; `files` pairs of a path beside the spec and one in the image.
    """

    names: list[str] = field(default_factory=list)
    torch: list[Claim] = field(default_factory=list)
    cuda: list[Claim] = field(default_factory=list)
    python: list[Claim] = field(default_factory=list)
    bases: list[Claim] = field(default_factory=list)
    packages: list[Claim] = field(default_factory=list)
    apt: list[Claim] = field(default_factory=list)
    env: dict[str, Claim] = field(default_factory=dict)
    files: list[tuple[str, str]] = field(default_factory=list)
    user: str | None = None
    workdir: str | None = None
    left_out: list[LeftOut] = field(default_factory=list)

    def leave(self, what: str, where: str, why: str) -> None:
        """Note that something was left out; the same thing is noted once."""
        shown = shortened(redact_text(what))
        if all((known.what, known.why) != (shown, why) for known in self.left_out):
            self.left_out.append(LeftOut(shown, where, why))


def by_reason(left_out: Iterable[LeftOut]) -> dict[str, list[LeftOut]]:
    """What was left out under each reason, reasons in the order of their first use."""
    found: dict[str, list[LeftOut]] = {}
    for row in left_out:
        found.setdefault(row.why, []).append(row)
    return found


def texts_in(data: Any) -> list[str]:
    """The texts of a list in a file; none where it is no list."""
    return [item for item in data if isinstance(item, str)] if isinstance(data, list) else []


def cuda_of_tag(tag: str) -> str:
    """The CUDA version in the short form of indexes and local versions: `cu124` is 12.4."""
    digits = tag.removeprefix("cu")
    return f"{digits[:-1]}.{digits[-1]}"


def shortened(text: str, limit: int = 100) -> str:
    """The text on one line, cut where it is longer than `limit` characters."""
    plain = " ".join(text.split())
    return plain if len(plain) <= limit else plain[: limit - 1].rstrip() + "…"
