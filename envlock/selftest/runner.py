"""Runs groups of checks, each in a fresh process, and keeps going whatever happens in them."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from envlock.selftest import children, groups
from envlock.selftest.protocol import PROTOCOL, SELFTEST, Outcome, Result, dumps
from envlock.selftest.worker import START_AGAIN, crashed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envlock.selftest.checks import Check, Context

_WORKER = f"import sys; sys.path.append({children.LIB!r}); from envlock.selftest.worker import main; main()"
_LINES_KEPT = 60

START_LIMIT = 120.0
"""Seconds that a group's process may take before its first check, and between two."""


class _Clock:
    """Which check a process is at, since when, and whether its time has passed."""

    def __init__(self, checks: dict[str, Check]) -> None:
        self._checks = checks
        self.at: str | None = None
        self.began = time.monotonic()
        self.passed = False

    def left(self) -> float:
        """Seconds left for the check at hand."""
        limit = START_LIMIT if self.at is None else self._checks[self.at].limit
        return max(0.0, self.began + limit - time.monotonic())


class GroupRun:
    """One group's checks, from the first to the last, in as many processes as it takes."""

    def __init__(self, group: str, context: Context, env: dict[str, str]) -> None:
        self._group = group
        self._context = context
        self._env = env
        self._left: dict[str, Check] = {check.id: check for check in groups.listed(group, context)}
        self._printed: deque[str] = deque(maxlen=_LINES_KEPT)

    def lines(self) -> Iterator[dict[str, Any]]:
        """`begin` and `check` lines as plain data. A process that dies or hangs fails the check it was at; the rest goes on in another."""
        while self._left:
            yield from self._one_process()

    def _one_process(self) -> Iterator[dict[str, Any]]:
        process = subprocess.Popen(
            [sys.executable, "-c", _WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._env,
            start_new_session=True,
            text=True,
            cwd="/",
        )
        assert process.stdin is not None
        assert process.stderr is not None
        listener = threading.Thread(target=self._printed.extend, args=(process.stderr,), daemon=True)
        listener.start()
        clock = _Clock(self._left)
        ended_well = False
        try:
            json.dump({"group": self._group, "ids": list(self._left), "context": asdict(self._context)}, process.stdin)
            process.stdin.close()
            for line in _read(process, clock):
                clock.at = line["id"] if line["event"] == "begin" else None
                clock.began = time.monotonic()
                if line["event"] == "check":
                    del self._left[line["id"]]
                yield line
            ended_well = not clock.passed
        except BrokenPipeError:
            ended_well = True
        finally:
            if not ended_well:
                children.end(process)
            status = process.wait()
            listener.join(timeout=5)
        if self._left and status != START_AGAIN:
            ended = children.Ended(status, "", "".join(self._printed), clock.passed)
            yield from self._died(clock.at, ended, time.monotonic() - clock.began)

    def _died(self, at: str | None, ended: children.Ended, seconds: float) -> Iterator[dict[str, Any]]:
        """The lines for the check that a process died in. One that died outside of any check takes the rest of the group with it."""
        found = crashed(ended.why, "timed-out" if ended.timed_out else "crashed", ended.stderr)
        for id_ in [at] if at is not None else list(self._left):
            yield {"event": "check", **_result(self._left.pop(id_), self._group, found, seconds).line()}


def _result(check: Check, group: str, found: Outcome, seconds: float) -> Result:
    return Result(check.id, group, check.title, check.proves, check.needs, found, seconds)


def _read(process: subprocess.Popen[str], clock: _Clock) -> Iterator[dict[str, Any]]:
    """Lines as they come, until the process closes its end or the time of the check at hand has passed."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    pending = b""
    with process.stdout, selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            if not selector.select(timeout=clock.left()):
                clock.passed = True
                return
            chunk = os.read(descriptor, 65536)
            if not chunk:
                return
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                yield json.loads(line)


def announce(context: Context, wanted: tuple[str, ...]) -> str:
    """The `start` line."""
    listed = [
        {"id": check.id, "group": group, "title": check.title, "proves": check.proves, "needs": check.needs}
        for group in wanted
        for check in groups.listed(group, context)
    ]
    return dumps("start", protocol=PROTOCOL, selftest=SELFTEST, settings=asdict(context.settings), facts=context.facts, checks=listed)
