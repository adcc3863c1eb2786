"""Entries and layers in few words, for the tests of `layers/`."""

from __future__ import annotations

import hashlib
import io
import tarfile

from envlock.layers.canonical import Entry, Tree, plan_layer, write_layer


def file(path: str, content: bytes = b"", **more) -> Entry:
    return Entry(path, "file", **{"mtime": 5, "size": len(content), "open": lambda: io.BytesIO(content), **more})


def folder(path: str, **more) -> Entry:
    return Entry(path, "directory", **{"mode": 0o755, "mtime": 5, **more})


def symlink(path: str, target: str) -> Entry:
    return Entry(path, "symlink", target=target, mtime=5)


def hardlink(path: str, target: str) -> Entry:
    return Entry(path, "hardlink", target=target)


def tree(*entries: Entry) -> Tree:
    return Tree().with_entries(entries, "below")


def written(*entries: Entry, below: Tree | None = None) -> bytes:
    target = io.BytesIO()
    layer = write_layer(entries, target, "test", below)
    assert layer.size == len(target.getvalue()) == plan_layer(entries, below).size
    assert layer.diff_id == "sha256:" + hashlib.sha256(target.getvalue()).hexdigest()
    return target.getvalue()


def members(raw: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(raw), encoding="utf-8") as tar:
        return {member.name: member for member in tar}
