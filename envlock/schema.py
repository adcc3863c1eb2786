"""JSON Schema (draft-07) of the spec, from the models that read it, so that editors complete and underline.

An editor resolves YAML's scalars before it looks at the schema, and envlock reads every scalar as the text that was written:
`python: 3.11` is a number to the one and text to the other. So where text is wanted, the schema takes numbers and booleans too.
"""

from __future__ import annotations

import json
from typing import Any

from envlock.spec import Spec

FILE = "envlock.schema.json"
DRAFT = "http://json-schema.org/draft-07/schema#"
POINTER = f"# yaml-language-server: $schema={FILE}"
"""First line of a spec that lies beside the schema. Source: the documentation of yaml-language-server."""

_SCALARS = ["string", "number", "boolean"]


def spec_schema() -> dict[str, Any]:
    """The schema as plain data."""
    made = Spec.model_json_schema(by_alias=True, ref_template="#/definitions/{model}")
    made["definitions"] = made.pop("$defs")
    plain = _draft7(made)
    head = {"$schema": DRAFT, "title": "envlock spec", "description": "One environment, as a person asks for it."}
    return head | {key: value for key, value in plain.items() if key not in head}


def schema_text() -> str:
    """The schema as its file holds it."""
    return json.dumps(spec_schema(), indent=2, ensure_ascii=False) + "\n"


def _draft7(node: Any) -> Any:
    if isinstance(node, list):
        return [_draft7(item) for item in node]
    if not isinstance(node, dict):
        return node
    done = {key: _draft7(value) for key, value in node.items() if not _is_noise(key, value)}
    if "patternProperties" in done:
        done["additionalProperties"] = False
    return _one_choice(_scalar(done))


def _is_noise(key: str, value: Any) -> bool:
    """Titles that repeat the key, and defaults that are not one value. (A property may be called `title`: then it holds a schema.)"""
    return (key == "title" and isinstance(value, str)) or (key == "default" and not isinstance(value, str | int))


def _scalar(node: dict[str, Any]) -> dict[str, Any]:
    if node.get("const") is not None:
        text = node.pop("const")
        return node | {"enum": [text, int(text)] if text.isdigit() else [text]} | {"type": _SCALARS}
    if node.get("type") == "string" and "enum" not in node:
        return node | {"type": _SCALARS}
    return node


def _one_choice(node: dict[str, Any]) -> dict[str, Any]:
    """A spec cannot say null, so a value that may be left out is a choice of one; and draft-07 ignores what stands beside a `$ref`."""
    choices = [choice for choice in node.get("anyOf", []) if choice != {"type": "null"}]
    if len(choices) == 1:
        node = choices[0] | {key: value for key, value in node.items() if key != "anyOf"}
    if "$ref" in node and len(node) > 1:
        return {"allOf": [{"$ref": node.pop("$ref")}], **node}
    return node
