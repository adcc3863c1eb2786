"""Two images' file trees, read through an engine and compared: what differs, in which package and layer, and where in the text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from envlock.layers.canonical import Tree, read_tar
from envlock.layers.sandbox import stream_of
from envlock.owners import Package, layer_of, noting, owner_of, owners
from envlock.progress import Progress
from envlock.rootfs import Difference, Rootfs, differences, with_first_differences

if TYPE_CHECKING:
    from envlock.engine import Engine
    from envlock.lock import Lock

SHOWN = 12


@dataclass(frozen=True, slots=True)
class ImageTree:
    """The file tree of one image of an engine; `name` is what people call it."""

    name: str
    reference: str
    rootfs: Rootfs
    packages: Mapping[str, Package]


@dataclass(frozen=True, slots=True)
class Explained:
    """One difference, with the package and the layer that it belongs to as far as they are known."""

    difference: Difference
    package: str
    layer: str

    @property
    def belongs(self) -> str:
        """Package and layer in words."""
        return "; ".join(part for part in (self.package, self.layer and f"layer with {self.layer}") if part)

    def as_json(self) -> dict[str, Any]:
        """Plain data; what is empty is left out."""
        return {name: value for name, value in {**asdict(self.difference), "package": self.package, "layer": self.layer}.items() if value}


@dataclass(frozen=True, slots=True)
class TreeComparison:
    """Two trees held against each other. `found` are the differences that count; `times` counts files with another time, which do not."""

    one: str
    other: str
    found: tuple[Explained, ...]
    times: int

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"one": self.one, "other": self.other, "differences": [item.as_json() for item in self.found], "other_times": self.times}

    def as_text(self) -> str:
        """What people read: each file with what is different about it."""
        if not self.found:
            return f"files: no difference between {self.one} and {self.other}{self._times}"
        lines = [f"files: {len(self.found)} differ between {self.one} and {self.other}{self._times}"]
        counts = Counter(item.belongs for item in self.found if item.belongs)
        if len(self.found) > SHOWN:
            lines += [f"  {number:>6} of {name}" for name, number in counts.most_common(SHOWN)]
        for item in self.found[:SHOWN]:
            lines += self._lines(item)
        if len(self.found) > SHOWN:
            lines.append(f"  … and {len(self.found) - SHOWN} more; --json has all")
        return "\n".join(lines)

    def _lines(self, item: Explained) -> list[str]:
        difference = item.difference
        alone = {"missing": f"only in {self.one}", "extra": f"only in {self.other}"}
        what = alone.get(difference.kind, f"{difference.one} against {difference.other}")
        lines = [f"  {difference.kind:<10} /{difference.path}", f"             {what}"]
        if difference.first is not None:
            first = difference.first
            lines.append(f"             line {first.line}, byte {first.offset}: {first.one!r} against {first.other!r}")
        return [*lines, f"             of {item.belongs}"] if item.belongs else lines

    @property
    def _times(self) -> str:
        return f" ({self.times} have another time, which is no part of the digest)" if self.times else ""


def read_tree(engine: Engine, reference: str, name: str, progress: Progress) -> ImageTree:
    """The merged tree of an image, exported once. Raises `ImageMissing`."""
    lists: dict[str, bytes] = {}
    with progress.track(f"read the files of {name}") as advance:

        def pieces() -> Iterator[bytes]:
            for piece in engine.export(reference):
                advance(len(piece))
                yield piece

        tree = Tree().with_entries(noting(read_tar(stream_of(pieces()), name), lists), name)
    return ImageTree(name, reference, Rootfs(tree), owners(lists, tree))


def compare_trees(engine: Engine, one: ImageTree, other: ImageTree, lock: Lock | None) -> TreeComparison:
    """How two trees differ. `lock` is that of the images, where they have one; texts that differ are read from the engine once more."""
    found = differences(one.rootfs, other.rootfs)
    counting = [difference for difference in found if difference.counts]
    if any(difference.kind == "content" for difference in counting):
        texts = (stream_of(engine.export(one.reference)), stream_of(engine.export(other.reference)))
        counting = list(with_first_differences(counting, *texts))
    return TreeComparison(one.name, other.name, tuple(_explained(counting, one, other, lock)), len(found) - len(counting))


def _explained(found: Sequence[Difference], one: ImageTree, other: ImageTree, lock: Lock | None) -> list[Explained]:
    explained = []
    for difference in found:
        package = owner_of(difference.path, one.packages) or owner_of(difference.path, other.packages)
        layer = layer_of(difference.path, package, lock) if lock is not None else ""
        explained.append(Explained(difference, str(package or ""), layer))
    return explained
