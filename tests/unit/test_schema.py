"""The schema says of a spec what the parser says of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from envlock.errors import Problems
from envlock.schema import FILE, POINTER, schema_text, spec_schema
from envlock.spec import parse_spec

CHECKOUT = Path(__file__).parents[2]
SPECS = sorted([*(CHECKOUT / "examples").glob("*.yaml"), *(CHECKOUT / "tests/data/cases/specs").glob("*.yaml")])
STACK = "stack: {torch: 2.5.1}"


def accepted_by_schema(text: str) -> bool:
    return jsonschema.Draft7Validator(spec_schema()).is_valid(yaml.safe_load(text))


def accepted_by_parser(text: str) -> bool:
    try:
        parse_spec(text.encode(), "s.yaml")
    except Problems:
        return False
    return True


def test_committed_schema_is_current() -> None:
    hint = f"run `envlock schema -o examples/{FILE}`"
    assert (CHECKOUT / "examples" / FILE).read_text() == schema_text(), hint


def test_it_is_draft_7() -> None:
    jsonschema.Draft7Validator.check_schema(spec_schema())
    assert "$defs" not in schema_text()


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.name)
def test_real_specs_are_accepted(path: Path) -> None:
    assert accepted_by_schema(path.read_text())


@pytest.mark.parametrize("path", sorted((CHECKOUT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_examples_point_to_it(path: Path) -> None:
    assert path.read_text().startswith(POINTER + "\n")


@pytest.mark.parametrize(
    "text",
    [
        f"name: x\n{STACK}",
        "name: x\nversion: 1\npython: 3.11\nstack: {torch: 2.5, cuda: 12.4, cudnn: 9}",
        f"name: x\n{STACK}\nenv: {{A: 1, B: true, C: no, D: 1.5}}\nrun: {{user: 1000, shm_size: 8g}}",
        f"name: x\n{STACK}\nbase: {{debian: bookworm}}",
        f"name: x\n{STACK}\nfiles: [{{from: src, to: /workspace}}]",
    ],
)
def test_both_accept(text: str) -> None:
    assert accepted_by_parser(text)
    assert accepted_by_schema(text)


@pytest.mark.parametrize(
    "text",
    [
        "name: x",
        STACK,
        "name: x\nstack: {}",
        "name: x\nstack: {tourch: 2.5.1}",
        f"name: x y\n{STACK}",
        f"name: x\nversion: 2\n{STACK}",
        f"name: x\npython: two\n{STACK}",
        "name: x\nstack: {torch: 2.5.1, cuda: twelve}",
        f"name: x\n{STACK}\napt: git",
        f"name: x\n{STACK}\napt: ['git; rm -rf /']",
        f"name: x\n{STACK}\nbase: {{debian: bookworm, image: 'a:b'}}",
        f"name: x\n{STACK}\nbase: {{debain: bookworm}}",
        f"name: x\n{STACK}\ndeterminism: {{level: high}}",
        f"name: x\n{STACK}\ndeterminism: {{seed: 4294967296}}",
        f"name: x\n{STACK}\nenv: {{'A B': x}}",
        f"name: x\n{STACK}\nenv: [A]",
        f"name: x\n{STACK}\nrun: {{user: me}}",
        f"name: x\n{STACK}\nfiles: [{{to: /workspace}}]",
        f"name: x\n{STACK}\npackges: [numpy]",
    ],
)
def test_both_refuse(text: str) -> None:
    assert not accepted_by_parser(text)
    assert not accepted_by_schema(text)


def properties(node: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, list):
        for item in node:
            yield from properties(item)
    if isinstance(node, dict):
        yield from node.get("properties", {}).items()
        for value in node.values():
            yield from properties(value)


def test_every_key_is_described() -> None:
    assert [key for key, schema in properties(spec_schema()) if not schema.get("description")] == []
