"""Fresh processes: a function called by name in a Python process of its own, its result read back as JSON.

The child's stdout carries the result alone: what libraries print goes to stderr, whose end is kept for the case that it dies.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LIB = str(Path(__file__).resolve().parents[2])
"""The folder that holds the package: children find it whether or not it is installed."""

_MAIN = f"import sys; sys.path.append({LIB!r}); from envlock.selftest.children import main; main()"
TAIL = 4000


class ChildFailed(Exception):
    """A fresh process gave no result. `outcome` is `crashed` or `timed-out`; `printed` is the end of what it printed."""

    def __init__(self, why: str, outcome: str, printed: str) -> None:
        super().__init__(why)
        self.why = why
        self.outcome = outcome
        self.printed = printed


@dataclass(frozen=True)
class Ended:
    """How a process ended: exit status (negative: minus the signal), stdout, the end of stderr, whether it ran out of time."""

    status: int
    stdout: str
    stderr: str
    timed_out: bool = False

    @property
    def why(self) -> str:
        """The end in words."""
        if self.timed_out:
            return "the process ran past its time limit and was ended"
        if self.status < 0:
            return f"the process was ended by signal {-self.status} ({signal_name(-self.status)})"
        return f"the process ended with status {self.status}"


def signal_name(number: int) -> str:
    """`SIGABRT` for 6."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """This process's environment with changes; None removes a variable.

    Waiting threads sleep instead of spinning, unless it says otherwise: nothing that is computed depends on it, and on a busy host
    spinning takes ten times as long.
    """
    env = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
    for name, value in (changes or {}).items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


def run(command: list[str], *, env: dict[str, str], feed: str = "", timeout: float = 300.0) -> Ended:
    """Run a command in a session of its own; when it runs out of time, everything it started is ended with it."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        start_new_session=True,
        text=True,
        # `python -c` puts the working directory first on sys.path: a torch.py lying there must not count.
        cwd="/",
    )
    try:
        stdout, stderr = process.communicate(feed, timeout=timeout)
    except subprocess.TimeoutExpired:
        end(process)
        stdout, stderr = process.communicate()
        return Ended(process.returncode, stdout, stderr[-TAIL:], timed_out=True)
    except BaseException:
        end(process)
        raise
    return Ended(process.returncode, stdout, stderr[-TAIL:])


def end(process: subprocess.Popen[str]) -> None:
    """End a process and everything in its session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()
    process.wait()


def call(
    function: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    env: Mapping[str, str | None] | None = None,
    flags: tuple[str, ...] = (),
    timeout: float = 300.0,
) -> Any:
    """Call `module:name` with keyword arguments in a fresh process and return what it returned.

    `env` changes the environment it starts with, `flags` are the interpreter's. Raises ChildFailed.
    """
    ended = run(
        [sys.executable, *flags, "-c", _MAIN],
        env=environment(env),
        feed=json.dumps({"function": function, "arguments": dict(arguments or {})}),
        timeout=timeout,
    )
    if ended.status != 0 or ended.timed_out:
        raise ChildFailed(ended.why, "timed-out" if ended.timed_out else "crashed", ended.stderr)
    try:
        return json.loads(ended.stdout)
    except ValueError:
        raise ChildFailed("the process ended well but gave no result", "crashed", ended.stderr) from None


def call_each(calls: Sequence[tuple[str, Mapping[str, Any]]], **options: Any) -> list[Any]:
    """Several calls, each in a fresh process, two at a time; their results in order. Raises ChildFailed for the first that failed."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        return [future.result() for future in [pool.submit(call, function, arguments, **options) for function, arguments in calls]]


def take_stdout() -> int:
    """Keep this process's stdout for results, and send whatever else is printed to stderr. Returns the file descriptor to use."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    return kept


def main() -> None:
    """What a fresh process runs: read the call from stdin, start the hook as the image would, and write the result."""
    request = json.load(sys.stdin)
    kept = take_stdout()
    from envlock.runtime import hook

    hook.start()
    module, _, name = request["function"].partition(":")
    value = getattr(importlib.import_module(module), name)(**request["arguments"])
    with os.fdopen(kept, "w", encoding="utf-8") as stream:
        json.dump(value, stream)
