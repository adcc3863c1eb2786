"""Torch's flags: read, set to a level, and put back.

Which flags there are is data, in settings.json; whether this torch has one is found by asking it. torch's own switch
`use_deterministic_algorithms` imports Inductor since 2.10, which takes seconds in every process; the functions here call what it calls
and set Inductor's flag only where Inductor is loaded (the start-up hook sets it when it is loaded later, and the image's ENV has it
too).
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from envlock.runtime import settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

MODES = ("off", "warn", "raise")
MODE = "deterministic algorithms"
THREADS = "threads"
INDUCTOR = "torch._inductor.config.deterministic"


def apply(torch: ModuleType, level: str, *, tf32: bool = False, threads: int = 0) -> None:
    """Set every flag to what a level wants; `off` and `seeded` want torch's defaults. `threads` 0 leaves the thread count alone."""
    restore(torch, wanted(torch, level, tf32=tf32, threads=threads))


def wanted(torch: ModuleType, level: str, *, tf32: bool = False, threads: int = 0) -> dict[str, Any]:
    """What a level wants, by the name of the flag, for the flags that this torch has."""
    strong = level in ("deterministic", "strict")
    found: dict[str, Any] = {}
    for flag in settings.table().flags:
        if has(torch, flag.name):
            found[flag.name] = flag.wanted(tf32) if strong else flag.default
    found[MODE] = {"deterministic": "warn", "strict": "raise"}.get(level, "off")
    if threads:
        found[THREADS] = threads
    if "torch._inductor.config" in sys.modules and has(torch, INDUCTOR):
        found[INDUCTOR] = level == "strict"
    return found


def in_force(torch: ModuleType, names: Any) -> dict[str, Any]:
    """The present values of flags, by name."""
    return {name: _read(torch, name) for name in names}


def restore(torch: ModuleType, values: dict[str, Any]) -> None:
    """Set flags to given values, as `in_force` returned them."""
    for name, value in values.items():
        if _read(torch, name) != value:
            _write(torch, name, value)


@contextmanager
def deterministic(level: str = "strict", *, tf32: bool = False) -> Iterator[None]:
    """Have a level's flags in force in a block, and those from before after it. `off` turns determinism off in a block.

    Flags alone: variables of the environment and seeds stay as they are. Raises ValueError for a level that does not exist.
    """
    import torch

    if level not in settings.LEVELS:
        raise ValueError(f"{level!r} is not a level; the levels are {', '.join(settings.LEVELS)}")
    target = wanted(torch, level, tf32=tf32)
    before = in_force(torch, target)
    restore(torch, target)
    try:
        yield
    finally:
        restore(torch, before)


def has(torch: ModuleType, name: str) -> bool:
    """Whether this torch has a flag."""
    try:
        _read(torch, name)
    except (AttributeError, AssertionError, ImportError, RuntimeError):
        return False
    return True


def _read(torch: ModuleType, name: str) -> Any:
    if name == MODE:
        if not torch.are_deterministic_algorithms_enabled():
            return "off"
        return "warn" if torch.is_deterministic_algorithms_warn_only_enabled() else "raise"
    if name == THREADS:
        return torch.get_num_threads()
    holder, last = _holder(torch, name)
    value = getattr(holder, last)
    # Torch 2.9 and newer may give (allowed, with split-k) for the reduced-precision flags.
    return value[0] if isinstance(value, tuple) else value


def _write(torch: ModuleType, name: str, value: Any) -> None:
    if name == MODE:
        torch._C._set_deterministic_algorithms(value != "off", warn_only=value == "warn")
    elif name == THREADS:
        torch.set_num_threads(value)
    else:
        holder, last = _holder(torch, name)
        setattr(holder, last, value)


def _holder(torch: ModuleType, name: str) -> tuple[Any, str]:
    parts = name.split(".")
    holder: Any = torch
    for place, part in enumerate(parts[1:-1], start=2):
        try:
            holder = getattr(holder, part)
        except AttributeError:
            holder = import_module(".".join([torch.__name__, *parts[1:place]]))
    return holder, parts[-1]
