"""From requirements to locked wheels: uv resolves, one file per package is chosen for the target, and its bytes are fetched.

A locked wheel says nothing of the machine it was locked on: `aliases.py` has the rule by which its index is named.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path

from envlock.errors import DamagedArchive
from envlock.fetch import Source, Wanted, fetch_all
from envlock.lock import Wheel
from envlock.progress import Progress
from envlock.resolve.aliases import Aliases
from envlock.resolve.indexes import left_out, read_indexes
from envlock.resolve.pages import Pages
from envlock.resolve.requirements import read_requirements
from envlock.resolve.solver import Solver
from envlock.resolve.uv import Uv
from envlock.resolve.wheelsources import WheelSources
from envlock.resolve.wish import PythonWish
from envlock.store import CHUNK, Store
from envlock.transport import Transport
from envlock.zips import BROKEN_ZIP

__all__ = ["PythonWish", "newest_date", "resolve_wheels", "wheel_date", "wheel_wanted"]

SUPPLY = "put the file into a folder and name it in find-links (PIP_FIND_LINKS, pip.conf or uv.toml), or lock the spec again"
# Zip dates reach to 2107; nothing after this year is more than a clock gone wrong.
_LAST_YEAR = 2099


def resolve_wheels(
    wish: PythonWish, store: Store, progress: Progress, keep: Sequence[Wheel] = (), environ: Mapping[str, str] = os.environ
) -> tuple[Wheel, ...]:
    """Every wheel that the wish stands for, its bytes in the store, sorted by name. Versions in `keep` are preferred where they fit.

    Raises `NeedsCompiling` for a package without a wheel, `NoSolution` with uv's reasoning, a `FetchError`, `ToolMissing`,
    `UsageError`, or `Problems` of several.
    """
    files = read_requirements(wish.requirement_files)
    uv = Uv.find()
    indexes = read_indexes(uv, environ)
    for name in left_out(environ):
        progress.say(f"pip's `{name}` setting is not applied: a lock depends on its spec alone")
    pages = Pages(Transport(environ=environ))
    kept = {wheel.name: wheel for wheel in keep}
    with store.scratch() as scratch:
        # Index addresses may hold credentials.
        folder = scratch / "uv"
        folder.mkdir(mode=0o700)
        with progress.track("resolved Python packages"):
            choices = Solver(wish, files, uv, indexes, pages).solve(folder, kept)
            aliases = Aliases(wish, indexes, pages).of_all(choices, kept)
        wanted = [Wanted(choice.file, choice.sha256, choice.size, partial(_only, choice.source), SUPPLY) for choice in choices]
        got = fetch_all(wanted, store, progress, transport=pages.transport)
    wheels = []
    for choice, blob in zip(choices, got, strict=True):
        index, path = aliases[choice.name].index, aliases[choice.name].path
        if index == "default" and path is None:
            path = _path_by_content(store.path(blob.sha256), choice.file)
        wheels.append(
            Wheel(name=choice.name, version=choice.version, file=choice.file, sha256=blob.sha256, size=blob.size, index=index, path=path)
        )
    return tuple(wheels)


def _wheel_sources(wheel: Wheel) -> Iterable[Source]:
    """Where a locked wheel may be had with this user's settings, looked up when asked for, best first. Raises `FetchError`."""
    return _sources_of_this_user().of(wheel)


def wheel_wanted(wheel: Wheel) -> Wanted:
    """A locked wheel as `fetch_all` takes it."""
    return Wanted(wheel.file, wheel.sha256, wheel.size, partial(_wheel_sources, wheel), SUPPLY)


def newest_date(wheels: Iterable[Wheel], store: Store) -> int:
    """The newest date inside any of the wheels, in seconds since 1970 UTC; 0 when there is none."""
    return max((wheel_date(store.path(wheel.sha256)) for wheel in wheels), default=0)


def wheel_date(path: Path) -> int:
    """The newest date of an entry of a wheel, in seconds since 1970; 0 when it has none.

    Zip dates have no time zone and are read as UTC. Impossible dates, and those after 2099, are passed over. Raises `DamagedArchive`.
    """
    newest = 0
    for entry in _entries(path):
        try:
            date = datetime(*entry.date_time, tzinfo=UTC)
        except ValueError:
            continue
        if date.year <= _LAST_YEAR:
            newest = max(newest, int(date.timestamp()))
    return newest


def _entries(path: Path) -> list[zipfile.ZipInfo]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.infolist()
    except BROKEN_ZIP as error:
        hint = "its index has it so: ask its makers, or pin another version"
        raise DamagedArchive("a wheel is no zip file", where=path.name, why=str(error), hint=hint) from None


@cache
def _sources_of_this_user() -> WheelSources:
    return WheelSources(read_indexes(Uv.find()), Pages(Transport()))


def _only(source: Source) -> list[Source]:
    return [source]


def _path_by_content(path: Path, file: str) -> str:
    """Where the default index keeps these bytes: it names a file by its BLAKE2b-256 (warehouse, `warehouse/forklift/legacy.py`)."""
    digest = hashlib.blake2b(digest_size=32)
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    text = digest.hexdigest()
    return f"packages/{text[:2]}/{text[2:4]}/{text[4:]}/{file}"
