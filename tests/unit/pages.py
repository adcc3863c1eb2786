"""The commands in our Markdown pages, and running them as a reader would."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
PAGES = (CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md")))
RUN = frozenset({"run", "engine"})
NOT_RUN = {
    "gpu": "needs a GPU",
    "hpc": "needs Apptainer and Slurm",
    "registry": "needs a registry, or an engine with images of one's own",
    "long": "takes long",
    "setup": "sets up a machine; tests/unit/test_scripts.py tests the scripts",
    "checkout": "writes into the checkout; its own test holds what it writes current",
}
"""Why a block is not run by the tests of the pages."""


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a page and the lines that it prints. `…` in them stands for anything; `exit status N` is no line."""

    page: str
    line: int
    mark: str
    command: str
    prints: tuple[str, ...]

    @property
    def status(self) -> int:
        """The exit status that the page gives."""
        return next((int(line.split()[-1]) for line in self.prints if re.fullmatch(r"exit status \d+", line)), 0)

    @property
    def patterns(self) -> list[str]:
        """Regular expressions for the lines printed, those that stand for anything left out."""
        lines = [line for line in self.prints if line != "…" and not re.fullmatch(r"exit status \d+", line)]
        return [re.escape(line.rstrip()).replace("…", ".*").replace(r"\ .*", r"\s*.*") for line in lines]


def steps_of(path: Path) -> list[Step]:
    """The steps of a page. A block of commands is fenced as `console MARK`; a command is a line that begins with `$ `."""
    steps: list[Step] = []
    mark: str | None = None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        fence = re.match(r"```(\w*)\s*(\w*)", line)
        if fence:
            mark = None if mark is not None or fence[1] != "console" else fence[2]
        elif mark is not None and line.startswith("$ "):
            steps.append(Step(path.name, number, mark, line[2:], ()))
        elif mark is not None and steps:
            last = steps[-1]
            steps[-1] = Step(last.page, last.line, last.mark, last.command, (*last.prints, line))
    return steps


def envlock_calls(command: str) -> Iterator[list[str]]:
    """The words of each call of envlock in a command, up to the user's own command behind `--`."""
    for part in re.split(r"&&|;|\|", command):
        try:
            words = shlex.split(part)
        except ValueError:
            continue
        if words[:1] == ["envlock"]:
            yield words[1 : words.index("--")] if "--" in words else words[1:]


def play(
    path: Path, marks: frozenset[str], folder: Path, environment: Mapping[str, str], names: Mapping[str, str] | None = None
) -> Iterator[tuple[Step, list[str], str]]:
    """Run the steps with these marks in one folder, with the checkout's examples where the page names them.

    Yields each step with its complaints and what was printed. `names` are words of the page and the examples that are written
    otherwise here: images must not get the names of anyone's own.
    """
    if any(re.search(r"\b(?:examples|lockfiles)/", step.command) for step in steps_of(path)):
        for name in ("examples", "lockfiles"):
            shutil.copytree(CHECKOUT / name, folder / name)
    for spec in (folder / "examples").glob("*.yaml"):
        spec.write_text(renamed(spec.read_text(), names or {}))
    tools = folder / ".bin"
    tools.mkdir()
    shim = tools / "envlock"
    shim.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m envlock "$@"\n')
    shim.chmod(0o755)
    own = {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(CHECKOUT), "COLUMNS": "200", "NO_COLOR": "1"}
    here = folder
    for written in steps_of(path):
        if written.mark not in marks:
            continue
        prints = tuple(renamed(line, names or {}) for line in written.prints)
        step = replace(written, command=renamed(written.command, names or {}), prints=prints)
        script = f"{step.command}\nstatus=$?; pwd > {shlex.quote(str(tools))}/here; exit $status"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=here,
            env={**environment, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=1800,
        )
        here = Path((tools / "here").read_text().strip())
        yield step, complaints(step, done.returncode, done.stdout), done.stdout


def renamed(text: str, names: Mapping[str, str]) -> str:
    """The text with these words written otherwise."""
    for old, new in names.items():
        text = re.sub(rf"\b{re.escape(old)}\b", new, text)
    return text


def complaints(step: Step, status: int, printed: str) -> list[str]:
    """How the outcome differs from the page: its exit status, and lines that were not printed, in their order."""
    found = [] if status == step.status else [f"exit status {status}, the page says {step.status}"]
    lines = iter(printed.splitlines())
    for pattern in step.patterns:
        if not any(re.fullmatch(pattern, line.rstrip()) for line in lines):
            return [*found, f"not printed: {pattern}"]
    return found
