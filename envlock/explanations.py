"""What each error and finding means, and what to do: the table in explanations.yaml."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from envlock import yamlfile
from envlock.errors import UsageError


@dataclass(frozen=True, slots=True)
class Explanation:
    """One id in plain words; `topic` is the heading that it stands under."""

    id: str
    topic: str
    cause: str
    remedy: str


@cache
def load() -> dict[str, Explanation]:
    """All explanations by id, in the order of the table."""
    data = yamlfile.parse_text(Path(__file__).with_name("explanations.yaml").read_bytes(), "explanations.yaml").data
    rows = [Explanation(row["id"], topic["title"], row["cause"], row["remedy"]) for topic in data for row in topic["rows"]]
    return {row.id: row for row in rows}


def explain(id_: str) -> Explanation:
    """The explanation of an id. Raises `UsageError` with the nearest ids where there is none."""
    found = load().get(id_)
    if found is None:
        near = difflib.get_close_matches(id_, load(), n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "docs/errors.md lists all"
        raise UsageError(f"there is no error {id_!r}", hint=hint)
    return found
