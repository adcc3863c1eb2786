"""What a run of the self-test printed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Run:
    """Exit status, lines, and what went to stderr."""

    status: int
    lines: list[dict[str, Any]]
    stderr: str

    @property
    def report(self) -> dict[str, Any]:
        assert self.lines[-1]["event"] == "report"
        return self.lines[-1]

    @property
    def checks(self) -> dict[str, dict[str, Any]]:
        """Check lines by id."""
        return {line["id"]: line for line in self.lines if line["event"] == "check"}

    def statuses(self) -> dict[str, str]:
        return {id_: check["status"] for id_, check in self.checks.items()}
