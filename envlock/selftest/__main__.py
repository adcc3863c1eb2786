"""`python -m envlock.selftest`: run checks here, and print what they found as JSON lines. See protocol.py."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envlock.runtime.settings import LEVELS
from envlock.selftest import children, groups, measure, runner
from envlock.selftest.checks import Context, Settings
from envlock.selftest.protocol import PROTOCOL, SELFTEST, dumps, summary, verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

LOCK = Path("/opt/envlock/lock.json")
LEVEL_HELP = "hold the environment to this level (default: ENVLOCK_DETERMINISM, else the lock's, else off)"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m envlock.selftest", description=__doc__)
    parser.add_argument("--lock", type=Path, help=f"the image's lock (default: {LOCK} where it exists)")
    parser.add_argument("--level", choices=LEVELS, help=LEVEL_HELP)
    parser.add_argument(
        "--group", action="append", choices=groups.names(), help="run this group; can be given again (default: the usual ones)"
    )
    parser.add_argument("--all-groups", action="store_true", help="run every group")
    parser.add_argument("--repeats", type=int, default=10, metavar="N", help="how often a computation is repeated (default: 10)")
    parser.add_argument("--nproc", type=int, metavar="N", help="run the collectives with N processes; 3 or more show the order of sums")
    parser.add_argument("--measure", action="store_true", help="also measure what determinism costs, and how far results spread without it")
    parser.add_argument("--plugin", type=Path, metavar="FILE", help="also run the checks of this Python file")
    parser.add_argument("--json-lines", action="store_true", help="print JSON lines: the only form there is, accepted for clarity")
    parser.add_argument("--list", action="store_true", help="say what would run, and stop")
    options = parser.parse_args(arguments)
    if options.lock is not None and not options.lock.is_file():
        parser.error(f"there is no lock {options.lock}")
    if options.plugin is not None and not options.plugin.is_file():
        parser.error(f"there is no file {options.plugin}")
    if options.repeats < 2:
        parser.error("--repeats must be 2 or more: one run has nothing to be compared with")
    return options


def read_lock(path: Path | None) -> dict[str, Any] | None:
    """The lock's JSON: the file that was named, else the image's own, else None."""
    chosen = path or LOCK
    return json.loads(chosen.read_text(encoding="utf-8")) if chosen.is_file() else None


def settings_for(level: str | None, lock: dict[str, Any] | None, environ: dict[str, str]) -> Settings:
    """What to hold the environment to: the lock's settings, at the level that is asked for."""
    locked = (lock or {}).get("determinism", {})
    chosen = level or environ.get("ENVLOCK_DETERMINISM") or locked.get("level", "off")
    if chosen not in LEVELS:
        chosen = "strict"
    seed = locked.get("seed", _number(environ.get("ENVLOCK_SEED")))
    threads = locked.get("threads", _number(environ.get("ENVLOCK_THREADS")))
    return Settings(chosen, seed, threads, locked.get("tf32", environ.get("ENVLOCK_TF32") == "1"))


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def chosen_groups(options: argparse.Namespace) -> tuple[str, ...]:
    """The groups to run, in their order."""
    asked = set(options.group or ())
    if options.nproc is not None:
        asked.add("collectives")
    if options.plugin is not None:
        asked.add("plugin")
    usual = {group.name for group in groups.GROUPS if group.default}
    if options.all_groups:
        asked |= {name for name in groups.names() if name != "plugin"}
    elif not options.group:
        asked |= usual
    return tuple(name for name in groups.names() if name in asked)


def facts_here(env: dict[str, str | None]) -> dict[str, Any]:
    """Facts from a fresh process; where it dies, the reason in place of all that needs torch."""
    try:
        found: dict[str, Any] = children.call("envlock.selftest.facts:collect", env=env)
    except children.ChildFailed as error:
        return {"error": f"{error.why}: {error.printed[-500:]}", "cuda": None, "gpus": []}
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, and return the exit status."""
    began = time.monotonic()
    options = parse(arguments)
    lock = read_lock(options.lock)
    settings = settings_for(options.level, lock, dict(os.environ))
    changes: dict[str, str | None] = {"ENVLOCK_DETERMINISM": settings.level}
    facts = facts_here(changes)
    plugin = None if options.plugin is None else str(options.plugin.resolve())
    context = Context(settings, facts, lock, options.repeats, options.nproc or 3, plugin)
    wanted = chosen_groups(options)
    print(runner.announce(context, wanted), flush=True)
    if options.list:
        return 0
    checks: list[dict[str, Any]] = []
    measurements: dict[str, Any] = {}
    interrupted = False
    try:
        for group in wanted:
            for line in runner.GroupRun(group, context, children.environment(changes)).lines():
                print(dumps(line.pop("event"), **line), flush=True)
                if "status" in line:
                    checks.append(line)
        if options.measure:
            measurements = measure.all_devices(context)
    except KeyboardInterrupt:
        interrupted = True
    said, status = ("interrupted", 130) if interrupted else verdict(checks)
    head = {"protocol": PROTOCOL, "selftest": SELFTEST, "settings": asdict(settings), "facts": facts, "checks": checks}
    seconds = round(time.monotonic() - began, 3)
    tail = {"summary": summary(checks), "verdict": said, "exit": status, "seconds": seconds, "measurements": measurements}
    print(dumps("report", **head, **tail), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
