"""References: fingerprints recorded on one machine, to hold another's against.

A fingerprint is known by its check, its name and every field that its bits may differ with. The same key must have the same value,
bit for bit; where there is no such key there is no reference, which is neither right nor wrong. The driver is recorded beside.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from envlock.errors import FileUnreadable, UsageError
from envlock.report import Check, Fingerprint, Report, Status, without_controls
from envlock.store import write_atomically

REFERENCE_VERSION: Final = 1
MOST_BYTES = 64 * 2**20
MOST_NAMED = 12

Key = tuple[str, str, frozenset[tuple[str, str]]]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Recorded(_Part):
    """One fingerprint as it was recorded; `host` and `driver` are for people, and no part of the key."""

    check: str
    name: str
    value: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    depends: dict[str, str]
    host: str = ""
    driver: str = ""

    @property
    def key(self) -> Key:
        """What it is known by."""
        return key_of(self.check, self.name, self.depends)


class Reference(_Part):
    """Fingerprints of one or more machines."""

    version: Literal[1] = REFERENCE_VERSION
    fingerprints: tuple[Recorded, ...]


@dataclass(frozen=True, slots=True)
class _Held:
    """One fingerprint of a report, and what the reference has for it."""

    check: Check
    fingerprint: Fingerprint
    recorded: Recorded | None


def key_of(check: str, name: str, depends: dict[str, str]) -> Key:
    """The key of a fingerprint."""
    return check, name, frozenset(depends.items())


def record(report: Report) -> Reference:
    """The fingerprints of a report, of checks that passed."""
    return Reference(
        fingerprints=tuple(
            Recorded(
                check=check.id,
                name=fingerprint.name,
                value=fingerprint.value,
                depends=fingerprint.depends,
                host=report.host.name,
                driver=report.host.driver or "",
            )
            for check in report.checks
            if check.status == "pass"
            for fingerprint in check.fingerprints
        )
    )


def merged(references: Iterable[Reference]) -> Reference:
    """Several references as one. Raises `UsageError` where two have different values under one key."""
    found: dict[Key, Recorded] = {}
    for reference in references:
        for recorded in reference.fingerprints:
            first = found.setdefault(recorded.key, recorded)
            if first.value != recorded.value:
                what = f"two references disagree on {recorded.check} ({recorded.name})"
                why = f"{first.host} recorded {first.value[:12]}…, {recorded.host} {recorded.value[:12]}… under the same key"
                raise UsageError(what, why=why, hint="one of the two machines is at fault: `envlock verify --compare` names it")
    return Reference(fingerprints=tuple(found[key] for key in sorted(found, key=_sortable)))


def held_against(report: Report, reference: Reference) -> tuple[Check, ...]:
    """One check for each device that computed something: equal to the reference, different, or without one."""
    known = {recorded.key: recorded for recorded in reference.fingerprints}
    by_device: dict[str, list[_Held]] = {}
    for check in report.checks:
        for fingerprint in check.fingerprints if check.status == "pass" else ():
            recorded = known.get(key_of(check.id, fingerprint.name, fingerprint.depends))
            by_device.setdefault(check.device, []).append(_Held(check, fingerprint, recorded))
    if not by_device:
        return (_check("cpu", "not-run", "the self-test computed no fingerprint"),)
    return tuple(_held(device, held, reference) for device, held in by_device.items())


def _held(device: str, held: list[_Held], reference: Reference) -> Check:
    different = [item for item in held if item.recorded is not None and item.recorded.value != item.fingerprint.value]
    missing = [item for item in held if item.recorded is None]
    equal = len(held) - len(different) - len(missing)
    if different:
        names = _names(item.check.title for item in different)
        first = different[0].recorded
        by = f"recorded on {first.host}, driver {first.driver or 'none'}" if first is not None else ""
        hint = "the same image on the same GPU model computed other bits: test the GPU (`dcgmi diag -r 3`) and look for ECC errors"
        return _check(device, "fail", f"{len(different)} of {len(held)} fingerprints differ from those {by}: {names}", hint)
    if missing:
        why = f"{equal} fingerprints are equal; {len(missing)} have no reference for this {'CPU' if device == 'cpu' else 'GPU'}"
        nearest = _nearest(missing[0], reference)
        hint = "record one on a machine that you trust: --record-reference FILE"
        return _check(device, "not-run", f"{why}{': ' + nearest if nearest else ''}", hint)
    hosts = sorted({item.recorded.host for item in held if item.recorded is not None})
    return _check(device, "pass", f"{equal} fingerprints are equal to those recorded on {', '.join(hosts)}")


def _nearest(item: _Held, reference: Reference) -> str:
    """In which fields the most similar recorded key of the same check differs."""
    same = [r for r in reference.fingerprints if r.check == item.check.id and r.name == item.fingerprint.name]
    if not same:
        return "the check was not recorded"
    here = item.fingerprint.depends
    differing = min(
        ({field for field in {*r.depends, *here} if r.depends.get(field) != here.get(field)} for r in same),
        key=lambda fields: (len(fields), sorted(fields)),
    )
    return f"recorded under another {', '.join(sorted(differing))}"


def _check(device: str, status: Status, why: str, hint: str = "") -> Check:
    return Check(
        id=f"reference.{device}",
        group="reference",
        title="computes what the reference recorded",
        proves="another machine with the same key computed the same bits",
        device=device,
        status=status,
        finding="reference-differs" if status == "fail" else None,
        why=why,
        hint=hint,
    )


def _names(titles: Iterable[str]) -> str:
    unique = list(dict.fromkeys(titles))
    return ", ".join(unique[:MOST_NAMED]) + (f" and {len(unique) - MOST_NAMED} more" if len(unique) > MOST_NAMED else "")


def _sortable(key: Key) -> tuple[str, str, list[tuple[str, str]]]:
    return key[0], key[1], sorted(key[2])


def to_json(reference: Reference) -> str:
    """A reference file's text: sorted, so that it can be kept under version control."""
    return json.dumps(reference.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"


def write(path: Path, reference: Reference) -> Reference:
    """Record into a file; what other machines recorded there stays. Raises `UsageError` where the two disagree."""
    together = merged([read(path), reference]) if path.exists() else merged([reference])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, to_json(together).encode())
    return together


def read(path: Path) -> Reference:
    """Read a reference file, or all of a folder. Raises `FileUnreadable`, or `UsageError` where one is no reference."""
    if path.is_dir():
        return merged(read(part) for part in _files(path))
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise FileUnreadable(f"cannot read {path}", why=error.strerror or str(error)) from None
    try:
        return Reference.model_validate_json(without_controls(raw[: MOST_BYTES + 1]))
    except (ValueError, RecursionError) as error:
        why = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise UsageError(f"{path} is not a reference", why=why, hint="write one with `envlock verify --record-reference FILE`") from None


def _files(folder: Path) -> Iterator[Path]:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise FileUnreadable(f"{folder} holds no reference", hint="write one with `envlock verify --record-reference FILE`")
    yield from files
