"""YAML read with positions: where each value stands, duplicate keys refused, size and nesting bounded.

Two readings: `text` keeps every scalar as the string that was written (so `3.10` stays `3.10` and `no` stays `no`), `typed`
resolves numbers and booleans as YAML 1.1's safe loader does. Anchors and aliases are refused in both: neither a spec nor a lock
needs them, and they are how a small file becomes a huge one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from envlock.errors import Exit, FileUnreadable, Finding, Problems

MAX_BYTES = 16 * 2**20
MAX_DEPTH = 40
MOST_PARTS = 200_000  # the largest locks have some 10,000 keys, values, lists and mappings
MOST_NUMBER = 2**63
Key = str | int
Position = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data (dict, list, str, int, float, bool, None) and the place of each part.

    `positions` maps a path such as `("stack", "torch")` to 1-based line and column of the value, `key_positions` to those of its key.
    """

    name: str
    data: Any
    positions: dict[tuple[Key, ...], Position]
    key_positions: dict[tuple[Key, ...], Position]

    def where(self, path: Sequence[Key], *, key: bool = False) -> str:
        """`file:line:column` of the value at `path` (or of its key), or of the nearest part around it that exists."""
        found = tuple(path)
        table = self.key_positions if key else self.positions
        while found and found not in table:
            found, table = found[:-1], self.positions
        line, column = table.get(found, (1, 1))
        return f"{self.name}:{line}:{column}"


class _TextLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Composes nodes; scalars keep their text because no implicit resolver is left."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}


class _TypedLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Resolves what JSON has too; a date stays the text that was written."""


_TypedLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _TypedLoader.yaml_implicit_resolvers.items()
}


def read_bytes(path: Path) -> bytes:
    """The bytes of a small text file; `FileUnreadable` says why where it cannot be had."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise FileUnreadable(f"cannot read {path}", why=error.strerror or str(error)) from None
    except ValueError:
        raise FileUnreadable(f"cannot read {str(path)!r}", why="no file can have that name") from None
    if len(raw) > MAX_BYTES:
        raise FileUnreadable(f"{path} is larger than {MAX_BYTES // 2**20} MiB", why="no spec or lock is that large")
    return raw


def parse_text(raw: bytes, name: str) -> Document:
    """Read YAML with every scalar as text. Raises `Problems` (exit 2) naming every fault."""
    return _parse(raw, name, _TextLoader, "spec")


def parse_typed(raw: bytes, name: str) -> Document:
    """Read YAML with numbers, booleans and nulls resolved. Raises `Problems` (exit 4) naming every fault."""
    return _parse(raw, name, _TypedLoader, "lock")


_SYNTAX_HINT = "look there and a line above: a quote or bracket that is not closed, or a line that is indented unlike its neighbours"


def _parse(raw: bytes, name: str, loader: type[Any], kind: str) -> Document:
    exit_code = Exit.USAGE if kind == "spec" else Exit.LOCK
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        where = f"{name}:{line}:1"
        finding = Finding(f"{kind}-syntax", "error", "the file is not UTF-8 text", where, error.reason, "save it as UTF-8")
        raise Problems([finding], exit_code) from None
    reader = loader(text)
    builder = _Builder(name, kind, reader)
    try:
        _refuse_bombs(text, loader, name, kind, exit_code)
        node = reader.get_single_node()
        data = builder.build(node, ()) if node is not None else None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        finding = Finding(f"{kind}-syntax", "error", "this is not valid YAML", where, str(problem), _SYNTAX_HINT)
        raise Problems([finding], exit_code) from None
    finally:
        reader.dispose()
    if builder.faults:
        raise Problems(builder.faults, exit_code)
    return Document(name, data, builder.positions, builder.key_positions)


def _refuse_bombs(text: str, loader: type[Any], name: str, kind: str, exit_code: Exit) -> None:
    """Look at the event stream first: it needs no recursion, so that deep nesting cannot exhaust the stack."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=loader)):
        mark = event.start_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            finding = Finding(f"{kind}-syntax", "error", "anchors and aliases are not allowed", where, hint="write the value out")
            raise Problems([finding], exit_code)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH or count > MOST_PARTS:
            what = f"nested more than {MAX_DEPTH} levels deep" if depth > MAX_DEPTH else f"more than {MOST_PARTS} keys and values"
            raise Problems([Finding(f"{kind}-syntax", "error", what, where)], exit_code)


class _Builder:
    """Turns composed nodes into plain data, recording positions and duplicate keys on the way."""

    def __init__(self, name: str, kind: str, reader: Any) -> None:
        self.name = name
        self.kind = kind
        self.reader = reader
        self.positions: dict[tuple[Key, ...], Position] = {}
        self.key_positions: dict[tuple[Key, ...], Position] = {}
        self.faults: list[Finding] = []

    def build(self, node: yaml.Node, path: tuple[Key, ...]) -> Any:
        self.positions[path] = (node.start_mark.line + 1, node.start_mark.column + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        if self.kind == "spec":
            return node.value
        return self._scalar(node)

    def _scalar(self, node: yaml.Node) -> str | int | float | bool | None:
        try:
            value = self.reader.construct_object(node)
        except ValueError:  # an integer of thousands of digits
            value = math.nan
        numeric = isinstance(value, int | float) and abs(value) < MOST_NUMBER
        if value is None or isinstance(value, str) or numeric:
            return value  # type: ignore[no-any-return]
        where = f"{self.name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"
        self.faults.append(Finding(f"{self.kind}-syntax", "error", "this is neither text nor a number of a sensible size", where))
        return None

    def _mapping(self, node: yaml.MappingNode, path: tuple[Key, ...]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            where = f"{self.name}:{place[0]}:{place[1]}"
            if not isinstance(key_node, yaml.ScalarNode):
                self.faults.append(Finding(f"{self.kind}-syntax", "error", "a key must be plain text", where))
                continue
            key = key_node.value
            if key in result:
                first = self.key_positions[(*path, key)]
                what = f"key `{key}` stands twice"
                why = f"the first one is on line {first[0]}; of two values YAML would silently take the last"
                self.faults.append(Finding(f"{self.kind}-duplicate-key", "error", what, where, why, "keep one of them"))
                continue
            self.key_positions[(*path, key)] = place
            result[key] = self.build(value_node, (*path, key))
        return result
