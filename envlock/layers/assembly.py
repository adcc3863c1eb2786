"""Assembly: several planned layers written at once, on all cores, given out in order as each is done.

Threads, not processes: inflating, hashing and writing release the interpreter's lock, so that two threads are as fast as two
processes and share one set of plans.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from envlock.layers import Layer
from envlock.layers.canonical import Plan
from envlock.store import explained_when_full


@dataclass(frozen=True, slots=True)
class Job:
    """A layer to write: what it holds in a few words, how to come by its plan, and the file to write (replaced if it exists)."""

    holds: str
    plan: Callable[[], Plan]
    target: Path


def assemble(
    jobs: Sequence[Job], written: Callable[[Path, Plan], Layer | None] = lambda target, plan: None, workers: int | None = None
) -> Iterator[Layer]:
    """Write the layers on `workers` threads (None: one a core), and yield each in the order of `jobs` as soon as it is there.

    `written` tells of a file that has the layer of a plan already. When one fails, or the caller stops, the others stop soon and the
    files of all layers that were not yielded are removed. Raises what a plan raises, and `DiskFull`.
    """
    stopped = threading.Event()
    done = 0
    with ThreadPoolExecutor(workers or os.cpu_count(), thread_name_prefix="layer") as pool:
        futures = [pool.submit(write_job, job, stopped, written) for job in jobs]
        try:
            for future in futures:
                _, layer = future.result()
                done += 1
                yield layer
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)
            for job in jobs[done:]:
                job.target.unlink(missing_ok=True)


def write_job(
    job: Job, stopped: threading.Event, written: Callable[[Path, Plan], Layer | None] = lambda target, plan: None
) -> tuple[Plan, Layer]:
    """Plan and write one layer, unless it is `written`. Ends with an error soon after `stopped` is set; see `assemble`."""

    def stop_if_asked(_: int) -> None:
        if stopped.is_set():
            raise _Stopped

    stop_if_asked(0)
    plan = job.plan()
    layer = written(job.target, plan)
    if layer is None:
        with explained_when_full(job.target.parent, plan.size), job.target.open("wb") as target:
            layer = plan.write(target, job.holds, stop_if_asked)
    return plan, layer


class _Stopped(Exception):
    """Another layer failed, or nobody waits any more."""


class Disposable(FileIO):
    """A file that goes when it has been read: a layer between assembly and sending."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._path = path

    def close(self) -> None:
        """Close it, and remove it."""
        super().close()
        self._path.unlink(missing_ok=True)
