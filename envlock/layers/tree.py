"""Tree: the merged files of the layers below, as values, and the difference between two trees.

A tree knows of each file its sha256, not its content; of the few files that envlock itself reads it keeps the text as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from io import BytesIO
from typing import BinaryIO, cast

from envlock.errors import BuildFailed
from envlock.layers.entry import Entry, Kind, ancestors, is_stub
from envlock.layers.parts import part_of
from envlock.layers.tarfiles import read_tar

KEPT = frozenset({"etc/passwd", "etc/group", "etc/os-release", "usr/lib/os-release"})

_CHUNK = 1 << 20
_MOST_LINKS = 40  # as the Linux kernel: path_resolution(7)


@dataclass(frozen=True, slots=True)
class Node:
    """One path of a tree. A hard link is the node of its file; `sha256` (hex) is that of a file's content."""

    kind: Kind
    mode: int
    uid: int
    gid: int
    mtime: int
    size: int = 0
    target: str = ""
    capability: bytes | None = None
    sha256: str = ""


DEFAULT_FOLDER = Node("directory", 0o755, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Tree:
    """The files that lie below a layer. Stubs of the engine are no part of it."""

    nodes: Mapping[str, Node] = field(default_factory=dict)
    kept: Mapping[str, bytes] = field(default_factory=dict)

    def with_tar(self, stream: BinaryIO, where: str) -> Tree:
        """This tree with a layer's tar (or a whole tree's) laid over it. Raises as `read_tar`."""
        return self.with_entries(read_tar(stream, where), where)

    def with_entries(self, entries: Iterable[Entry], where: str) -> Tree:
        """This tree with a layer's entries laid over it; contents are read for their hashes."""
        new: dict[str, Node] = {}
        kept: dict[str, bytes] = {}
        replaced: set[str] = set()
        opaque: set[str] = set()
        for entry in entries:
            if is_stub(entry.path):
                continue
            if entry.kind == "opaque":
                opaque.add(entry.path)
                continue
            if entry.kind != "directory":
                replaced.add(entry.path)
            if entry.kind == "hardlink":
                new[entry.path] = self._linked(entry, new, where)
            elif entry.kind != "whiteout":
                new[entry.path] = node_of(entry, kept)
        for above in {above for path in new for above in ancestors(path)}:
            below = self.nodes.get(above)
            if above not in new and (below is None or below.kind != "directory" or above in replaced):
                new[above] = DEFAULT_FOLDER
        hidden = _hidden(replaced, opaque)
        nodes = {path: node for path, node in self.nodes.items() if not hidden(path)}
        texts = {path: text for path, text in self.kept.items() if path in nodes}
        return Tree({**nodes, **new}, {**texts, **kept})

    def _linked(self, entry: Entry, new: Mapping[str, Node], where: str) -> Node:
        node = new.get(entry.target) or self.nodes.get(entry.target)
        if node is None:
            why = f"there is no {entry.target!r} before it"
            raise BuildFailed(f"the hard link {entry.path!r} leads nowhere", where=where, why=why, hint="make the archive again")
        return node

    def resolve(self, path: str) -> str:
        """The path with every symbolic link on the way followed, the last part included. Raises `BuildFailed` on a loop."""
        ahead = path.split("/")[::-1]
        done: list[str] = []
        followed = 0
        while ahead:
            part = ahead.pop()
            if part in ("", "."):
                continue
            if part == "..":
                del done[-1:]
                continue
            done.append(part)
            node = self.nodes.get("/".join(done))
            if node is None or node.kind != "symlink":
                continue
            followed += 1
            if followed > _MOST_LINKS:
                hint = "take the links out of the base, or choose another path"
                raise BuildFailed(f"/{path} runs in a circle of symbolic links", where=path, hint=hint)
            done = [] if node.target.startswith("/") else done[:-1]
            ahead.extend(node.target.split("/")[::-1])
        return "/".join(done)


def node_of(entry: Entry, kept: dict[str, bytes] | None = None) -> Node:
    """The node of a file, folder or symbolic link; reads a file's content, and keeps it in `kept` if it is one of `KEPT`."""
    digest = ""
    if entry.kind == "file":
        hasher = hashlib.sha256()
        text = BytesIO()
        with _opened(entry) as stream:
            while chunk := stream.read(_CHUNK):
                hasher.update(chunk)
                if kept is not None and entry.path in KEPT:
                    text.write(chunk)
        digest = hasher.hexdigest()
        if kept is not None and entry.path in KEPT:
            kept[entry.path] = text.getvalue()
    mode = 0o777 if entry.kind == "symlink" else entry.mode & 0o7777
    return Node(entry.kind, mode, entry.uid, entry.gid, entry.mtime, entry.size, entry.target, entry.capability, digest)


def _opened(entry: Entry) -> BinaryIO:
    return entry.open() if entry.open is not None else BytesIO()


def _hidden(replaced: set[str], opaque: set[str]) -> Callable[[str], bool]:
    def hidden(path: str) -> bool:
        return path in replaced or any(above in replaced or above in opaque for above in ancestors(path)) or "" in opaque

    return hidden


@dataclass(frozen=True, slots=True)
class _Found:
    """A path of the upper tree: its entry, its node, and where its content lies in the scratch file (None: not kept)."""

    entry: Entry
    node: Node
    offset: int | None = None


def difference(lower: Tree, upper: Callable[[], BinaryIO], scratch: BinaryIO, latest: int, where: str) -> tuple[Entry, ...]:
    """What a layer over `lower` must hold to give the upper tree, with every parent folder: ready for `write_layer`.

    `upper` opens the tar of the upper tree (twice, where a file that did not change got another name); the content of what
    changed is kept in `scratch`, an empty file open for reading and writing, which the entries read from later. Times later than `latest`
    (seconds since 1970) become that. A folder's time alone is no difference; a file's is, since bytecode may rest on it.
    Raises as `read_tar`.
    """
    found, links = _read_upper(lower, upper(), scratch, latest, where)
    changed = {path for path, item in found.items() if lower.nodes.get(path) is None or _differs(lower.nodes[path], item.node)}
    groups: dict[str, set[str]] = {}
    for link, file in links.items():
        groups.setdefault(file, {file}).add(link)
    for paths in groups.values():
        if paths & changed:
            changed |= paths
    lacking = {path for path in changed if found[path].entry.kind == "file" and found[path].offset is None}
    if lacking:
        found |= _read_lacking(lacking, found, upper(), scratch, where)
    gone = {path for path in lower.nodes if path not in found}
    whiteouts = {path for path in gone if _holds_on(path, found)}
    parents = {above for path in changed | whiteouts for above in ancestors(path)} - changed
    return tuple(
        [_from_scratch(found[path], scratch) for path in sorted(changed)]
        + [Entry(path, "whiteout", mode=0) for path in sorted(whiteouts)]
        + [_as_below(path, lower) for path in sorted(parents)]
    )


def _read_upper(lower: Tree, stream: BinaryIO, scratch: BinaryIO, latest: int, where: str) -> tuple[dict[str, _Found], dict[str, str]]:
    found: dict[str, _Found] = {}
    links: dict[str, str] = {}
    with stream:
        for read in read_tar(stream, where):
            entry = replace(read, mtime=min(read.mtime, latest))
            if is_stub(entry.path):
                continue
            if entry.kind == "hardlink":
                links[entry.path] = file = links.get(entry.target, entry.target)
                if file not in found:
                    hint = "export the container again"
                    raise BuildFailed(f"the hard link {entry.path!r} leads nowhere", where=where, hint=hint)
                found[entry.path] = _Found(replace(entry, target=file), found[file].node)
                continue
            start = scratch.tell()
            node = node_of(_copied(entry, scratch))
            below = lower.nodes.get(entry.path)
            if entry.kind == "file" and below is not None and not _differs(below, node):
                scratch.seek(start)
                found[entry.path] = _Found(replace(entry, open=None), node)
            else:
                found[entry.path] = _Found(replace(entry, open=None), node, start)
    return found, links


def _read_lacking(lacking: set[str], found: Mapping[str, _Found], stream: BinaryIO, scratch: BinaryIO, where: str) -> dict[str, _Found]:
    """The content of files that did not change, and are needed since a hard link to them is new."""
    again: dict[str, _Found] = {}
    with stream:
        for entry in read_tar(stream, where):
            if entry.path in lacking:
                start = scratch.tell()
                node_of(_copied(entry, scratch))
                again[entry.path] = replace(found[entry.path], offset=start)
    return again


def _differs(below: Node, node: Node) -> bool:
    return replace(below, mtime=node.mtime) != node if node.kind == "directory" else below != node


def _holds_on(path: str, found: Mapping[str, _Found]) -> bool:
    """Whether the folder of a path that is gone is still a folder, so that the path must be struck out itself."""
    folder = path.rpartition("/")[0]
    return folder == "" or (folder in found and found[folder].entry.kind == "directory")


def _as_below(path: str, lower: Tree) -> Entry:
    node = lower.nodes[path]
    return Entry(path, "directory", node.mode, node.uid, node.gid, node.mtime)


class _Copying:
    """Reads a stream, and writes what it read to another."""

    def __init__(self, source: BinaryIO, target: BinaryIO) -> None:
        self._source = source
        self._target = target

    def read(self, size: int) -> bytes:
        data = self._source.read(size)
        self._target.write(data)
        return data

    def __enter__(self) -> _Copying:
        return self

    def __exit__(self, *_: object) -> None:
        self._source.close()


def _copied(entry: Entry, scratch: BinaryIO) -> Entry:
    return entry if entry.kind != "file" else replace(entry, open=lambda: cast(BinaryIO, _Copying(_opened(entry), scratch)))


def _from_scratch(item: _Found, scratch: BinaryIO) -> Entry:
    start = item.offset
    if item.entry.kind != "file" or start is None:
        return item.entry
    return replace(item.entry, open=partial(part_of, scratch, start, item.entry.size))
