"""What `verify` found: checks, their fingerprints, the image, the host, and the verdict that follows from them.

A report is JSON first; its schema is `report.schema.json` beside this file and has a version of its own. The other forms are made
from it by `report_forms.py`. Everything here is a value; nothing asks the clock, the network or an engine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from envlock.diagnose import exit_of
from envlock.errors import Exit, FileUnreadable, Finding, UsageError

REPORT_VERSION: Final = 1
SCHEMA = Path(__file__).with_name("report.schema.json")
MOST_BYTES = 32 * 2**20

Status = Literal["pass", "fail", "unsupported", "not-run"]
Seen = Literal["equal", "raises", "differs", "not-discriminating", "crashed", "timed-out"]
Fault = Literal["image", "host", "spec", "upstream", "network"]
Verdict = Literal["pass", "fail", "inconclusive", "host-not-ready"]
Severity = Literal["error", "warning", "info"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Remark(_Part):
    """A finding as a report carries it: about the image, the host or the run as a whole, and whose fault an error is."""

    id: str
    severity: Severity
    what: str
    where: str = ""
    why: str = ""
    hint: str = ""
    fault: Fault | None = None

    @classmethod
    def of(cls, finding: Finding, fault: Fault) -> Remark:
        """The same facts as an errors.Finding has."""
        facts = {name: getattr(finding, name) for name in ("id", "severity", "what", "where", "why", "hint")}
        return cls(**facts, fault=fault)


class Fingerprint(_Part):
    """The hash of bits that a check computed, and every field that they may differ with.

    Two fingerprints may be compared only where name and `depends` are equal; then their values must be equal too.
    """

    name: str
    value: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="sha256 in hex")]
    depends: dict[str, str] = Field(description="field to value: image, level, self-test and device, as far as the bits depend on them")


class Check(_Part):
    """One self-test on one device; the fields are those of selftest/protocol.py, with the device that it ran on."""

    id: str
    group: str
    title: str
    proves: str = ""
    device: str = Field(default="cpu", description="cpu, or the GPU as cuda:N")
    status: Status
    outcome: Seen | None = Field(default=None, description="what was seen where the status alone does not tell")
    finding: str | None = Field(default=None, description="id of a known fault")
    fault: Fault | None = Field(default=None, description="whose fault a failure is")
    why: str = Field(default="", description="what was measured, or why it could not be")
    hint: str = Field(default="", description="what to do about it")
    evidence: dict[str, Any] = {}
    fingerprints: tuple[Fingerprint, ...] = ()
    seconds: float = 0.0


class ImageFacts(_Part):
    """The image that was verified."""

    reference: str
    image_digest: str | None = Field(description="sha256 of the config; null where the engine does not tell it")
    lock_digest: str | None = Field(description="null for an image that envlock did not build")
    name: str | None = None
    platform: str = ""
    level: str = Field(default="", description="the determinism level in force")
    versions: dict[str, str] = Field(default={}, description="python, torch, cuda, cudnn, nccl, numpy … as found in the container")


class GpuFacts(_Part):
    """One GPU as the container saw it, with what the host says about it. Memory in bytes, clocks in MHz."""

    device: str = Field(description="cuda:N in the container")
    name: str
    uuid: str | None = None
    capability: str | None = None
    sm_count: int | None = None
    memory: int | None = None
    mig: str | None = Field(default=None, description="MIG profile; null where MIG is off")
    ecc: bool | None = None
    sm_clock: int | None = None
    max_sm_clock: int | None = None
    persistence: bool | None = None


class HostFacts(_Part):
    """The machine that it ran on."""

    name: str
    system: str = ""
    kernel: str = ""
    cpu: str = ""
    cpu_vendor: str = ""
    isa_level: str = Field(default="", description="what the CPU can do, as x86-64-v1 to v4")
    cores: int | None = None
    driver: str | None = None
    cuda: str | None = Field(default=None, description="newest CUDA version that the driver supports")
    gpus: tuple[GpuFacts, ...] = ()
    engine: str = Field(default="", description="the engine's version")
    remote: bool = Field(default=False, description="the engine is on another host; driver and GPUs are as the container saw them")


class Variable(_Part):
    """One environment variable: as locked, as the image's config has it, as a fresh process in the container has it."""

    name: str
    locked: str | None = None
    configured: str | None = None
    found: str | None = None

    @property
    def holds(self) -> bool:
        """Whether what was found is what was locked (images without a lock have nothing to hold)."""
        return self.locked is None or (self.locked == self.configured and self.found in (None, self.locked))


class Run(_Part):
    """How it ran."""

    command: str = Field(description="what repeats it")
    envlock: str = Field(description="version of envlock")
    selftest: str = Field(description="version of the self-test")
    started: str = Field(description="UTC, ISO 8601")
    seconds: float
    user: str = ""
    shm_size: str = ""
    read_only: bool = False
    gpus: str = Field(default="", description="how GPUs were asked for: runtime, cdi or none")
    nproc: int = Field(default=1, description="processes of the collective checks")


class Report(_Part):
    """One verification of one image on one host."""

    version: Literal[1] = REPORT_VERSION
    verdict: Verdict
    summary: str = Field(description="the verdict in one sentence")
    image: ImageFacts
    host: HostFacts
    run: Run
    checks: tuple[Check, ...]
    measurements: dict[str, Any] = Field(default={}, description="figures of the self-test that are no checks: cost, spread")
    environment: tuple[Variable, ...] = ()
    remarks: tuple[Remark, ...] = ()

    def exit_code(self, *, allow_partial: bool) -> Exit:
        """The exit status; `allow_partial` accepts that not everything could run here."""
        if self.verdict == "inconclusive":
            return Exit.OK if allow_partial else Exit.INCONCLUSIVE
        return {"pass": Exit.OK, "fail": Exit.DOES_NOT_HOLD, "host-not-ready": Exit.HOST}[self.verdict]

    def counts(self) -> dict[Status, int]:
        """How many checks have each status, those with none left out."""
        order: tuple[Status, ...] = ("pass", "fail", "unsupported", "not-run")
        counted = {status: sum(check.status == status for check in self.checks) for status in order}
        return {status: number for status, number in counted.items() if number}

    def as_json(self) -> dict[str, Any]:
        """Plain data; fields that hold nothing stay, so that a reader needs no defaults."""
        return self.model_dump(mode="json")


def judge(checks: Iterable[Check], remarks: Iterable[Remark] = ()) -> tuple[Verdict, str]:
    """The verdict of a run and its sentence.

    A failure of the image counts first; then what stopped the host; then what could not run; only what is left can be a pass.
    """
    checks, remarks = tuple(checks), tuple(remarks)
    failed = [check for check in checks if check.status == "fail"]
    of_host = [check for check in failed if stopped_by_host(check)]
    of_image = [check for check in failed if not stopped_by_host(check)]
    broken = [remark for remark in remarks if remark.severity == "error"]
    hostly = [remark.what for remark in broken if remark.fault == "host"] + [check.why or check.title for check in of_host]
    imagely = [remark.what for remark in broken if remark.fault != "host"]
    not_run = [check for check in checks if check.status == "not-run"]
    passed = sum(check.status == "pass" for check in checks)
    if of_image or imagely:
        first = _first_words(of_image[0]) if of_image else imagely[0]
        count = len(of_image) + len(imagely)
        return "fail", f"does not hold: {_several(count, 'fault', 'faults')}, the first: {first}"
    if hostly:
        return "host-not-ready", f"this host cannot verify the image: {hostly[0]}"
    if all(check.group == "image" for check in checks):
        return "inconclusive", "inconclusive: no self-test ran"
    if not_run:
        why = next((check.why for check in not_run if check.why), "")
        head = f"inconclusive: {_several(passed, 'check holds', 'checks hold')}, {len(not_run)} could not run here"
        return "inconclusive", f"{head} ({why})" if why else head
    differing = sum(check.outcome == "differs" for check in checks)
    named = f"; {_several(differing, 'operation differs', 'operations differ')}, which this level allows" if differing else ""
    return "pass", f"holds: {_several(passed, 'check passed', 'checks passed')} and none failed{named}"


def _first_words(check: Check) -> str:
    """A check and the first line of why it failed."""
    return f"{check.title}: {check.why.splitlines()[0]}" if check.why else check.title


def stopped_by_host(check: Check) -> bool:
    """Whether a check failed for a reason that says nothing about the image: the host is at fault and must be mended first."""
    return check.status == "fail" and check.fault == "host" and exit_of(check.finding or "") in (None, Exit.HOST)


def _several(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def to_json(report: Report) -> str:
    """The report's JSON, as `--json` prints it and as report.json holds it."""
    return json.dumps(report.as_json(), indent=2, ensure_ascii=False) + "\n"


def parse(raw: bytes, name: str) -> Report:
    """Read a report's JSON. Raises `UsageError` where it is not a report that this envlock can read."""
    hint = f"this envlock reads reports of version {REPORT_VERSION}, as `envlock verify --json` prints them"
    if len(raw) > MOST_BYTES:
        raise UsageError(f"{name} is too large for a report", why=f"{len(raw)} bytes", hint=hint)
    try:
        return Report.model_validate_json(without_controls(raw))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise UsageError(f"{name} is not a report", where=where, why=first["msg"], hint=hint) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is not a report", why=str(error), hint=hint) from None


def without_controls(raw: bytes) -> bytes:
    """JSON whose texts hold no control characters but line ends and tabs: a stranger's file must not steer the reader's terminal."""
    return json.dumps(_clean(json.loads(raw))).encode()


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return "".join(letter if letter.isprintable() or letter in "\n\t" else "�" for letter in value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number in it is not finite, which JSON cannot say")
    if isinstance(value, dict):
        return {_clean(key): _clean(inner) for key, inner in value.items()}
    return [_clean(inner) for inner in value] if isinstance(value, list) else value


def read(path: Path) -> Report:
    """Read a report file; for a folder, the report.json in it. Raises `FileUnreadable`, or `UsageError` where it is none."""
    path = path / "report.json" if path.is_dir() else path
    try:
        return parse(path.read_bytes(), str(path))
    except OSError as error:
        raise FileUnreadable(f"cannot read {path}", why=error.strerror or str(error)) from None


def schema_text() -> str:
    """What report.schema.json holds."""
    return json.dumps(schema(), indent=2) + "\n"


def schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a report."""
    made = Report.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"envlock-report-{REPORT_VERSION}", **made}
