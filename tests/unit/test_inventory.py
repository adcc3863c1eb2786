"""Files in a store in, what takes the space and what goes out."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from envlock import inventory
from envlock.errors import UsageError
from envlock.inventory import find_locks, inputs_of, needed_by, shares
from envlock.lock import read
from envlock.store import Store

LOCK = Path(__file__).parents[2] / "lockfiles" / "cpu.lock.yaml"
WHEEL, DEB, TAR, TEXT = b"PK\x03\x04wheel", b"!<arch>\ndebian", b"\0" * 257 + b"ustar\x0000", b"hello"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path / "store")
    for content in (WHEEL, DEB, TAR, TEXT, b"\x1f\x8bbase"):
        with found.incoming() as blob:
            blob.write(content)
    return found


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_kinds_are_told_by_the_first_bytes(store: Store) -> None:
    found = {share.kind: (share.files, share.bytes, share.needed) for share in shares(store, frozenset({sha256(WHEEL)}))}
    assert found == {
        "wheels": (1, len(WHEEL), len(WHEEL)),
        "Debian packages": (1, len(DEB), 0),
        "layers and bundles": (1, len(TAR), 0),
        "layers of base images": (1, 6, 0),
        "other files": (1, len(TEXT), 0),
    }


def test_prune_keeps_what_is_needed(store: Store) -> None:
    freed = inventory.prune(store, frozenset({sha256(WHEEL)}))
    assert [path.name for path in store.blobs()] == [sha256(WHEEL)]
    assert freed == len(DEB) + len(TAR) + len(TEXT) + 6


def test_prune_without_locks_is_refused(store: Store) -> None:
    with pytest.raises(UsageError):
        inventory.prune(store, needed_by([]))
    assert len(store.blobs()) == 5


def test_a_lock_needs_every_file_that_it_names() -> None:
    needed, text = inputs_of(read(LOCK).lock), LOCK.read_text()
    assert needed
    assert all(len(digest) == 64 and digest in text for digest in needed)
    assert text.count("sha256: ") - text.count("sha256: sha256") == len(needed), "every wheel, .deb, file and bundle of the lock"


def test_locks_are_found_in_folders_and_by_name(tmp_path: Path) -> None:
    for name in ("a/x.lock.yaml", "a/b/y.lock.yaml", "a/other.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    found = find_locks([tmp_path / "a", tmp_path / "a/other.yaml"])
    assert [path.name for path in found] == ["y.lock.yaml", "other.yaml", "x.lock.yaml"]


def test_damage_is_reported(store: Store) -> None:
    path = store.path(sha256(TEXT))
    path.chmod(0o644)
    path.write_bytes(b"other")
    (finding,) = inventory.damage_findings(store.verify())
    assert (finding.id, finding.where) == ("store-damaged", str(path))
