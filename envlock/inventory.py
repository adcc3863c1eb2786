"""What a store holds, by kind, and which of it some locks need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from envlock import lock as locks
from envlock.console import table
from envlock.damage import names_of
from envlock.errors import Finding, UsageError
from envlock.lock import Lock
from envlock.locking import SUFFIX
from envlock.progress import human_bytes
from envlock.store import Damage, Store

_HEAD = 512
_KINDS = (
    ("wheels", 0, b"PK"),
    ("Debian packages", 0, b"!<arch>\n"),
    ("layers of base images", 0, b"\x1f\x8b"),
    ("layers of base images", 0, b"\x28\xb5\x2f\xfd"),
    ("layers and bundles", 257, b"ustar"),
)
"""Kind of file by its first bytes: where they stand, and what they are."""
OTHERS = "other files"


@dataclass(frozen=True, slots=True)
class Share:
    """Files of one kind in the store: how many, and their bytes; `needed` counts the bytes that the given locks need."""

    kind: str
    files: int
    bytes: int
    needed: int


def shares(store: Store, needed: frozenset[str]) -> tuple[Share, ...]:
    """What takes the space, largest kind first. `needed` are sha256 in hex."""
    found: dict[str, list[tuple[str, int]]] = {}
    for path in store.blobs():
        found.setdefault(kind_of(path), []).append((path.name, path.stat().st_size))
    rows = [
        Share(kind, len(files), sum(size for _, size in files), sum(size for name, size in files if name in needed))
        for kind, files in found.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.kind)))


def kind_of(path: Path) -> str:
    """What a file of the store is, in words, by its first bytes."""
    with path.open("rb") as stream:
        head = stream.read(_HEAD)
    return next((kind for kind, start, magic in _KINDS if head[start:].startswith(magic)), OTHERS)


def inputs_of(lock: Lock) -> frozenset[str]:
    """sha256 of every file that a lock names: what a build of it reads from the store."""
    return frozenset(names_of(lock))


def find_locks(places: Iterable[Path]) -> tuple[Path, ...]:
    """The lock files among these files and, at any depth, in these folders; sorted. A file that is named is one, whatever it is called."""
    found: set[Path] = set()
    for place in places:
        found |= set(place.rglob(f"*{SUFFIX}")) if place.is_dir() else {place}
    return tuple(sorted(found))


def needed_by(paths: Iterable[Path]) -> frozenset[str]:
    """sha256 of every file that one of these lock files names. Raises what reading a lock raises."""
    return frozenset().union(*(inputs_of(locks.read(path).lock) for path in paths))


def prune(store: Store, needed: frozenset[str]) -> int:
    """Remove what is not needed; the bytes freed. Raises `UsageError` when nothing at all is needed."""
    if not needed:
        hint = "name the locks, or the folders that hold them: envlock store --prune lockfiles"
        raise UsageError("no lock was named, so that everything would go", hint=f"{hint}; to empty the store, remove its folder")
    return store.prune(set(needed))


def damage_findings(damaged: Iterable[Damage]) -> list[Finding]:
    """One fault for each file whose bytes are no longer those of its name."""
    why, hint = "its sha256 is {}, so the disk or something on this machine changed it", "remove it; it is fetched again when it is needed"
    return [
        Finding("store-damaged", "error", f"{damage.sha256} is damaged", str(damage.path), why.format(damage.found), hint)
        for damage in damaged
    ]


def as_json(store: Store, found: Sequence[Share]) -> dict[str, Any]:
    """What `store --json` prints."""
    return {"store": str(store.root), "kinds": [asdict(share) for share in found], "unfinished": store.usage().unfinished}


def as_text(store: Store, found: Sequence[Share]) -> str:
    """What people read after `envlock store`."""
    rows = [(share.kind, str(share.files), human_bytes(share.bytes), human_bytes(share.needed)) for share in found]
    files, size, needed = sum(s.files for s in found), sum(s.bytes for s in found), sum(s.needed for s in found)
    rows.append(("all", str(files), human_bytes(size), human_bytes(needed)))
    unfinished = store.usage().unfinished
    lines = [str(store.root), table(rows, ("KIND", "FILES", "SIZE", "NEEDED BY THESE LOCKS"))]
    return "\n".join(lines + ([f"{human_bytes(unfinished)} are being written"] if unfinished else []))


def pruned_text(store: Store, freed: int) -> str:
    """What people read after `envlock store --prune`."""
    return f"{human_bytes(freed)} freed in {store.root}; layers are made again from what is left when they are needed"


def verified_text(store: Store, damaged: Sequence[Damage]) -> str:
    """What people read after `envlock store --verify`."""
    count = store.usage().blobs
    return f"{len(damaged)} of {count} files are damaged" if damaged else f"all {count} files are what their names say"
