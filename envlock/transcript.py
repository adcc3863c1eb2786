"""What a self-test in a container prints, read as it comes: events for live progress, and at the end everything that was said.

The output is not ours to trust: an image can print anything, of any length. Lines, texts, counts and nesting are bounded, and what
does not read as the protocol (selftest/protocol.py) is counted and passed over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, get_args

from envlock.report import Check, Fault, Fingerprint, Seen, Status

MOST_LINE = 16 * 2**20
MOST_CHECKS = 5000
MOST_TEXT = 4000
MOST_ITEMS = 2000
MOST_DEPTH = 6
MOST_STRAY = 64 * 2**10
MOST_INTEGER = 2**63


@dataclass(frozen=True, slots=True)
class Started:
    """What will run, and where."""

    selftest: str
    settings: dict[str, Any]
    facts: dict[str, Any]
    planned: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class Begun:
    """A check has started."""

    id: str


@dataclass(frozen=True, slots=True)
class Done:
    """A check has ended."""

    check: Check


Event = Started | Begun | Done


@dataclass(slots=True)
class Transcript:
    """Collects one self-test's output. Feed it pieces of stdout; `stray` keeps the last of what was not the protocol."""

    device: str = "cpu"
    started: Started | None = None
    checks: dict[str, Check] = field(default_factory=dict)
    measurements: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    finished: bool = False
    running: str | None = None
    stray: bytes = b""
    _rest: bytearray = field(default_factory=bytearray)
    _skipping: bool = False

    def feed(self, data: bytes) -> Iterator[Event]:
        """Take a piece of output and give the events that it completes."""
        self._rest += data
        if b"\n" in data:
            *lines, rest = bytes(self._rest).split(b"\n")
            self._rest = bytearray(rest)
            for line in lines[1:] if self._skipping else lines:
                event = self._line(line)
                if event is not None:
                    yield event
            self._skipping = False
        if len(self._rest) > MOST_LINE:
            self.set_aside(bytes(self._rest[-MOST_STRAY:]))
            self._rest, self._skipping = bytearray(), True

    def set_aside(self, data: bytes) -> None:
        """Keep what is not the protocol (stderr, a traceback), as far as its end is enough to diagnose it."""
        self.stray = (self.stray + data)[-MOST_STRAY:]

    def _line(self, line: bytes) -> Event | None:
        said = _object(line)
        if said is None:
            if line.strip():
                self.set_aside(line + b"\n")
            return None
        match said.get("event"):
            case "start":
                return self._start(said)
            case "begin":
                self.running = _text(said.get("id"))
                return Begun(self.running)
            case "check":
                return self._check(said)
            case "report":
                self.measurements = _mapping(said.get("measurements"))
                self.facts = _mapping(said.get("facts")) or self.facts
                self.finished = True
        return None

    def _start(self, said: dict[str, Any]) -> Started:
        planned = said.get("checks")
        rows = [row for row in planned if isinstance(row, dict)] if isinstance(planned, list) else []
        checks = tuple(check_of({**row, "status": "not-run"}, self.device) for row in rows[:MOST_CHECKS])
        facts, settings = _mapping(said.get("facts")), _mapping(said.get("settings"))
        self.started = Started(_text(said.get("selftest")), settings, facts, checks)
        self.facts = facts
        return self.started

    def _check(self, said: dict[str, Any]) -> Done | None:
        if len(self.checks) >= MOST_CHECKS or not isinstance(said.get("id"), str):
            return None
        check = check_of(said, self.device)
        self.checks[check.id] = check
        self.running = None
        return Done(check)


def check_of(said: dict[str, Any], device: str) -> Check:
    """A check from one line; what is missing is empty, what is of another kind is passed over."""
    status: Status = said["status"] if said.get("status") in get_args(Status) else "fail"
    outcome, fault = said.get("outcome"), said.get("fault")
    needs = said.get("needs")
    on_gpu = isinstance(needs, list) and any(need in ("gpu", "cuda", "gpus") for need in needs)
    fingerprints = said.get("fingerprints")
    rows = [row for row in fingerprints if isinstance(row, dict)] if isinstance(fingerprints, list) else []
    seconds = said.get("seconds")
    return Check(
        id=_text(said.get("id"))[:200],
        group=_text(said.get("group"))[:200] or "other",
        title=_text(said.get("title"))[:300] or _text(said.get("id"))[:200],
        proves=_text(said.get("proves")),
        device=device if on_gpu else "cpu",
        status=status,
        outcome=outcome if outcome in get_args(Seen) else None,
        finding=_text(said.get("finding")) or None,
        fault=fault if fault in get_args(Fault) else None,
        why=_text(said.get("why")),
        hint=_text(said.get("hint")),
        evidence=_mapping(said.get("evidence")),
        fingerprints=tuple(made for row in rows[:MOST_ITEMS] if (made := _fingerprint(row)) is not None),
        seconds=float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < 1e9 else 0.0,
    )


def _fingerprint(row: dict[str, Any]) -> Fingerprint | None:
    value, depends = row.get("value"), row.get("depends")
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-f]{64}", value) or not isinstance(depends, dict):
        return None
    fields = {_text(key): _text(inner) for key, inner in list(depends.items())[:MOST_ITEMS]}
    return Fingerprint(name=_text(row.get("name"))[:200], value=value, depends=fields)


def _object(line: bytes) -> dict[str, Any] | None:
    if not line.startswith(b"{") or len(line) > MOST_LINE:
        return None
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def _text(value: Any) -> str:
    """A text of bounded length, printable; empty for what is none."""
    if not isinstance(value, str):
        return "" if value is None or isinstance(value, dict | list) else str(value)[:MOST_TEXT]
    clean = "".join(letter if letter.isprintable() or letter == "\n" else "�" for letter in value[: MOST_TEXT + 1])
    return clean if len(clean) <= MOST_TEXT else clean[:MOST_TEXT] + "…"


def _mapping(value: Any) -> dict[str, Any]:
    plain = _bounded(value, MOST_DEPTH)
    return plain if isinstance(plain, dict) else {}


def _bounded(value: Any, depth: int) -> Any:
    """Plain data of bounded size, out of which nothing can be larger than a report should be."""
    if isinstance(value, dict):
        return {_text(key)[:200]: _bounded(inner, depth - 1) for key, inner in list(value.items())[:MOST_ITEMS]} if depth else {}
    if isinstance(value, list):
        return [_bounded(inner, depth - 1) for inner in value[:MOST_ITEMS]] if depth else []
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) < MOST_INTEGER else _text(value)
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)
    return _text(value)
