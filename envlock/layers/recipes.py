"""Recipes: a layer is known by what it is made from, so that one that was made before need not be made again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, Protocol

from envlock.layers import Layer
from envlock.layers.canonical import RULES
from envlock.layers.entry import ancestors
from envlock.layers.tree import Tree
from envlock.spec import canonical_json
from envlock.store import Store

_KIND = "layer"


class Facts(Protocol):
    """The part of the store that remembers small facts."""

    def recall(self, kind: str, key: str) -> dict[str, Any] | None: ...

    def remember(self, kind: str, key: str, value: dict[str, Any]) -> None: ...


def recipe_key(kind: str, **inputs: Any) -> str:
    """The key of a recipe (sha256 in hex): what kind of layer, the rules in force, and all that goes in, as plain data."""
    return hashlib.sha256(canonical_json({"kind": kind, "rules": RULES, **inputs})).hexdigest()


def folders_below(paths: Iterable[str], below: Tree) -> list[Any]:
    """What a layer takes from the tree below: metadata and links of the folders above `paths`, as plain data for a recipe."""
    wanted = {above for path in paths for above in (path, *ancestors(path))}
    nodes = {path: below.nodes[path] for path in sorted(wanted) if path in below.nodes}
    return [[path, node.kind, node.mode, node.uid, node.gid, node.mtime, node.target] for path, node in nodes.items()]


def recall_layer(facts: Facts, key: str, holds: str) -> Layer | None:
    """The layer that this recipe gave before, if it is remembered."""
    known = facts.recall(_KIND, key)
    return None if known is None else Layer(known["diff_id"], known["size"], holds)


def remember_layer(facts: Facts, key: str, layer: Layer) -> None:
    """Remember what a recipe gave."""
    facts.remember(_KIND, key, {"diff_id": layer.diff_id, "size": layer.size})


def kept_layer(store: Store, key: str, holds: str, write: Callable[[BinaryIO], Layer]) -> Layer:
    """A small layer out of the store, or made by `write` and put there."""
    known = recall_layer(store, key, holds)
    if known is not None and store.has(known.diff_id.removeprefix("sha256:"), known.size):
        return known
    with store.incoming(what=holds) as blob:
        layer = write(blob)
    remember_layer(store, key, layer)
    return layer
