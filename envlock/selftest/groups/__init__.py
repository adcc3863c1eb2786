"""The groups of checks, in the order in which they run. Each group runs in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envlock.selftest.checks import Check, Context
    from envlock.selftest.protocol import Outcome


@dataclass(frozen=True)
class Group:
    """A group of checks: its module here has `checks(context)`. One that is not `default` runs when it is asked for."""

    name: str
    about: str
    default: bool = True


GROUPS = (
    Group("environment", "versions, variables, libraries: what is here is what was locked"),
    Group("seeds", "the same numbers in each run, other numbers in each rank and worker"),
    Group("settings", "precision and determinism are in force, by value"),
    Group("kernels", "operations on this hardware are right, and native code"),
    Group("repeatability", "operations give the same bits again"),
    Group("training", "small trainings give the same bits, also when resumed"),
    Group("controls", "each detector sees a difference where there is one"),
    Group("collectives", "sums over processes give the same bits", default=False),
    Group("compile", "torch.compile gives the same bits; needs a C++ compiler", default=False),
    Group("plugin", "checks of your own", default=False),
)


def names() -> tuple[str, ...]:
    """Names of all groups."""
    return tuple(group.name for group in GROUPS)


def checks(group: str, context: Context) -> tuple[Check, ...]:
    """A group's checks that apply here."""
    from envlock.selftest.checks import applies

    found: tuple[Check, ...] = import_module(f"{__name__}.{group}").checks(context)
    return tuple(check for check in found if applies(check, context))


def listed(group: str, context: Context) -> tuple[Check, ...]:
    """The same, for whoever does not run them: a user's file of checks is loaded in a process of its own."""
    if group != "plugin":
        return checks(group, context)
    from dataclasses import asdict

    from envlock.selftest import children
    from envlock.selftest.checks import Check

    try:
        rows = children.call(f"{__name__}.plugin:listing", {"context": asdict(context)})
    except children.ChildFailed:
        rows = [{"id": "plugin.load", "title": "Load", "proves": "the file of checks can be loaded"}]
    return tuple(Check(**{**row, "needs": tuple(row.get("needs", ())), "run": _elsewhere}) for row in rows)


def _elsewhere(context: Context) -> Outcome:
    raise AssertionError("a listed check is run by its worker")
