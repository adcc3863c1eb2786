"""What people read on a terminal: errors and findings in one form, results as JSON, colour only where it is wanted."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from envlock.errors import Finding
from envlock.progress import Bars, Lines, Progress, Silent

_COLOURS = {"error": "31;1", "warning": "33;1", "info": "36", "ok": "32;1", "dim": "2", "bold": "1"}


def wants_colour(stream: TextIO) -> bool:
    """Whether colour may be used: a terminal, no NO_COLOR, no dumb TERM; FORCE_COLOR decides otherwise."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def paint(text: str, style: str, stream: TextIO) -> str:
    """The text in one of our styles where the stream wants colour."""
    return f"\x1b[{_COLOURS[style]}m{text}\x1b[0m" if wants_colour(stream) else text


def progress_for(quiet: bool) -> Progress:
    """Live bars on a terminal, plain lines elsewhere (CI counts as elsewhere), nothing where quiet is asked for."""
    if quiet:
        return Silent()
    if sys.stderr.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb":
        return Bars()
    return Lines()


def show_findings(findings: Iterable[Finding], stream: TextIO | None = None) -> None:
    """Each finding with id, what, where, why and what to do; as GitHub annotations too when run in its CI."""
    out = stream or sys.stderr
    for finding in findings:
        print(render_finding(finding, out), file=out)
        if os.environ.get("GITHUB_ACTIONS") == "true":
            print(github_annotation(finding), file=out)


def render_finding(finding: Finding, stream: TextIO) -> str:
    """The form of every error and warning."""
    head = f"{paint(finding.severity, finding.severity, stream)}: {finding.what}  {paint('[' + finding.id + ']', 'dim', stream)}"
    rows = [("where", finding.where), ("why", finding.why), ("do", finding.hint)]
    lines = [head]
    for label, text in rows:
        if text:
            # Long words (paths, hashes) are never broken, so that they can be copied and searched for.
            body = [
                wrapped
                for line in text.splitlines()
                for wrapped in textwrap.wrap(line, 100, break_long_words=False, break_on_hyphens=False) or [""]
            ]
            lines.append(f"  {label + ':':<6} {body[0]}")
            lines.extend(f"         {line}" for line in body[1:])
    return "\n".join(lines)


def github_annotation(finding: Finding) -> str:
    """One workflow command; line and column where the finding has them."""
    level = {"error": "error", "warning": "warning", "info": "notice"}[finding.severity]
    place = ""
    parts = finding.where.rsplit(":", 2)
    if len(parts) == 3 and parts[1].isdigit() and parts[2].isdigit():
        place = f" file={parts[0]},line={parts[1]},col={parts[2]}"
    text = " ".join(part for part in (finding.what, finding.why, finding.hint) if part)
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return f"::{level}{place}::{escaped}"


def finding_data(finding: Finding) -> dict[str, str]:
    """A finding as JSON carries it."""
    fields = {"id": finding.id, "severity": finding.severity, "what": finding.what}
    return fields | {name: text for name, text in (("where", finding.where), ("why", finding.why), ("hint", finding.hint)) if text}


def print_json(data: Mapping[str, Any] | Sequence[Any]) -> None:
    """One result on stdout."""
    print(json.dumps(data, indent=2, ensure_ascii=False))


def table(rows: Sequence[Sequence[str]], headings: Sequence[str]) -> str:
    """Columns as wide as their widest cell, two spaces apart; no trailing blanks."""
    everything = [list(headings), *[list(row) for row in rows]]
    widths = [max(len(row[column]) for row in everything) for column in range(len(headings))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in everything)
