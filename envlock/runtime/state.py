"""What is in force in this process, against what its level wants."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from envlock.runtime import flags, hook, settings


def status() -> dict[str, Any]:
    """The level, what the hook has set up, and every variable and flag that is not as the level wants it.

    Keys: `level`, `seed`, `threads`, `tf32` as chosen; `active` whether the hook runs; `set_up` the libraries that it has set up;
    `environment` and `flags`: {name: {"wanted", "in_force"}} for what differs; `faults`: values and overrides that break the level;
    `holds` whether nothing differs. Variables are those that the process was *started* with: one that is set later comes too late.
    torch's flags are asked only where torch is imported.
    """
    watch = hook.active()
    choice = watch.choice if watch is not None else hook.Chosen("off")
    env = started_with()
    wanted = _wanted_environment(choice)
    differing = {name: {"wanted": value, "in_force": env.get(name)} for name, value in wanted.items() if env.get(name) != value}
    differing = {name: pair for name, pair in differing.items() if not _as_good(name, pair["in_force"])}
    changed = _flags(choice)
    faults = [fault.what for fault in settings.faults(env, level=choice.level, tf32=choice.tf32)]
    faults += list(settings.settings_files(choice.level))
    return {
        "level": choice.level,
        "seed": choice.seed,
        "threads": choice.threads,
        "tf32": choice.tf32,
        "active": watch is not None,
        "set_up": [] if watch is None else list(watch.done),
        "environment": differing,
        "flags": changed,
        "faults": faults,
        "holds": not (differing or changed or faults),
    }


def started_with() -> dict[str, str]:
    """The environment that this process was started with, as the kernel keeps it: later changes in the process do not show."""
    raw = Path("/proc/self/environ").read_bytes().decode(errors="surrogateescape")
    return dict(part.split("=", 1) for part in raw.split("\0") if "=" in part)


def _wanted_environment(choice: hook.Chosen) -> dict[str, str]:
    from envlock.runtime.hardware import architecture

    return settings.environment(
        choice.level,
        seed=choice.seed,
        threads=choice.threads or 1,
        tf32=choice.tf32,
        torch_version=_version("torch"),
        platform=f"linux/{architecture()}",
        numpy_version=_version("numpy") or None,
    )


def _version(name: str) -> str:
    return str(getattr(sys.modules.get(name), "__version__", ""))


def _as_good(name: str, value: str | None) -> bool:
    """Whether a value is another of those that keep the level, as `:16:8` for the cuBLAS workspace."""
    row = next(row for row in settings.table().variables if row.name == name)
    return value is not None and row.allowed is not None and not row.allowed.text.startswith("a number") and row.allowed.holds(value)


def _flags(choice: hook.Chosen) -> dict[str, dict[str, Any]]:
    torch = sys.modules.get("torch")
    if torch is None or choice.level not in ("deterministic", "strict"):
        return {}
    wanted = flags.wanted(torch, choice.level, tf32=choice.tf32, threads=choice.threads)
    found = flags.in_force(torch, wanted)
    return {name: {"wanted": value, "in_force": found[name]} for name, value in wanted.items() if found[name] != value}


def image_digest() -> str | None:
    """The digest of the image that this process runs in, where whoever started it has said so in ENVLOCK_IMAGE_DIGEST."""
    return os.environ.get("ENVLOCK_IMAGE_DIGEST") or None
