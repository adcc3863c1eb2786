"""How long work reports itself: narration and byte counts, on stderr, in the form that the terminal allows.

Code that works takes a `Progress` and never asks where it goes. `rich` is imported only for a real terminal.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

Advance = Callable[[int], None]


class Progress(Protocol):
    """Where work says what it does. Safe to use from several threads."""

    def say(self, message: str) -> None:
        """Print one line of narration."""

    def track(self, what: str, total: int | None = None) -> AbstractContextManager[Advance]:
        """Follow one piece of work of `total` bytes (None: unknown); the yielded function adds the bytes done."""


class Silent:
    """Says nothing: for tests and for `--quiet`."""

    def say(self, message: str) -> None:
        pass

    @contextmanager
    def track(self, what: str, total: int | None = None) -> Iterator[Advance]:
        yield lambda done: None


class Lines:
    """Plain lines, one when a piece of work ends: for CI, pipes and dumb terminals."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._lock = threading.Lock()

    def say(self, message: str) -> None:
        with self._lock:
            print(message, file=self._stream, flush=True)

    @contextmanager
    def track(self, what: str, total: int | None = None) -> Iterator[Advance]:
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count

        start = time.monotonic()
        yield advance
        size = f"  {human_bytes(done)}" if done else ""
        self.say(f"{what}{size}  {time.monotonic() - start:.1f} s")


class Bars:
    """Live bars with bytes and time left, for a terminal."""

    def __init__(self) -> None:
        self._live: RichProgress | None = None
        self._users = 0
        self._lock = threading.Lock()

    def _open(self) -> RichProgress:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        with self._lock:
            if self._live is None:
                self._live = Progress(
                    TextColumn("{task.description}"),
                    BarColumn(bar_width=28),
                    DownloadColumn(),
                    TimeElapsedColumn(),
                    TimeRemainingColumn(compact=True),
                    console=Console(stderr=True),
                    transient=True,
                )
                self._live.start()
            self._users += 1
            return self._live

    def _close(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._live is not None:
                self._live.stop()
                self._live = None

    def say(self, message: str) -> None:
        with self._lock:
            if self._live is not None:
                self._live.console.print(message, highlight=False, markup=False)
            else:
                print(message, file=sys.stderr, flush=True)

    @contextmanager
    def track(self, what: str, total: int | None = None) -> Iterator[Advance]:
        live = self._open()
        task = live.add_task(what, total=total)
        start = time.monotonic()
        try:
            yield lambda count: live.advance(task, count)
            done = next((t.completed for t in live.tasks if t.id == task), 0)
            live.remove_task(task)
            size = f"  {human_bytes(int(done))}" if done else ""
            self.say(f"{what}{size}  {time.monotonic() - start:.1f} s")
        finally:
            if any(t.id == task for t in live.tasks):
                live.remove_task(task)
            self._close()


def human_bytes(count: int) -> str:
    """A byte count as people read it, in decimal units: `2.9 GB`."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
