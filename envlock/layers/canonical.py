"""Canonical layers, rules version 1: entries in, the one tar that they make out.

The bytes depend on the entries and on the folders below alone. Sorted by path as bytes, every parent folder present, paths
resolved through symbolic links of the layers below, no owner names, no engine stubs, uncompressed. A change here that changes
bytes is a new `RULES`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO

from envlock.errors import BuildFailed, HostileArchive
from envlock.layers import Layer
from envlock.layers.entry import WHITEOUT, Entry, ancestors, checked_path, is_stub, path_bytes, plain_capability
from envlock.layers.tarfiles import BLOCK, END, header, name_in_tar, padding, read_tar
from envlock.layers.tree import Tree, difference
from envlock.progress import Advance

__all__ = ["ASSEMBLED", "RULES", "Entry", "Plan", "Tree", "difference", "plan_layer", "read_tar", "write_layer"]

RULES = 1
ASSEMBLED = 946_684_800
"""Time of every assembled file: 2000-01-01T00:00:00Z, later than the oldest date that a zip can hold in any time zone."""

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """A layer that is decided and not yet written: its entries in order, and the tar's size in bytes."""

    entries: tuple[Entry, ...]
    size: int

    def write(self, target: BinaryIO, holds: str, advance: Advance = lambda count: None) -> Layer:
        """Write the tar, its sha256 taken on the way. Raises `BuildFailed` when content is not as long as its entry says."""
        sink = _Sink(target, advance)
        for entry in self.entries:
            sink.put(header(entry))
            if entry.kind == "file":
                _write_content(entry, sink)
        sink.put(END)
        sink.flush()
        return Layer(f"sha256:{sink.hasher.hexdigest()}", sink.size, holds)


def write_layer(
    entries: Iterable[Entry], target: BinaryIO, holds: str, below: Tree | None = None, advance: Advance = lambda count: None
) -> Layer:
    """Write the canonical layer of `entries` over `below`; `advance` is told the bytes written."""
    return plan_layer(entries, below).write(target, holds, advance)


def plan_layer(entries: Iterable[Entry], below: Tree | None = None) -> Plan:
    """Decide the canonical layer of `entries` over `below`, without reading any content.

    Raises `HostileArchive` for a path that leads out or passes for a whiteout, and `BuildFailed` where entries contradict each
    other, the folders below, or a hard link leads nowhere.
    """
    tree = below or Tree()
    rows: dict[str, Entry] = {}
    for entry in _resolved(entries, tree):
        known = rows.get(entry.path)
        if known is None:
            rows[entry.path] = entry
        elif known != entry:
            why = f"a {known.kind} with mode {known.mode:o} and a {entry.kind} with mode {entry.mode:o}"
            hint = "let one of its makers put it elsewhere"
            raise BuildFailed(f"/{entry.path} would be written twice", where=entry.path, why=why, hint=hint)
    _refuse_lost_folders(rows, tree)
    _add_parents(rows, tree)
    _share_first_path(rows)
    ordered = tuple(sorted(rows.values(), key=name_in_tar))
    return Plan(ordered, sum(_size_in_tar(entry) for entry in ordered) + len(END))


class _Sink:
    """Gathers small writes, hashes, writes on."""

    def __init__(self, target: BinaryIO, advance: Advance) -> None:
        self.hasher = hashlib.sha256()
        self.size = 0
        self._target = target
        self._advance = advance
        self._small = bytearray()

    def put(self, data: bytes) -> None:
        if len(data) < _CHUNK // 4:
            self._small += data
            if len(self._small) >= _CHUNK:
                self.flush()
        else:
            self.flush()
            self._write(data)

    def flush(self) -> None:
        if self._small:
            self._write(bytes(self._small))
            self._small.clear()

    def _write(self, data: bytes) -> None:
        self.hasher.update(data)
        self._target.write(data)
        self.size += len(data)
        self._advance(len(data))


def _write_content(entry: Entry, sink: _Sink) -> None:
    read = 0
    if entry.open is not None and entry.size:
        with entry.open() as stream:
            while chunk := stream.read(_CHUNK):
                read += len(chunk)
                sink.put(chunk)
    if read != entry.size:
        why = f"{entry.size} bytes were expected and {read} read"
        raise BuildFailed(f"/{entry.path} changed while it was read", where=entry.path, why=why, hint="build again")
    sink.put(padding(read))


def _size_in_tar(entry: Entry) -> int:
    return len(header(entry)) + (entry.size + -entry.size % BLOCK if entry.kind == "file" else 0)


def _resolved(entries: Iterable[Entry], tree: Tree) -> Iterator[Entry]:
    """The entries by the rules, each at the path that it has once the links below are followed."""
    folders: dict[str, str] = {"": ""}

    def folder_of(path: str) -> str:
        if path not in folders:
            folders[path] = tree.resolve(path)
        return folders[path]

    def place(path: str) -> str:
        folder, _, base = path.rpartition("/")
        return f"{folder_of(folder)}/{base}".lstrip("/")

    for entry in entries:
        path = checked_path(entry.path, "layer")
        if not path or entry.kind == "opaque":
            what = f"a layer cannot hold {entry.path!r} as {entry.kind}"
            raise BuildFailed(what, where="layer", hint="report this as a fault of envlock")
        if any(part.startswith(WHITEOUT) for part in path.split("/")):
            why = f"engines read names that begin with {WHITEOUT} as the order to delete a file"
            raise HostileArchive(f"{path!r} cannot be a file in a layer", where=path, why=why, hint="rename it where it is made")
        path = folder_of(path) if entry.kind == "directory" else place(path)
        if not is_stub(path):
            yield _canonical(entry, path, place(entry.target) if entry.kind == "hardlink" else entry.target)


def _canonical(entry: Entry, path: str, target: str) -> Entry:
    if entry.kind == "whiteout":
        return Entry(path, "whiteout", mode=0)
    if entry.kind == "hardlink":
        return Entry(path, "hardlink", target=target)
    mode = 0o777 if entry.kind == "symlink" else entry.mode & 0o7777
    return replace(entry, path=path, target=target, mode=mode, capability=plain_capability(entry.capability))


def _refuse_lost_folders(rows: dict[str, Entry], tree: Tree) -> None:
    for path, row in rows.items():
        node = tree.nodes.get(path)
        if node is not None and node.kind == "directory" and row.kind not in ("directory", "whiteout"):
            why = f"a {row.kind} in its place would hide all that it holds"
            raise BuildFailed(f"/{path} is a folder below", where=path, why=why, hint="let the file go elsewhere")


def _add_parents(rows: dict[str, Entry], tree: Tree) -> None:
    for path in {above for row in rows for above in ancestors(row)}:
        row, node = rows.get(path), tree.nodes.get(path)
        if row is not None:
            kind: str = row.kind
        elif node is None:
            rows[path], kind = Entry(path, "directory", 0o755, mtime=ASSEMBLED), "directory"
        elif node.kind == "directory":
            rows[path], kind = Entry(path, "directory", node.mode, node.uid, node.gid, node.mtime), "directory"
        else:
            kind = node.kind
        if kind != "directory":
            why = f"it is a {kind} there, and files are to lie below it"
            raise BuildFailed(f"/{path} cannot be a folder", where=path, why=why, hint="let one of the two go elsewhere")


def _share_first_path(rows: dict[str, Entry]) -> None:
    """Make the first path of each group of hard links the file, and the others links to it."""
    groups: dict[str, list[str]] = {}
    for entry in rows.values():
        if entry.kind == "hardlink":
            groups.setdefault(_file_behind(entry, rows), []).append(entry.path)
    for file, links in groups.items():
        content = rows[file]
        first, *others = sorted([file, *links], key=path_bytes)
        rows[first] = replace(content, path=first)
        for path in others:
            rows[path] = replace(content, path=path, kind="hardlink", target=first, size=0, capability=None, open=None)


def _file_behind(link: Entry, rows: dict[str, Entry]) -> str:
    seen = {link.path}
    entry: Entry | None = link
    while entry is not None and entry.kind == "hardlink" and entry.target not in seen:
        seen.add(entry.target)
        entry = rows.get(entry.target)
    if entry is None or entry.kind != "file":
        why = f"{link.target!r} is no file of this layer"
        raise BuildFailed(f"the hard link /{link.path} leads nowhere", where=link.path, why=why, hint="make the archive again")
    return entry.path
