"""The rootfs digest, rules version 1: what the merged file tree of an image is, read through any engine; and how two trees differ.

The digest is the sha256 over the line `envlock rootfs 1`, then one line for each path, sorted by path as bytes. A line ends with a
line feed and holds, separated by null bytes: path, kind (directory, file, symlink), mode in octal (07777), uid, gid, target of a
symbolic link, `security.capability` in hex without a namespace's owner, sha256 of a file's content in hex. Times are no part of it,
and a hard link counts as a file. Left out are the root folder itself, what engines put into every container (`entry.is_stub`),
FIFOs, sockets and devices. A change of these rules is a new version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import BinaryIO, Literal

from envlock.layers.canonical import Tree, read_tar
from envlock.layers.entry import ancestors, path_bytes
from envlock.layers.tree import Node

RULES = 1

DifferenceKind = Literal["missing", "extra", "type", "content", "target", "mode", "owner", "capability", "time"]

_SHOWN = 40  # bytes shown around the first byte that differs
_MOST_TEXT = 4 * 2**20  # bytes of a file that are looked at for its first difference


@dataclass(frozen=True)
class Rootfs:
    """A merged file tree, stubs left out."""

    tree: Tree

    @property
    def nodes(self) -> Mapping[str, Node]:
        """What each path is."""
        return self.tree.nodes

    def with_layer(self, stream: BinaryIO, where: str) -> Rootfs:
        """This tree with a layer's tar laid over it. Raises as `read_tar`."""
        return Rootfs(self.tree.with_tar(stream, where))

    @cached_property
    def digest(self) -> str:
        """`sha256:…` under the rules above."""
        hasher = hashlib.sha256(b"envlock rootfs %d\n" % RULES)
        for path, node in sorted((path_bytes(path), node) for path, node in self.nodes.items()):
            hasher.update(_line(path, node))
        return f"sha256:{hasher.hexdigest()}"


def read_rootfs(stream: BinaryIO, where: str) -> Rootfs:
    """The tree in an exported tar, read once from front to back; contents are hashed, not kept. Raises as `read_tar`."""
    return Rootfs(Tree()).with_layer(stream, where)


def _line(path: bytes, node: Node) -> bytes:
    owner = f"{node.mode:o}\0{node.uid}\0{node.gid}".encode()
    capability = (node.capability or b"").hex().encode()
    return b"\0".join((path, node.kind.encode(), owner, path_bytes(node.target), capability, node.sha256.encode())) + b"\n"


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """Where two texts part: offset in bytes from 0, line from 1, and what stands there in each."""

    offset: int
    line: int
    one: str
    other: str


@dataclass(frozen=True, slots=True)
class Difference:
    """One way in which a path differs between one tree and another.

    `missing` is in the first tree only, `extra` in the second only. A differing time is information: it is no part of the digest.
    `one` and `other` say what the respective tree has. `first` is there for text whose content differs.
    """

    path: str
    kind: DifferenceKind
    one: str = ""
    other: str = ""
    first: FirstDifference | None = None

    @property
    def counts(self) -> bool:
        """Whether it makes the digests differ."""
        return self.kind != "time"


def differences(one: Rootfs, other: Rootfs) -> tuple[Difference, ...]:
    """All differences, sorted by path. Below a folder that one tree lacks only the folder is named."""
    found: list[Difference] = []
    absent: set[str] = set()
    for path in sorted(one.nodes.keys() | other.nodes.keys(), key=path_bytes):
        a, b = one.nodes.get(path), other.nodes.get(path)
        if a is not None and b is not None:
            found += _between(path, a, b)
        elif absent.isdisjoint(ancestors(path)):
            node = a or b
            assert node is not None
            absent |= {path} if node.kind == "directory" else set()
            found.append(Difference(path, "missing", one=_told(node)) if a else Difference(path, "extra", other=_told(node)))
    return tuple(found)


def _between(path: str, a: Node, b: Node) -> Iterator[Difference]:
    if a.kind != b.kind:
        yield Difference(path, "type", a.kind, b.kind)
        return
    if a.sha256 != b.sha256:
        yield Difference(path, "content", f"{a.size} bytes, sha256 {a.sha256[:12]}", f"{b.size} bytes, sha256 {b.sha256[:12]}")
    if a.target != b.target:
        yield Difference(path, "target", a.target, b.target)
    if a.mode != b.mode:
        yield Difference(path, "mode", f"{a.mode:04o}", f"{b.mode:04o}")
    if (a.uid, a.gid) != (b.uid, b.gid):
        yield Difference(path, "owner", f"{a.uid}:{a.gid}", f"{b.uid}:{b.gid}")
    if a.capability != b.capability:
        yield Difference(path, "capability", _hex(a.capability), _hex(b.capability))
    if a.mtime != b.mtime and a.kind == "file":
        yield Difference(path, "time", str(a.mtime), str(b.mtime))


def _hex(capability: bytes | None) -> str:
    return "none" if capability is None else capability.hex()


def _told(node: Node) -> str:
    return f"{node.kind} of {node.size} bytes" if node.kind == "file" else node.kind


def with_first_differences(found: Sequence[Difference], one: BinaryIO, other: BinaryIO, most: int = 20) -> tuple[Difference, ...]:
    """The same differences, of the first `most` contents that differ with the place where their text does.

    `one` and `other` are the tars of the two trees once more, each read once. Binary files stay as they are.
    """
    wanted = frozenset([difference.path for difference in found if difference.kind == "content"][:most])
    texts = [_texts(stream, wanted) for stream in (one, other)]
    return tuple(
        replace(difference, first=_first(texts[0][difference.path], texts[1][difference.path]))
        if difference.kind == "content" and all(difference.path in read for read in texts)
        else difference
        for difference in found
    )


def _texts(stream: BinaryIO, wanted: frozenset[str]) -> dict[str, bytes]:
    """The beginnings of the wanted files that are text; of a hard link, that of the file that it shares."""
    texts: dict[str, bytes] = {}
    links: dict[str, str] = {}
    for entry in read_tar(stream, "the exported tree"):
        if entry.kind == "hardlink":
            links[entry.path] = entry.target
        elif entry.kind == "file" and entry.path in wanted and entry.open is not None:
            with entry.open() as content:
                texts[entry.path] = content.read(_MOST_TEXT)
    texts |= {link: texts[file] for link, file in links.items() if link in wanted and file in texts}
    return {path: text for path, text in texts.items() if b"\0" not in text}


def _first(one: bytes, other: bytes) -> FirstDifference | None:
    if one == other:
        return None
    offset = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    start = max(one.rfind(b"\n", 0, offset) + 1, offset - _SHOWN)
    shown = (text[start : offset + _SHOWN].partition(b"\n")[0].decode("utf-8", "replace") for text in (one, other))
    return FirstDifference(offset, one.count(b"\n", 0, offset) + 1, *shown)
