"""What the self-test prints: one JSON object per line on stdout, nothing else; narration of libraries goes to stderr.

Every line has an `event`; unknown keys and unknown events are to be passed over, so that both sides can grow.

    {"event": "start", "protocol": 1, "selftest": "1", "settings": {"level", "seed", "threads", "tf32"}, "facts": {…},
     "checks": [{"id", "group", "title", "proves", "needs"}, …]}
        printed once it is known what will run: every check that can follow, in order.
    {"event": "begin", "id", "group"}
        a check has started; a check whose process died has a `begin`, and a `check` line that says so.
    {"event": "check", "id", "group", "title", "proves", "needs", "status", "outcome", "finding", "fault", "why", "hint",
     "evidence": {…}, "fingerprints": [{"name", "value", "depends": {…}}], "seconds"}
        one check is done.
    {"event": "report", "protocol", "selftest", "settings", "facts", "checks": [… the check lines …], "summary": {…}, "verdict",
     "exit", "seconds", "measurements": {…}}
        the last line: everything once more as a whole; report.schema.json beside this file describes it. A stream that ends
        without it was cut off: what was printed before it still holds.

status
    `pass`; `fail`; `unsupported`: there is nothing to hold here (an op raises under the strict level, the hardware lacks a number
    format, a negative control could not be provoked); `not-run`: it could not be tried here, `why` says what is missing. Fails make
    the verdict `fails` (exit 1); else a `not-run` makes it `inconclusive` (exit 8); else it is `holds` (exit 0).
outcome
    what was seen where a status alone does not tell: `equal`, `raises`, `differs`; of a negative control `seen`,
    `not-discriminating`; `crashed`, `timed-out`; or null.
    At the levels below strict an op that differs passes with `differs`: nothing was promised, and the report names it.
finding, fault
    a kebab-case id of a known fault (`cudnn-shadowed`), and whether the image or the host is at fault: `image`, `host` or null.
fingerprints
    `value` is the sha256 of bits that were computed. `depends` holds all fields, with their values here, that these bits may differ
    with; the image digest is to be added by who knows it. Equal `depends` promise an equal `value`, and nothing else does. Fields:
    level, tf32, selftest; cpu.vendor, cpu.isa, cpu.threads; gpu.model, gpu.capability, gpu.sm_count, gpu.mig; world.size,
    world.backend.
facts
    python, platform, torch, numpy, cuda (of the build; null for none), cpu {vendor, model, isa, threads, cores}, driver, gpus
    [{index, model, capability, sm_count, memory, mig}], and `error` where torch cannot be imported.
summary
    counts by status, and the ids that people ask for: {"pass": n, "fail": n, "unsupported": n, "not-run": n, "differs": [ids],
    "not_discriminating": [ids]}
exit status
    0, 1 and 8 as above; 2 for a wrong command line; 130 when interrupted (the report so far is printed, its verdict `interrupted`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

PROTOCOL = 1
SELFTEST = "1"
"""Version of the computations behind the fingerprints: fingerprints of two versions are not to be compared."""

STATUSES = ("pass", "fail", "unsupported", "not-run")
OUTCOMES = ("equal", "raises", "differs", "seen", "not-discriminating", "crashed", "timed-out")


@dataclass(frozen=True)
class Fingerprint:
    """The hash of bits that a check computed, and what these bits may differ with."""

    name: str
    value: str
    depends: dict[str, str]


@dataclass(frozen=True)
class Outcome:
    """What a check found. Made by `passed`, `failed`, `unsupported` and `not_run`."""

    status: str
    why: str = ""
    outcome: str | None = None
    finding: str | None = None
    fault: str | None = None
    hint: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    fingerprints: tuple[Fingerprint, ...] = ()


def passed(why: str = "", **more: Any) -> Outcome:
    """What the check proves is so."""
    return Outcome("pass", why, **more)


def failed(why: str, **more: Any) -> Outcome:
    """What the check proves is not so; `why` says it in words for people."""
    return Outcome("fail", why, **more)


def unsupported(why: str, **more: Any) -> Outcome:
    """There is nothing to hold here."""
    return Outcome("unsupported", why, **more)


def not_run(why: str, **more: Any) -> Outcome:
    """It could not be tried here."""
    return Outcome("not-run", why, **more)


@dataclass(frozen=True)
class Result:
    """One check's line."""

    id: str
    group: str
    title: str
    proves: str
    needs: tuple[str, ...]
    found: Outcome
    seconds: float

    def line(self) -> dict[str, Any]:
        """The `check` line as plain data, without its event."""
        head = {"id": self.id, "group": self.group, "title": self.title, "proves": self.proves, "needs": list(self.needs)}
        return {**head, **asdict(self.found), "seconds": round(self.seconds, 3)}


def dumps(event: str, **keys: Any) -> str:
    """One line, without its newline. Numbers that JSON cannot hold are written as texts."""
    return json.dumps({"event": event, **_plain(keys)}, ensure_ascii=False, allow_nan=False, separators=(", ", ": "))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return repr(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def summary(checks: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts by status, and the ids of what differed and of what could not be provoked."""
    counts: dict[str, Any] = {status: sum(check["status"] == status for check in checks) for status in STATUSES}
    counts["differs"] = [check["id"] for check in checks if check["outcome"] == "differs"]
    counts["not_discriminating"] = [check["id"] for check in checks if check["outcome"] == "not-discriminating"]
    return counts


def verdict(checks: list[dict[str, Any]]) -> tuple[str, int]:
    """The verdict over all checks and its exit status. Nothing checked is inconclusive."""
    statuses = {check["status"] for check in checks}
    if "fail" in statuses:
        return "fails", 1
    if "not-run" in statuses or not statuses:
        return "inconclusive", 8
    return "holds", 0
