"""Fetching: many files at once into the store, each verified on the way, what went wrong said for all of them.

A file counts as fetched when its bytes have the sha256 that was asked for; where they came from does not matter, so every source
that might have it is tried in turn.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.request import url2pathname

import requests
import urllib3

from envlock.errors import DownloadDamaged, Exit, FetchError, FileChangedUpstream, FileGone, Problems, RateLimited, Unreachable
from envlock.progress import Advance, Progress
from envlock.secrecy import redact
from envlock.store import CHUNK, Incoming, Store
from envlock.transport import Fault, Transport, fault_of
from envlock.urls import split_url

Source = str | Path
OWN_BAR = 20_000_000
_PROGRESS_THAT_COUNTS = 2**20
_SECONDS_TO_STOP = 2.0
_SECONDS_TO_NOTICE = 0.2
# What to tell a person first when several sources failed in different ways.
_TELLING = (FileChangedUpstream, DownloadDamaged, RateLimited, Unreachable, FetchError, FileGone)


@dataclass(frozen=True, slots=True)
class Wanted:
    """One file: what to call it before people, its sha256 (hex) and size (bytes) where they are known, and where it may be.

    `sources` is called when the file is not in the store, in a worker thread; it yields URLs and local paths, best first, and may
    raise `FetchError`. `hint` says what a person can do when no source has the file.
    """

    what: str
    sha256: str | None
    size: int | None
    sources: Callable[[], Iterable[Source]]
    hint: str = "lock the spec again, or put the very file where one of its sources finds it"


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file that is now in the store; `size` in bytes."""

    sha256: str
    size: int


def fetch_all(
    wanted: Iterable[Wanted],
    store: Store,
    progress: Progress,
    workers: int = 8,
    transport: Transport | None = None,
    stop: threading.Event | None = None,
) -> tuple[Fetched, ...]:
    """Bring all files into the store, in parallel; what was fetched, in the order of `wanted`.

    Every file is tried, whatever befalls the others. Raises `Problems` (exit 6) with a finding for each file that could not be had,
    `DiskFull` before or when the space runs out, `Stopped` soon after another thread has set `stop`. What was fetched by then stays
    in the store.
    """
    files = list(wanted)
    missing: dict[object, list[int]] = {}
    results: dict[int, Fetched] = {}
    for index, file in enumerate(files):
        if file.sha256 is not None and store.has(file.sha256, file.size):
            results[index] = Fetched(file.sha256, store.path(file.sha256).stat().st_size)
        else:
            missing.setdefault(file.sha256 or index, []).append(index)
    if missing:
        jobs = {key: files[indices[0]] for key, indices in missing.items()}
        run = _Run(store, progress, transport or Transport(), many=len(jobs) > 1, stop=stop or threading.Event())
        for key, fetched in _fetch(jobs, run, workers).items():
            results.update(dict.fromkeys(missing[key], fetched))
    return tuple(results[index] for index in range(len(files)))


def _fetch(jobs: dict[object, Wanted], run: _Run, workers: int) -> dict[object, Fetched]:
    needed = sum(file.size or 0 for file in jobs.values())
    run.store.require_space(needed)
    title = f"fetched {len(jobs)} files" if len(jobs) > 1 else f"fetched {next(iter(jobs.values())).what}"
    with run.progress.track(title, needed or None) as advance:
        outcomes = _in_parallel(jobs, replace(run, advance=advance), workers)
        # In the order in which the files were wanted.
        failed = [outcome for key in jobs if isinstance(outcome := outcomes[key], FetchError)]
        if failed:
            raise Problems((error.finding for error in failed), Exit.FILE)
    return {key: outcome for key, outcome in outcomes.items() if isinstance(outcome, Fetched)}


def _in_parallel(jobs: dict[object, Wanted], run: _Run, workers: int) -> dict[object, Fetched | FetchError]:
    """Each job's outcome, largest files first. The threads are daemons, so that a server which has fallen silent cannot hold up
    the end of the program when the user interrupts it."""
    pending: queue.SimpleQueue[tuple[object, Wanted]] = queue.SimpleQueue()
    finished: queue.SimpleQueue[tuple[object, Fetched | FetchError | BaseException]] = queue.SimpleQueue()
    for item in sorted(jobs.items(), key=lambda item: -(item[1].size or 0)):
        pending.put(item)

    def work() -> None:
        while not run.stop.is_set():
            try:
                key, file = pending.get_nowait()
            except queue.Empty:
                return
            try:
                finished.put((key, run.fetch(file)))
            except BaseException as error:
                finished.put((key, error))

    threads = [threading.Thread(target=work, name=f"fetch-{number}", daemon=True) for number in range(min(workers, len(jobs)))]
    outcomes: dict[object, Fetched | FetchError] = {}
    try:
        for thread in threads:
            thread.start()
        while len(outcomes) < len(jobs):
            try:
                key, outcome = finished.get(timeout=_SECONDS_TO_NOTICE)
            except queue.Empty:
                if run.stop.is_set():
                    raise Stopped from None
                continue
            if not isinstance(outcome, Fetched | FetchError):
                raise outcome
            outcomes[key] = outcome
    finally:
        run.stop.set()
        deadline = time.monotonic() + _SECONDS_TO_STOP
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
    return outcomes


class Stopped(Exception):
    """Another file ended the whole run, or the user did."""


@dataclass(frozen=True, slots=True)
class _Run:
    """What the workers of one `fetch_all` share."""

    store: Store
    progress: Progress
    transport: Transport
    many: bool
    stop: threading.Event
    advance: Advance = lambda count: None
    dead_hosts: set[str] = field(default_factory=set)

    def fetch(self, file: Wanted) -> Fetched | FetchError:
        """One file from the first source that has it, or why not."""
        if file.sha256 is not None and self.store.has(file.sha256, file.size):
            self.advance(file.size or 0)
            return Fetched(file.sha256, self.store.path(file.sha256).stat().st_size)
        faults: list[FetchError] = []
        try:
            with self.store.incoming(file.sha256, file.size, file.what) as blob, self._advances(file) as advance:
                for source in _listed(file.sources, faults):
                    try:
                        _Download(self, file, source, blob, advance).run()
                    except Fault as fault:
                        faults.append(fault.error)
                        advance(-blob.size)
                        blob.restart()
                    else:
                        return Fetched(blob.sha256, blob.size)
                raise _verdict(file, faults)
        except FetchError as error:
            return error

    @contextmanager
    def _advances(self, file: Wanted) -> Iterator[Advance]:
        """Counts for the whole run, and for a large file also on a bar of its own."""
        if not self.many or (file.size or 0) < OWN_BAR:
            yield self.advance
            return
        with self.progress.track(file.what, file.size) as own:

            def both(count: int) -> None:
                own(count)
                self.advance(count)

            yield both


@dataclass(frozen=True, slots=True)
class _Download:
    """One file out of one source into one blob."""

    shared: _Run
    file: Wanted
    source: Source
    blob: Incoming
    advance: Advance

    def run(self) -> None:
        """Fill the blob. Raises `Fault` when this source cannot give the file."""
        if isinstance(self.source, Path):
            self._copy(self.source)
        elif self.source.startswith("file:"):
            self._copy(Path(url2pathname(split_url(self.source).path)))
        else:
            self._download(self.source)

    def _copy(self, path: Path) -> None:
        try:
            stream = path.open("rb")
        except OSError as error:
            raise Fault(FileGone(f"{path} cannot be read", where=str(path), why=error.strerror or ""), transient=False) from None
        with stream:
            while chunk := stream.read(CHUNK):
                self._write(chunk)
        self._check("")

    def _download(self, url: str) -> None:
        """Ask again after a transient fault, going on where the last answer broke off. Bytes that turn out wrong are fetched once
        more from the start when there is a chance that it was the way and not the source."""
        failures, wrong, furthest = 0, 0, 0
        host = split_url(url).netloc
        while True:
            start = self.blob.size
            try:
                self._check(self._stream(url))
                return
            except Fault as fault:
                if isinstance(fault.error, DownloadDamaged | FileChangedUpstream):
                    wrong += 1
                    if wrong > 1 or (start == 0 and isinstance(fault.error, FileChangedUpstream)):
                        raise
                    self._forget()
                elif start and self.blob.size == start:
                    self._forget()
                if self.blob.size > furthest + _PROGRESS_THAT_COUNTS:
                    furthest, failures = self.blob.size, 0
                failures += 1
                patience = 1 if host in self.shared.dead_hosts else self.shared.transport.patience.attempts
                if not fault.transient or failures >= patience:
                    if isinstance(fault.error, Unreachable):
                        self.shared.dead_hosts.add(host)
                    raise
                if self.shared.stop.wait(self.shared.transport.pause(fault, failures)):
                    raise Stopped from None

    def _stream(self, url: str) -> str:
        """Write the answer's bytes behind those that the blob has; the answer's content type."""
        offset = self.blob.size
        with self.shared.transport.get(url, {"Range": f"bytes={offset}-"} if offset else {}) as response:
            if offset and not response.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
                self._forget()
            content_type = str(response.headers.get("Content-Type", ""))
            try:
                for chunk in response.raw.stream(CHUNK, decode_content=False):
                    self._write(chunk, content_type)
            except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
                raise fault_of(error, url) from None
            return content_type

    def _write(self, chunk: bytes, content_type: str = "") -> None:
        if self.shared.stop.is_set():
            raise Stopped
        self.blob.write(chunk)
        self.advance(len(chunk))
        if self.file.size is not None and self.blob.size > self.file.size:
            self._check(content_type)

    def _forget(self) -> None:
        self.advance(-self.blob.size)
        self.blob.restart()

    def _check(self, content_type: str) -> None:
        """Raises `Fault` when the blob is not the file."""
        size, sha256 = self.file.size, self.file.sha256
        where = str(self.source) if isinstance(self.source, Path) else redact(self.source)
        if size is not None and self.blob.size != size:
            why = f"{'more than' if self.blob.size > size else f'{self.blob.size} bytes instead of'} {size} bytes arrived"
            if "html" in content_type:
                why += ", and they are a web page: perhaps the log-in page of a proxy"
            hint = "run it again; a mirror may be in the middle of an update"
            raise Fault(DownloadDamaged(f"{self.file.what} arrived damaged", where=where, why=why, hint=hint), transient=True)
        if sha256 is not None and self.blob.sha256 != sha256:
            why = f"its sha256 is {self.blob.sha256}, not {sha256}" + ("" if size is None else "; its size is the right one")
            hint = "do not use it before you know why it changed; then lock the spec again"
            raise Fault(FileChangedUpstream(f"{self.file.what} is another file now", where=where, why=why, hint=hint), transient=True)


def _listed(sources: Callable[[], Iterable[Source]], faults: list[FetchError]) -> Iterator[Source]:
    """The sources, until listing them fails."""
    try:
        yield from sources()
    except FetchError as error:
        faults.append(error)


def _verdict(file: Wanted, faults: Sequence[FetchError]) -> FetchError:
    """One error for a file that no source gave: the most telling of the faults, with what the other sources said."""
    gone = all(isinstance(fault, FileGone) for fault in faults)
    if gone:
        asked = "; ".join(dict.fromkeys(f"{fault.what} ({fault.why})" if fault.why else fault.what for fault in faults))
        where = faults[-1].where if faults else ""
        return FileGone(f"{file.what} is gone", where=where, why=asked or "no source knows it", hint=file.hint)
    ranked = sorted(faults, key=lambda fault: next(i for i, kind in enumerate(_TELLING) if isinstance(fault, kind)))
    first = ranked[0]
    if isinstance(first, FileChangedUpstream | DownloadDamaged):
        what, why = first.what, first.why
    else:
        what, why = f"{file.what} could not be fetched", f"{first.what}: {first.why}" if first.why else first.what
    others = [fault.what for fault in itertools.islice(ranked, 1, 4)]
    if others:
        why = f"{why}; and {'; '.join(others)}"
    return type(first)(what, where=first.where, why=why, hint=first.hint)
