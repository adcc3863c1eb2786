"""What a rebuild of a lock would need from outside today, and whether it is still there.

Nothing is downloaded: a project page is read, and of each file the first byte is asked for. A file that is served is not hashed; a
build does that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal
from urllib.parse import quote
from urllib.request import url2pathname

from envlock.errors import EnvlockError, FetchError, FileGone, Finding, Severity
from envlock.lock import Deb, DebianBase, ImageBase, Lock, Wheel
from envlock.progress import Progress
from envlock.resolve.archives import find_archives, snapshot_url
from envlock.resolve.indexes import Indexes, read_indexes
from envlock.resolve.pages import Pages
from envlock.resolve.reference import parse_reference
from envlock.resolve.registry import Repository
from envlock.resolve.uv import Uv
from envlock.resolve.wheelsources import WheelSources
from envlock.secrecy import redact
from envlock.store import Store
from envlock.transport import Fault, Transport
from envlock.urls import split_url

State = Literal["there", "delisted", "gone", "unknown"]
_WORKERS = 8


@dataclass(frozen=True, slots=True)
class Outside:
    """One source of a lock: what it gives, whether it is there, where that was seen, and why it is thought so.

    `delisted`: no list names it any more (an index's page, a mirror, a tag), and yet it is served. `unknown`: could not be asked.
    `stored` tells whether the store has the file, so that a build here needs no source.
    """

    what: str
    state: State
    where: str
    why: str
    stored: bool

    @property
    def finding(self) -> Finding | None:
        """As `lock --check` says it, None where all is well; what the store has is no fault of a build here."""
        kept = "the store has it: " if self.stored else ""
        hint = f"{kept}keep it with `envlock pin --vendor all`, or lock the spec again"
        if self.state == "delisted":
            return Finding("source-delisted", "warning", f"{self.what} is delisted but still served", self.where, self.why, hint)
        if self.state == "gone":
            severity: Severity = "warning" if self.stored else "error"
            return Finding("source-gone", severity, f"{self.what} is gone", self.where, self.why, hint)
        if self.state == "unknown":
            return Finding("source-unknown", "warning", f"{self.what} could not be asked for", self.where, self.why, hint)
        return None


def sources_of(lock: Lock, store: Store, progress: Progress, transport: Transport | None = None) -> tuple[Outside, ...]:
    """Every outside source of a lock, in its order: base image, Debian packages, wheels. What the network says is never raised."""
    carrier = transport or Transport()
    jobs = [*_base_jobs(lock, store, progress, carrier), *_deb_jobs(lock, store, carrier), *_wheel_jobs(lock, store, carrier)]
    with progress.track(f"asked for {len(jobs)} sources"), ThreadPoolExecutor(_WORKERS) as pool:
        return tuple(pool.map(lambda job: job(), jobs))


Job = Callable[[], Outside]


def _served(url: str, transport: Transport) -> tuple[State, str]:
    """Whether a URL serves something, by its first byte; and what stood in the way."""
    if url.startswith("file:"):
        return ("there", "") if Path(url2pathname(split_url(url).path)).is_file() else ("gone", "there is no such file")
    try:
        transport.get(url, {"Range": "bytes=0-0"}).close()
    except Fault as fault:
        return ("gone" if isinstance(fault.error, FileGone) else "unknown"), fault.error.why or fault.error.what
    return "there", ""


def _first(places: Iterable[str], transport: Transport) -> tuple[State, str, str]:
    """The first of several URLs that serves; else the last that could not be asked, else that all are gone."""
    verdict: tuple[State, str, str] = ("gone", "", "no source is known here")
    for url in places:
        state, why = _served(url, transport)
        if state == "there":
            return "there", redact(url), ""
        if state == "unknown" or verdict[0] == "gone":
            verdict = (state, redact(url), why)
    return verdict


# wheels


def _wheel_jobs(lock: Lock, store: Store, transport: Transport) -> Iterator[Job]:
    pages = Pages(transport)
    try:
        indexes = read_indexes(Uv.find())
    except EnvlockError as error:
        for wheel in (*lock.wheels, lock.installer):
            yield partial(Outside, wheel.file, "unknown", "", error.what, store.has(wheel.sha256, wheel.size))
        return
    for wheel in (*lock.wheels, lock.installer):
        yield partial(_wheel, wheel, indexes, pages, transport, store.has(wheel.sha256, wheel.size))


def _wheel(wheel: Wheel, indexes: Indexes, pages: Pages, transport: Transport, stored: bool) -> Outside:
    """A wheel that an index's page or a folder names is there; one that only its path by content gives is delisted."""
    faults: list[str] = []
    for index in _indexes_of(wheel, indexes):
        try:
            listed = [offer.url for offer in pages.project(index, wheel.name) if offer.file == wheel.file]
        except FileGone:
            continue
        except FetchError as error:
            faults.append(error.what)
            continue
        state, where, _ = _first(listed, transport)
        if state == "there":
            return Outside(wheel.file, "there", where, "", stored)
    places = WheelSources(indexes, pages).of(wheel)
    try:
        for source in places:
            if isinstance(source, Path):
                return Outside(wheel.file, "there", str(source), "", stored)
            if _served(source, transport)[0] == "there":
                return Outside(wheel.file, "delisted", redact(source), "no index names it any more", stored)
    except FetchError as error:
        faults.append(error.what)
    why = faults[0] if faults else "no index names it, and it is not served where it was"
    return Outside(wheel.file, "unknown" if faults else "gone", "", why, stored)


def _indexes_of(wheel: Wheel, indexes: Indexes) -> Sequence[str]:
    """The index that a wheel was locked from, then the user's others."""
    own: list[str] = []
    if wheel.index == "default" and indexes.default is not None:
        own = [indexes.default]
    elif wheel.index == "pytorch":
        own = [f"{indexes.pytorch}/{(wheel.path or f'whl/{wheel.file}').rpartition('/')[0]}"]
    elif wheel.index in indexes.named:
        own = [indexes.named[wheel.index]]
    return list(dict.fromkeys([*own, *indexes.named.values(), *indexes.unnamed]))


# Debian packages


def _deb_jobs(lock: Lock, store: Store, transport: Transport) -> Iterator[Job]:
    base = lock.base
    if not lock.debs:
        return
    suite = base.suite if isinstance(base, DebianBase) else base.facts.get("VERSION_CODENAME", "")
    snapshot = base.snapshot if isinstance(base, DebianBase) else ""
    try:
        archives = find_archives(suite) if isinstance(base, DebianBase) else ()
    except EnvlockError as error:
        for deb in lock.debs:
            yield partial(Outside, f"{deb.name} {deb.version}", "unknown", "", error.what, store.has(deb.sha256, deb.size))
        return
    for deb in lock.debs:
        urls = [archive.url for archive in sorted(archives, key=lambda archive, deb=deb: archive.alias != deb.archive)]  # type: ignore[misc]
        yield partial(_deb, deb, urls, snapshot, transport, store.has(deb.sha256, deb.size))


def _deb(deb: Deb, archives: Sequence[str], snapshot: str, transport: Transport, stored: bool) -> Outside:
    """A package that a mirror serves is there; mirrors drop it when a newer one comes, and then a snapshot service may have it."""
    what, path = f"{deb.name} {deb.version}", quote(deb.path, safe="/~")
    usable = [url for url in archives if split_url(url).scheme in ("http", "https", "file")]
    if not usable:
        why = "its archive is known to the base image alone" if not archives else "its archive is reached through apt alone"
        return Outside(what, "unknown", deb.archive, why, stored)
    state, where, why = _first([url + path for url in usable], transport)
    if state == "there":
        return Outside(what, state, where, why, stored)
    earlier = snapshot_url(deb.archive, snapshot) if snapshot else None
    if earlier is not None and _served(earlier + path, transport)[0] == "there":
        return Outside(what, "delisted", redact(earlier + path), "mirrors dropped it; the snapshot service has it", stored)
    return Outside(what, state, where, why, stored)


# base images


def _base_jobs(lock: Lock, store: Store, progress: Progress, transport: Transport) -> Iterator[Job]:
    base = lock.base
    if isinstance(base, ImageBase):
        stored = all(store.has(blob.digest.removeprefix("sha256:"), blob.size) for blob in base.layers)
        if base.kind == "image":
            yield partial(_base, base, progress, transport, stored)
        elif not stored:
            yield partial(Outside, base.reference, "unknown", base.reference, "it is a file beside the spec", stored)


def _base(base: ImageBase, progress: Progress, transport: Transport, stored: bool) -> Outside:
    """An image whose tag still means it is there; one that only its digest gives is delisted."""
    repository = Repository(parse_reference(base.reference), progress, transport)
    try:
        if repository.manifest(repository.reference.wanted).digest in (base.index_digest, base.manifest_digest):
            return Outside(base.reference, "there", repository.reference.host, "", stored)
    except FileGone:
        pass
    except FetchError as error:
        return Outside(base.reference, "unknown", repository.reference.host, error.what, stored)
    try:
        repository.manifest(base.manifest_digest)
    except FileGone as error:
        return Outside(base.reference, "gone", repository.reference.host, error.why, stored)
    except FetchError as error:
        return Outside(base.reference, "unknown", repository.reference.host, error.what, stored)
    return Outside(base.reference, "delisted", repository.reference.host, "its tag means another image now, or is gone", stored)
