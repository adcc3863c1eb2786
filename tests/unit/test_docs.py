"""The pages say what the program does: every command has a mark and options that exist, and those that can be run here are run."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from pages import CHECKOUT, NOT_RUN, PAGES, RUN, Step, complaints, envlock_calls, play, steps_of

from envlock.cli import app

COMMANDS = [(step, words) for page in PAGES for step in steps_of(page) for words in envlock_calls(step.command)]
LINK = re.compile(r"\[[^]]*\]\(([^)#\s]+)?(#[^)\s]+)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_commands_says_where_it_runs(page: Path) -> None:
    assert {step.mark for step in steps_of(page)} <= RUN | NOT_RUN.keys()


@cache
def help_of(command: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "envlock", command, "--help"],
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
        env={**os.environ, "COLUMNS": "200"},
        check=True,
    ).stdout


@pytest.mark.parametrize(("step", "words"), COMMANDS, ids=lambda value: f"{value.page}-{value.line}" if isinstance(value, Step) else "")
def test_every_option_exists(step: Step, words: list[str]) -> None:
    command = next(word for word in words if not word.startswith("-"))
    options = [word.partition("=")[0] for word in words if word.startswith("-")]
    assert [option for option in options if not re.search(rf"(?<![\w-]){option}\b", help_of(command))] == []


@pytest.mark.parametrize("page", [page for page in PAGES if any(step.mark == "run" for step in steps_of(page))], ids=lambda page: page.name)
def test_commands_print_what_the_page_says(page: Path, tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "ENVLOCK_STORE": str(tmp_path / ".store")}
    faults = [
        f"{step.page}:{step.line}: {'; '.join(found)}\n{text}"
        for step, found, text in play(page, frozenset({"run"}), tmp_path, environment)
        if found
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("prints", "status", "printed", "holds"),
    [
        (("a …", "…", "d"), 0, "a b\nc\nd\n", True),
        (("d", "a …"), 0, "a b\nd\n", False),
        (("a",), 1, "a\n", False),
        (("a", "exit status 1"), 1, "a\n", True),
        (("a.b",), 0, "axb\n", False),
    ],
)
def test_output_is_compared(prints: tuple[str, ...], status: int, printed: str, holds: bool) -> None:
    assert (complaints(Step("p", 1, "run", "x", prints), status, printed) == []) == holds


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target, anchor in LINK.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)):
        if target.startswith("http"):
            continue
        path = page.parent / target if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target + anchor)
    assert broken == []


def test_every_page_is_in_the_index() -> None:
    index = (CHECKOUT / "docs/README.md").read_text()
    assert [page.name for page in PAGES if page.name != "README.md" and f"({page.name})" not in index] == []


def test_every_command_is_in_the_readme() -> None:
    readme = (CHECKOUT / "README.md").read_text()
    commands = [command.name for command in app.registered_commands]
    assert commands
    assert [name for name in commands if f"`{name}`" not in readme] == []


def test_page_of_the_spec_is_current() -> None:
    path = CHECKOUT / "scripts" / "specdocs.py"
    found = importlib.util.spec_from_file_location("specdocs", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    assert module.PAGE.read_text() == module.page(), "run `python scripts/specdocs.py`"


def test_every_room_is_on_the_contributors_page() -> None:
    page = (CHECKOUT / "docs/contributing.md").read_text()
    rooms = {
        path.name + ("/" if path.is_dir() else "") for path in (CHECKOUT / "envlock").iterdir() if path.suffix == ".py" or path.is_dir()
    }
    quiet = {"__init__.py", "__main__.py", "__pycache__/", "py.typed"}
    assert sorted(room for room in rooms - quiet if f"`{room}`" not in page) == []
