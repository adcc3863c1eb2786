"""Writes docs/spec.md: every key of the spec, from its JSON Schema.

python scripts/specdocs.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT))

from envlock.schema import spec_schema  # noqa: E402

PAGE = CHECKOUT / "docs" / "spec.md"
HEAD = """# The spec

A spec is a YAML file, best called `envlock.yaml`. Only `name` and `stack.torch` must be there. Every scalar is read as the text that was
written, so that `3.10` stays 3.10 and `no` stays no. Unknown and duplicate keys are errors, with a suggestion; all faults are told at
once, each with line and column. Anchors and aliases are refused.

`envlock init` writes one, `envlock schema` prints its JSON Schema, `envlock check` says what it means. The examples are in
[examples/](../examples). This page is written by `python scripts/specdocs.py` from the schema.

| key | what | form | default |
|---|---|---|---|
"""


def rows(node: dict[str, Any], schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Key, description, form and default of every property, those of mappings below their own row."""
    for key, part in node["properties"].items():
        inner = resolved(part, schema)
        default = inner.get("default", part.get("default", ""))
        yield f"{path}{key}", part.get("description", ""), form(inner, schema), "" if default == "" else f"`{str(default).lower()}`"
        for choice in (resolved(choice, schema) for choice in inner.get("oneOf", [inner])):
            if "properties" in choice:
                yield from rows(choice, schema, f"{path}{key}.")
        items = resolved(inner.get("items", {}), schema)
        if "properties" in items:
            yield from rows(items, schema, f"{path}{key}[].")


def resolved(part: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """A schema with its reference followed."""
    whole = {**part, **part["allOf"][0]} if "allOf" in part else part
    return {**whole, **schema["definitions"][whole["$ref"].rpartition("/")[2]]} if "$ref" in whole else whole


def form(part: dict[str, Any], schema: dict[str, Any]) -> str:
    """What may be written, in words."""
    if "enum" in part:
        return "one of " + ", ".join(f"`{value}`" for value in part["enum"] if isinstance(value, str))
    if "oneOf" in part:
        return "one of " + ", ".join(f"`{{{next(iter(resolved(choice, schema)['properties']))}: …}}`" for choice in part["oneOf"])
    kinds = {"array": "list", "object": "mapping", "integer": "whole number", "boolean": "`true` or `false`"}
    kind = part.get("type")
    return kinds.get(kind, "text") if isinstance(kind, str) else "text"


def page() -> str:
    """The text of docs/spec.md."""
    schema = spec_schema()
    lines = [f"| `{key}` | {what} | {kind} | {default} |" for key, what, kind, default in rows(schema, schema)]
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"{PAGE.relative_to(CHECKOUT)} written")
