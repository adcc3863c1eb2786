"""The inputs of a lock as files: which lie in an artifact, where, and what must be fetched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from envlock.artifact import layout
from envlock.artifact.layout import Vendor
from envlock.lock import Deb, DebianBase, Lock, Wheel


@dataclass(frozen=True, slots=True)
class Input:
    """One file that goes into the image: its place in an artifact, sha256 in hex, size in bytes, and how it is had elsewhere.

    `least` is the smallest choice of `--vendor` that brings it along; `place` names an index or archive by its alias, and the path there.
    """

    path: str
    sha256: str
    size: int
    least: Vendor
    name: str
    place: str = ""

    def lies_in(self, vendor: Vendor) -> bool:
        """Whether an artifact of that kind holds it."""
        order: tuple[Vendor, ...] = ("none", "wheels", "all")
        return order.index(self.least) <= order.index(vendor)


def inputs_of(lock: Lock) -> tuple[Input, ...]:
    """Every file of a lock, once each, sorted by path. The bundle and the spec's own files are had nowhere else: they always lie there."""
    rows = {row.path: row for row in _rows(lock)}
    return tuple(rows[path] for path in sorted(rows))


def _rows(lock: Lock) -> Iterator[Input]:
    yield Input(layout.BUNDLE, lock.shipped.sha256, lock.shipped.size, "none", f"self-test of envlock {lock.shipped.envlock}")
    for file in lock.files:
        yield Input(f"{layout.SPEC_FOLDER}/{file.source}", file.sha256, file.size, "none", file.source)
    for wheel in lock.wheels:
        yield _wheel(wheel, "wheels")
    yield _wheel(lock.installer, "installer")
    if isinstance(lock.base, DebianBase):
        yield from (_deb(deb, layout.DEBS) for deb in lock.base.debs)
    else:
        for blob in lock.base.layers:
            hex_digest = blob.digest.removeprefix("sha256:")
            place = f"{lock.base.reference}: {blob.digest}"
            yield Input(f"{layout.BASE_BLOBS}/{hex_digest}", hex_digest, blob.size, "all", f"layer of {lock.base.reference}", place)
    if lock.apt is not None:
        yield from (_deb(deb, f"{layout.CONTEXT}/debs") for deb in lock.apt.debs)


def _deb(deb: Deb, folder: str) -> Input:
    path = f"{folder}/{deb.path.rpartition('/')[2]}"
    return Input(path, deb.sha256, deb.size, "all", f"{deb.name} {deb.version}", f"{deb.archive}: {deb.path}")


def _wheel(wheel: Wheel, folder: str) -> Input:
    place = f"{wheel.index}: {wheel.path or wheel.file}"
    return Input(f"{layout.CONTEXT}/{folder}/{wheel.file}", wheel.sha256, wheel.size, "wheels", f"{wheel.name} {wheel.version}", place)


def fetch_list(lock: Lock, vendor: Vendor) -> bytes:
    """What a rebuild must fetch, as JSON; empty where all lies here."""
    rows = [
        {"file": row.path, "holds": row.name, "sha256": row.sha256, "size": row.size, "from": row.place}
        for row in inputs_of(lock)
        if not row.lies_in(vendor)
    ]
    return (json.dumps(rows, indent=1, ensure_ascii=False) + "\n").encode()
