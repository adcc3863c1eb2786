"""Volatile files: what package installations leave behind that differs from run to run, and how both routes take it out.

The table is `volatile.yaml`. The base and apt layers go through `without_volatile`; the Dockerfile runs `clean_up_script`.
"""

from __future__ import annotations

import fnmatch
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Literal

import yaml

from envlock.layers.entry import Entry, ancestors


@dataclass(frozen=True, slots=True)
class Volatile:
    """One row of the table: a path below the root, whose last part may be a pattern, and what to do with what matches."""

    path: str
    action: Literal["remove", "empty"]
    why: str

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def pattern(self) -> str:
        return self.path.rpartition("/")[2]

    def matches(self, path: str) -> bool:
        """Whether this row means exactly this path."""
        folder, _, base = path.rpartition("/")
        return folder == self.folder and fnmatch.fnmatchcase(base, self.pattern)


@cache
def table() -> tuple[Volatile, ...]:
    """All rows."""
    data = yaml.safe_load(files("envlock.layers").joinpath("volatile.yaml").read_text(encoding="utf-8"))
    return tuple(Volatile(**row) for row in data["files"])


def action_on(path: str) -> Literal["remove", "empty"] | None:
    """What the table says about a path, or about a folder that it lies in."""
    rows = _by_folder()
    for part in (path, *ancestors(path)):
        for row in rows.get(part.rpartition("/")[0], ()):
            if row.matches(part):
                return row.action
    return None


@cache
def _by_folder() -> dict[str, list[Volatile]]:
    rows: dict[str, list[Volatile]] = {}
    for row in table():
        rows.setdefault(row.folder, []).append(row)
    return rows


def without_volatile(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The entries by the table: some left out, some without content."""
    for entry in entries:
        action = action_on(entry.path)
        if action == "empty" and entry.kind == "file":
            yield replace(entry, size=0, open=None)
        elif action != "remove":
            yield entry


def clean_up_script() -> str:
    """A POSIX shell script that does to a running container's files what `without_volatile` does to entries."""
    return "".join(f"{line}\n" for row in table() for line in _commands(row))


def _commands(row: Volatile) -> Iterator[str]:
    path = shlex.quote(f"/{row.path}")
    if row.action == "empty":
        yield f"if [ -f {path} ]; then : > {path}; fi"
    elif any(sign in row.pattern for sign in "*?["):
        folder = shlex.quote(f"/{row.folder}")
        yield f"if [ -d {folder} ]; then find {folder} -mindepth 1 -maxdepth 1 -name {shlex.quote(row.pattern)} -exec rm -rf {{}} +; fi"
    else:
        yield f"rm -rf {path}"
