"""What a check is, what it is given, and whether it applies here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from envlock.runtime.settings import LEVELS
from envlock.selftest.protocol import SELFTEST, Outcome, not_run, unsupported

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Settings:
    """The determinism that is asked of this environment. Level, seed and the others as in a spec."""

    level: str
    seed: int = 0
    threads: int = 0
    tf32: bool = False

    def at_least(self, level: str) -> bool:
        """Whether the level promises what `level` promises."""
        return LEVELS.index(self.level) >= LEVELS.index(level)


@dataclass(frozen=True)
class Context:
    """What a check may use: settings, facts about this place (see protocol.py), the lock's JSON or None, and how hard to try."""

    settings: Settings
    facts: dict[str, Any] = field(default_factory=dict)
    lock: dict[str, Any] | None = None
    repeats: int = 10
    world: int = 3
    plugin: str | None = None

    def depends(self, device: str = "cpu", **more: Any) -> dict[str, str]:
        """The fields that a fingerprint computed on a device (`cpu` or `cuda:0`) depends on, with their values here."""
        found = {"selftest": SELFTEST, "level": self.settings.level, "tf32": str(self.settings.tf32).lower()}
        if device == "cpu":
            for key in ("vendor", "isa", "threads"):
                found[f"cpu.{key}"] = str(self.facts["cpu"][key])
        else:
            gpu = self.facts["gpus"][int(device.partition(":")[2] or 0)]
            for key in ("model", "capability", "sm_count", "mig"):
                found[f"gpu.{key}"] = str(gpu[key])
        return {**found, **{key: str(value) for key, value in more.items()}}


@dataclass(frozen=True)
class Check:
    """One self-test.

    `needs` says what must be here: `lock`, `cuda` (a build of torch with CUDA), `gpu`, `gpus` (two or more). `level` is the lowest level
    that promises what the check proves. `limit` is the time in seconds after which it counts as hung.
    """

    id: str
    title: str
    proves: str
    run: Callable[[Context], Outcome]
    needs: tuple[str, ...] = ()
    level: str = "off"
    limit: float = 300.0


def applies(check: Check, context: Context) -> bool:
    """Whether there is anything to check: a torch without CUDA has no GPU checks, a level has those of the levels below."""
    wants_gpu = any(need in check.needs for need in ("cuda", "gpu", "gpus"))
    if wants_gpu and context.facts.get("cuda") is None:
        return False
    if "lock" in check.needs and context.lock is None:
        return False
    return context.settings.at_least(check.level)


def obstacle(check: Check, context: Context) -> Outcome | None:
    """Why an applicable check cannot be tried here, or None."""
    if "error" in context.facts:
        return not_run(f"torch cannot be used here: {context.facts['error']}")
    gpus = context.facts.get("gpus", [])
    if ("gpu" in check.needs or "gpus" in check.needs) and not gpus:
        return not_run("no GPU is visible here", fault="host", hint="run it on a GPU host, with the container given its GPUs")
    if "gpus" in check.needs and len(gpus) < 2:
        return unsupported("one GPU only: there is nothing to compare it with")
    return None
