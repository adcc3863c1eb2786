"""Ahead: layers written while what lies below them is still being made, on a guess of it; used only where the guess was right."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from envlock.layers import Layer
from envlock.layers.assembly import Job, write_job
from envlock.layers.canonical import Entry, Plan


class Ahead:
    """Writes layers in the background, in the order in which `jobs` (called in the background too) gives them.

    One core is left to what is waited for. Nothing is raised: where something went wrong here, whoever makes the layer meets it again.
    """

    def __init__(self, jobs: Callable[[], Iterable[Job]]) -> None:
        self._stopped = threading.Event()
        self._mutex = threading.Lock()
        self._writing: dict[Path, Future[tuple[Plan, Layer]] | None] = {}
        self._pool = ThreadPoolExecutor(max(1, (os.cpu_count() or 1) - 1), thread_name_prefix="ahead")
        self._pool.submit(self._start, jobs)

    def _start(self, jobs: Callable[[], Iterable[Job]]) -> None:
        for job in jobs():
            if self._stopped.is_set():
                return
            with self._mutex:
                if job.target not in self._writing:
                    self._writing[job.target] = self._pool.submit(write_job, job, self._stopped)

    def written(self, target: Path, plan: Plan) -> Layer | None:
        """The layer in the file `target` if it was written by this very plan; waits for one that is being written.

        Where there is none the file is the caller's from now on.
        Entries are compared with their metadata. That their contents are the same is the caller's to know: both plans must be of the
        same files.
        """
        with self._mutex:
            writing = self._writing.setdefault(target, None)
        if writing is None or writing.cancel() or writing.exception() is not None:
            return None
        guess, layer = writing.result()
        return layer if _metadata(guess) == _metadata(plan) else None

    def stop(self) -> None:
        """End all work. Files that were written stay."""
        self._stopped.set()
        self._pool.shutdown(cancel_futures=True)


def _metadata(plan: Plan) -> list[Entry]:
    return [replace(entry, open=None) for entry in plan.entries]
