"""The table of determinism settings: what an image's ENV holds at each level, and what would undo it.

The rows are data, in settings.json beside this file. Standard library only: this module is used where an image is locked, and
inside it. The level `off` bakes in nothing but its own name.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

LEVELS = ("off", "seeded", "deterministic", "strict")


@dataclass(frozen=True)
class Allowed:
    """Values that a person may give a variable without breaking the level; `text` says them in words."""

    pattern: str
    text: str
    maximum: int | None = None

    def holds(self, value: str) -> bool:
        """Whether the whole value is one of those allowed."""
        if re.fullmatch(self.pattern, value) is None:
            return False
        return self.maximum is None or int(value) <= self.maximum


@dataclass(frozen=True)
class Variable:
    """One environment variable that a level sets.

    `levels` maps a level to a template of level, seed, threads and tf32. `torch` and `numpy` are version ranges (`>=2.0,<2.4`) and
    `platforms` names those that the row means something to; None means all. `reserved` is the key of the spec that sets it.
    """

    name: str
    levels: dict[str, str]
    effect: str
    asked: str
    source: str
    torch: str | None = None
    numpy: str | None = None
    platforms: tuple[str, ...] | None = None
    unless_tf32: bool = False
    allowed: Allowed | None = None
    reserved: str | None = None


@dataclass(frozen=True)
class Flag:
    """One flag of torch, as a dotted path, which the levels deterministic and strict set.

    `value` is a mapping with the keys `full` and `tf32` where it depends on whether TF32 may be used. `default` is torch's own.
    A flag that a torch does not have is passed over.
    """

    name: str
    value: bool | str | dict[str, bool | str]
    default: bool | str
    effect: str = ""

    def wanted(self, tf32: bool) -> bool | str:
        """The value at the levels deterministic and strict."""
        if isinstance(self.value, dict):
            return self.value["tf32" if tf32 else "full"]
        return self.value


@dataclass(frozen=True)
class Override:
    """A variable that silently breaks the promise of some levels when its whole value matches `refused`."""

    name: str
    refused: str
    levels: tuple[str, ...]
    reason: str
    hint: str
    source: str
    unless_tf32: bool = False

    def breaks(self, value: str) -> bool:
        """Whether this value breaks the promise. An empty one counts as gone: a base's ENV can be emptied, not unset."""
        return value != "" and re.fullmatch(self.refused, value, re.DOTALL) is not None


@dataclass(frozen=True)
class SettingsFile:
    """Files outside the lock that change what the image computes."""

    paths: tuple[str, ...]
    levels: tuple[str, ...]
    reason: str
    hint: str
    source: str


@dataclass(frozen=True)
class Fault:
    """One variable whose value breaks the level. `id` is `env-value` or `env-override`."""

    id: str
    name: str
    value: str
    what: str
    why: str
    hint: str


@dataclass(frozen=True)
class Table:
    """All rows, and the date when they were last checked."""

    date: str
    variables: tuple[Variable, ...]
    flags: tuple[Flag, ...]
    overrides: tuple[Override, ...]
    files: SettingsFile


@lru_cache
def table() -> Table:
    """The table, read once per process."""
    data = json.loads(Path(__file__).with_name("settings.json").read_text(encoding="utf-8"))
    files = data["files"]
    return Table(
        date=data["date"],
        variables=tuple(_variable(row) for row in data["variables"]),
        flags=tuple(Flag(**row) for row in data["flags"]),
        overrides=tuple(Override(**{**row, "levels": tuple(row["levels"])}) for row in data["overrides"]),
        files=SettingsFile(**{**files, "paths": tuple(files["paths"]), "levels": tuple(files["levels"])}),
    )


def _variable(row: dict[str, Any]) -> Variable:
    allowed = Allowed(**row["allowed"]) if "allowed" in row else None
    platforms = tuple(row["platforms"]) if "platforms" in row else None
    return Variable(**{**row, "allowed": allowed, "platforms": platforms})


def overrides() -> tuple[Override, ...]:
    """The variables that silently break the promise: removed when an image is built, refused in a spec and by the self-test."""
    return table().overrides


def environment(
    level: str,
    *,
    seed: int = 0,
    threads: int = 4,
    tf32: bool = False,
    torch_version: str,
    platform: str = "linux/amd64",
    numpy_version: str | None = None,
) -> dict[str, str]:
    """The determinism part of an image's ENV, in the order of the table.

    Variables that mean nothing to this torch, NumPy (None: the image has none) or platform are left out. Raises ValueError for a
    level that does not exist.
    """
    if level not in LEVELS:
        raise ValueError(f"{level!r} is not a level; the levels are {', '.join(LEVELS)}")
    found: dict[str, str] = {}
    for row in table().variables:
        fits = _in_range(torch_version, row.torch) and _numpy_fits(numpy_version, row.numpy)
        fits = fits and (row.platforms is None or platform in row.platforms) and not (row.unless_tf32 and tf32)
        if fits and level in row.levels:
            found[row.name] = row.levels[level].format(level=level, seed=seed, threads=threads, tf32=int(tf32))
    return found


def faults(env: Mapping[str, str], *, level: str, tf32: bool = False, reserved: bool = False) -> tuple[Fault, ...]:
    """What in an environment breaks the level: values that a variable of the table must not have, and overrides.

    `reserved` also refuses variables that follow from the spec's own keys: right for the `env:` of a spec, wrong inside an image.
    """
    found = []
    for name in sorted(env):
        value = env[name]
        fault = _override_fault(name, value, level, tf32) or _value_fault(name, value, level, tf32)
        if fault is None and reserved:
            fault = _reserved_fault(name, value)
        if fault is not None:
            found.append(fault)
    return tuple(found)


def _override_fault(name: str, value: str, level: str, tf32: bool) -> Fault | None:
    for row in table().overrides:
        applies = row.name == name and level in row.levels and not (row.unless_tf32 and tf32)
        if applies and row.breaks(value):
            return Fault("env-override", name, value, f"{name}={value!r} undoes the level {level}", row.reason, row.hint)
    return None


def _value_fault(name: str, value: str, level: str, tf32: bool) -> Fault | None:
    for row in table().variables:
        applies = row.name == name and level in row.levels and not (row.unless_tf32 and tf32)
        if applies and row.allowed is not None and not row.allowed.holds(value):
            what = f"{name}={value!r} breaks the level {level}"
            why = f"{name} must be {row.allowed.text}: {row.effect}"
            return Fault("env-value", name, value, what, why, "leave it out: the level sets it")
    return None


def _reserved_fault(name: str, value: str) -> Fault | None:
    for row in table().variables:
        if row.name == name and row.reserved is not None:
            why = f"it is {row.effect}, and two places for one thing can disagree"
            return Fault("env-override", name, value, f"{name} is set by the spec's own key", why, f"write `{row.reserved}`")
    return None


def settings_files(level: str, home: Path | None = None) -> tuple[str, ...]:
    """Which of the files that change what the image computes exist here."""
    rule = table().files
    if level not in rule.levels:
        return ()
    base = home or _home()
    paths = (base / path[2:] if path.startswith("~/") else Path(path) for path in rule.paths)
    return tuple(str(path) for path in paths if path.exists())


def _home() -> Path:
    """The user's home folder; a container's user may have none."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/nonexistent")


def release(version: str) -> tuple[int, ...]:
    """The numbers at the front of a version: `2.13.0+cpu` is (2, 13, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def _in_range(version: str, wanted: str | None) -> bool:
    if wanted is None:
        return True
    have = release(version)
    for part in wanted.split(","):
        bound = release(part.lstrip("<>="))
        padded = have + (0,) * (len(bound) - len(have))
        if part.startswith(">=") and not padded >= bound:
            return False
        if part.startswith("<") and not padded < bound:
            return False
    return True


def _numpy_fits(version: str | None, wanted: str | None) -> bool:
    return wanted is None or (version is not None and _in_range(version, wanted))
