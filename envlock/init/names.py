"""Names of one world in those of another: the table in names.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from envlock import yamlfile


@dataclass(frozen=True, slots=True)
class Names:
    """`python` and `debian` give the project or Debian package for a conda package, `needless` why one is left out, `renamed` a
    Debian package's name of today for an older one."""

    python: dict[str, str]
    debian: dict[str, str]
    needless: dict[str, str]
    renamed: dict[str, str]


@cache
def load() -> Names:
    """The table, read once per process."""
    data = yamlfile.parse_text(Path(__file__).with_name("names.yaml").read_bytes(), "names.yaml").data
    needless = {name: row["why"] for row in data["needless"] for name in row["names"]}
    return Names(data["python"], data["debian"], needless, data["renamed"])
