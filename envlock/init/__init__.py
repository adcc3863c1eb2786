"""`envlock init`: a spec for this host, or from the files that a project has already."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from envlock.catalogue import load
from envlock.errors import Problems, UsageError
from envlock.init.draft import Draft, Given, for_host, from_sources
from envlock.init.sources import read_sources
from envlock.init.write import as_json, spec_text, summary
from envlock.locking import solve_file
from envlock.nvidia import Nvidia
from envlock.schema import FILE, schema_text
from envlock.store import write_atomically

__all__ = ["Draft", "Given", "as_json", "draft_for_host", "draft_from", "name_of", "summary", "write_spec"]


def draft_for_host(nvidia: Nvidia, platform: str, given: Given) -> Draft:
    """A spec for a host's GPUs and driver."""
    return for_host(nvidia, platform, given, load())


def draft_from(paths: Sequence[Path], given: Given) -> Draft:
    """A spec from these files together. Raises `FileUnreadable`, `UsageError` and `Problems`."""
    return from_sources(read_sources(list(paths)), [path.name for path in paths], given, load())


def name_of(text: str) -> str:
    """A name for an image from that of a folder: `My Project (2)` is my-project-2."""
    return re.sub(r"[._-]{2,}", "-", re.sub(r"[^a-z0-9._-]+", "-", text.lower())).strip("._-") or "environment"


def write_spec(draft: Draft, path: Path, *, over: bool) -> Draft:
    """Write a spec, and beside it the schema that its first line points to; the draft, with what `check` says of the file.

    Raises `UsageError` where the spec is there already, unless it may be written `over`.
    """
    if path.exists() and not over:
        raise UsageError(f"{path} is there already", where=str(path), hint="write another with -o NAME.yaml, or over it with --force")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, spec_text(draft, path.name).encode())
    write_atomically(path.parent / FILE, schema_text().encode())
    try:
        _, solution = solve_file(path)
    except Problems as problems:
        return replace(draft, problems=problems)
    return replace(draft, findings=(*draft.findings, *solution.findings), problems=None)
