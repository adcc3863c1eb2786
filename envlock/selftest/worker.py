"""The process that runs one group of checks: prints `begin` and `check` lines, and leaves the rest to the runner."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from envlock.selftest import children, diagnoses, groups
from envlock.selftest.checks import Check, Context, Settings, obstacle
from envlock.selftest.protocol import Outcome, Result, dumps, failed

START_AGAIN = 75
"""Exit status of a process that asks for another to go on with the rest of its checks."""


def context_of(data: dict[str, Any]) -> Context:
    """A context from its JSON form."""
    return Context(**{**data, "settings": Settings(**data["settings"])})


def attempt(check: Check, context: Context) -> Outcome:
    """A check's outcome; whatever it raises is its failure, with the last lines that tell why."""
    blocked = obstacle(check, context)
    if blocked is not None:
        return blocked
    try:
        return check.run(context)
    except children.ChildFailed as error:
        return crashed(error.why, error.outcome, error.printed)
    except Exception as error:
        import traceback

        trace = traceback.format_exc()
        lines = str(error).strip().splitlines() or [""]
        return crashed(f"{type(error).__name__}: {lines[0]}", "crashed", trace[-children.TAIL :])


def crashed(why: str, outcome: str, printed: str) -> Outcome:
    """The failure of a check that ended badly, with its diagnosis where it is a known one."""
    known = diagnoses.diagnose(f"{why}\n{printed}")
    evidence = {"printed": printed[-children.TAIL :]}
    if known is None:
        return failed(why, outcome=outcome, finding="check-crashed", fault="image", evidence=evidence)
    return failed(why, outcome=outcome, finding=known.id, fault=known.fault, hint=known.hint, evidence=evidence)


def main() -> None:
    """Read the request from stdin: group, ids to run, context."""
    request = json.load(sys.stdin)
    kept = children.take_stdout()
    from envlock.runtime import hook

    hook.start()
    context = context_of(request["context"])
    group = request["group"]
    with os.fdopen(kept, "w", encoding="utf-8") as stream:
        for check in groups.checks(group, context):
            if check.id not in request["ids"]:
                continue
            print(dumps("begin", id=check.id, group=group), file=stream, flush=True)
            start = time.monotonic()
            found = attempt(check, context)
            result = Result(check.id, group, check.title, check.proves, check.needs, found, time.monotonic() - start)
            print(dumps("check", **result.line()), file=stream, flush=True)
            if is_poisoned(found):
                os._exit(START_AGAIN)


def is_poisoned(found: Outcome) -> bool:
    """Whether a check has left CUDA unusable in this process: each later call would fail with the same error."""
    return found.status == "fail" and ("CUDA error" in found.why or "CUDNN_STATUS_EXECUTION_FAILED" in found.why)


if __name__ == "__main__":
    main()
