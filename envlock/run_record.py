"""The record of `envlock run`: what ran, on what, with which inputs, what came out, and whether it came out the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from envlock.errors import Exit, FileUnreadable, UsageError
from envlock.metrics import Metric
from envlock.outputs import FileComparison, OutputFile
from envlock.progress import human_bytes
from envlock.report import HostFacts, Remark, without_controls

RECORD_VERSION: Final = 1
Verdict = Literal["done", "identical", "same-values", "different", "failed", "host-not-ready"]
MOST_SHOWN = 20


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Input(_Part):
    """A file or folder that the command could read, by the digest of everything in it."""

    target: str = Field(description="where the container saw it")
    files: int
    size: int = Field(description="bytes")
    sha256: str = Field(description="over path and sha256 of each file, sorted by path")


class Output(_Part):
    """One file that the command wrote."""

    path: str
    size: int
    sha256: str
    values: str | None = Field(description="digest of the arrays or values in it; null where it is only bytes")


class OneRun(_Part):
    """One container from start to end."""

    number: int
    status: int = Field(description="exit status of the command")
    seconds: float
    outputs: tuple[Output, ...]


class Difference(_Part):
    """One file that two runs, or a run and the record it was held against, do not have in common bit for bit."""

    against: str = Field(description="`run N`, or `expected`")
    path: str
    same: Literal["same-values", "different", "missing", "extra"]
    first: str = ""
    amount: str = ""


class Record(_Part):
    """Everything about one `envlock run`."""

    version: Literal[1] = RECORD_VERSION
    verdict: Verdict
    summary: str
    command: tuple[str, ...]
    repeat_with: str = Field(description="the command line that does the same again")
    image: str
    image_digest: str | None
    lock_digest: str | None
    level: str
    host: HostFacts
    environment: dict[str, str] = Field(description="variables given for this run, on top of the image's")
    started: str
    inputs: tuple[Input, ...]
    runs: tuple[OneRun, ...]
    differences: tuple[Difference, ...]
    metrics: tuple[dict[str, Any], ...] = ()
    remarks: tuple[Remark, ...] = ()

    @property
    def exit(self) -> Exit:
        """The exit status: the same tensors in another container count as the same result."""
        if self.verdict == "host-not-ready":
            return Exit.HOST
        return Exit.OK if self.verdict in ("done", "identical", "same-values") else Exit.DOES_NOT_HOLD


def output_of(file: OutputFile) -> Output:
    """The same facts as the record has them."""
    return Output(**asdict(file))


def differences_of(comparisons: Sequence[FileComparison], against: str) -> tuple[Difference, ...]:
    """What a comparison found that is not identical."""
    return tuple(Difference(against=against, **asdict(item)) for item in comparisons if item.same != "identical")


def held_against(outputs: Sequence[Output], expected: Record) -> tuple[Difference, ...]:
    """The outputs of a run against those of an earlier record, by their hashes.

    A file that was not expected is named and does no harm; whoever wants it guarded records again.
    """
    wanted = {output.path: output for output in expected.runs[0].outputs} if expected.runs else {}
    found = []
    for path, old in sorted(wanted.items()):
        new = next((output for output in outputs if output.path == path), None)
        if new is None:
            found.append(Difference(against="expected", path=path, same="missing", first="it was not written"))
        elif new.sha256 != old.sha256:
            equal = old.values is not None and new.values == old.values
            amount = f"sha256 {old.sha256[:12]}… expected, {new.sha256[:12]}… found"
            found.append(Difference(against="expected", path=path, same="same-values" if equal else "different", amount=amount))
    return tuple(found)


def judge(runs: Sequence[OneRun], differences: Sequence[Difference], remarks: Sequence[Remark], held: bool) -> tuple[Verdict, str]:
    """The verdict over all runs and its sentence; `held` says whether there was a record to hold them against."""
    broken = [remark for remark in remarks if remark.severity == "error"]
    hostly = [remark for remark in broken if remark.fault == "host"]
    if broken:
        return ("host-not-ready" if hostly == broken else "failed"), broken[0].what
    failed = [run for run in runs if run.status != 0]
    if failed:
        return "failed", f"run {failed[0].number} ended with status {failed[0].status}"
    bad = [difference for difference in differences if difference.same != "same-values"]
    files = len(runs[0].outputs) if runs else 0
    against = " and ".join(
        part for part in (f"all {len(runs)} runs" if len(runs) > 1 else "", "the expected record" if held else "") if part
    )
    if bad:
        first = bad[0]
        where = " ".join(part for part in (first.first, first.amount) if part)
        return "different", f"{len({item.path for item in bad})} of {files} files differ, first {first.path} ({first.against}): {where}"
    if not against:
        return "done", f"{files} files written"
    if differences:
        return "same-values", f"the values of all {files} files are the same in {against}; some lie in other containers"
    return "identical", f"all {files} files are identical in {against}"


def to_json(record: Record) -> str:
    """The record's JSON."""
    return json.dumps(record.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"


def read(path: Path) -> Record:
    """Read a record; for a folder, the record.json in it. Raises `FileUnreadable`, or `UsageError` where it is none."""
    path = path / "record.json" if path.is_dir() else path
    try:
        return Record.model_validate_json(without_controls(path.read_bytes()))
    except OSError as error:
        raise FileUnreadable(f"cannot read {path}", why=error.strerror or str(error)) from None
    except (ValueError, RecursionError) as error:
        why = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else str(error)
        hint = "name the record.json of an earlier `envlock run`"
        raise UsageError(f"{path} is not the record of a run", why=why, hint=hint) from None


def to_text(record: Record, metrics: Sequence[Metric] = ()) -> str:
    """The record for people: the verdict first."""
    word = {"host-not-ready": "HOST NOT READY", "same-values": "SAME VALUES"}.get(record.verdict, record.verdict.upper())
    lines = [f"{word}  {record.summary}", ""]
    for run in record.runs:
        size = human_bytes(sum(output.size for output in run.outputs))
        lines.append(f"  run {run.number}: status {run.status}, {run.seconds:.1f} s, {len(run.outputs)} files, {size}")
    for difference in record.differences[:MOST_SHOWN]:
        told = " ".join(part for part in (difference.first, difference.amount) if part)
        lines.append(f"  {difference.same:<11}  {difference.path} ({difference.against}){': ' + told if told else ''}")
    if len(record.differences) > MOST_SHOWN:
        lines.append(f"  … and {len(record.differences) - MOST_SHOWN} more, all in record.json")
    lines += [f"  {metric.name}: {metric.text}" for metric in metrics]
    for remark in record.remarks:
        lines.append(f"  {remark.severity}: {remark.what}")
        lines += [f"    {text}" for text in (remark.why, remark.hint and f"do: {remark.hint}") if text]
    return "\n".join([*lines, "", f"  {record.repeat_with}"]) + "\n"
