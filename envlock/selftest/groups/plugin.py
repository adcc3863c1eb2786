"""Checks of a user's own, from a Python file.

The file defines `CHECKS`, a list of `envlock.selftest.checks.Check`, or for the common case functions whose name starts with `repeat_`:
each takes a device and returns tensors, and is run again and again as the built-in operations are.

    import torch

    def repeat_my_layer(device):
        torch.manual_seed(0)
        layer = MyLayer().to(device)
        return layer(torch.ones(8, 8, device=device))
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envlock.selftest import children
from envlock.selftest.checks import Check, Context
from envlock.selftest.protocol import Outcome, failed
from envlock.selftest.repeats import Run, judge, noise, runs_of

if TYPE_CHECKING:
    from types import ModuleType

NAME = "envlock_selftest_plugin"


class BadPlugin(Exception):
    """The file is no plugin."""


def checks(context: Context) -> tuple[Check, ...]:
    """The plugin's checks; a file that cannot be loaded is one check, which fails."""
    if context.plugin is None:
        return ()
    try:
        module = load(context.plugin)
        return _checks_of(module, context.plugin)
    except Exception as error:
        why = f"{context.plugin} cannot be used: {type(error).__name__}: {error}"
        return (Check("plugin.load", "Load", "the file of checks can be loaded", partial(_unloadable, why)),)


def listing(context: dict[str, Any]) -> list[dict[str, Any]]:
    """The plugin's checks that apply, without what they run: for the runner, which must not load a user's file itself."""
    from envlock.selftest.checks import applies
    from envlock.selftest.worker import context_of

    here = context_of(context)
    keys = ("id", "title", "proves", "needs", "level", "limit")
    return [{key: getattr(check, key) for key in keys} for check in checks(here) if applies(check, here)]


def _unloadable(why: str, context: Context) -> Outcome:
    del context
    return failed(why, finding="plugin-unusable", hint="a plugin defines CHECKS, or functions named repeat_…; see docs/determinism.md")


@lru_cache(maxsize=None)  # noqa: UP033
def load(path: str) -> ModuleType:
    """The plugin as a module; files beside it can be imported."""
    spec = importlib.util.spec_from_file_location(NAME, path)
    if spec is None or spec.loader is None:
        raise BadPlugin("it is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    sys.path.append(str(Path(path).parent))
    spec.loader.exec_module(module)
    return module


def _checks_of(module: ModuleType, path: str) -> tuple[Check, ...]:
    found = [_named(check) for check in getattr(module, "CHECKS", ())]
    for name in sorted(vars(module)):
        if name.startswith("repeat_") and callable(getattr(module, name)):
            title = name[len("repeat_") :].replace("_", "-")
            for device, label, needs in (("cpu", "cpu", ()), ("cuda:0", "gpu", ("gpu",))):
                proves = f"{name} gives the same bits again"
                run = partial(repeats, name, device, path)
                found.append(Check(f"plugin.{label}.{title}", title, proves, run, needs=needs))
    if not found:
        raise BadPlugin("it defines no CHECKS and no function named repeat_…")
    return tuple(found)


def _named(check: Any) -> Check:
    if not isinstance(check, Check):
        raise BadPlugin(f"CHECKS holds a {type(check).__name__}, not a Check")
    return check if check.id.startswith("plugin.") else replace(check, id=f"plugin.{check.id}")


def repeats(name: str, device: str, path: str, context: Context) -> Outcome:
    step = partial(getattr(load(path), name), device)
    runs = runs_of(step, "repeat", context.repeats)
    with noise(device):
        runs += runs_of(step, "beside other work", 2)
    call = ("envlock.selftest.groups.plugin:once", {"name": name, "device": device, "path": path})
    for number, found in enumerate(children.call_each([call] * 2), start=1):
        runs.append(Run(f"fresh process {number}", found["value"], found["refused"]))
    return judge(runs, context, f"plugin.{name}", device)


def once(name: str, device: str, path: str) -> dict[str, Any]:
    """A plugin's function, once, here."""
    run = runs_of(partial(getattr(load(path), name), device), "run", 1)[0]
    return {"value": run.value, "refused": run.refused}
