"""House rules that a reader relies on, held over every file of the repository."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from envlock.spec import parse_spec

CHECKOUT = Path(__file__).parents[2]

# Hosts of public registries: a mirror or an offline folder must serve as well, so no file may name one.
REGISTRY_HOST = re.compile(r"(?i)\bpypi[.]org|pythonhosted[.]org|\b(?:deb|ftp|security|snapshot)[.]debian[.]org|\bnpmjs[.](?:org|com)")
# Folders of the machines that this was written on.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work/(?:main|shared)|opt/(?:wheels|pypi)|var/tmp/\w)")
UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b")

# A module that is longer than this does too much; one that must be says here why.
LONGEST_MODULE = 450
LONG_MODULES = {
    "tests/engine/test_engine.py": "each promise of one interface, run on every kind of engine by the same fixtures",
    "tests/unit/test_registry.py": "one protocol: the exchanges of resolve/registry.py against one stand-in",
}


def tracked() -> list[Path]:
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode:
        pytest.skip("not a git checkout")
    return sorted(CHECKOUT / name for name in listing.stdout.split("\0") if name and (CHECKOUT / name).is_file())


def lines_matching(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        name = path.relative_to(CHECKOUT)
        found += [f"{name}:{number}: {line.strip()}" for number, line in enumerate(text.splitlines(), 1) if pattern.search(line)]
    return found


@pytest.mark.parametrize("pattern", [REGISTRY_HOST, MACHINE_PATH, UNFINISHED], ids=["registry-host", "machine-path", "unfinished"])
def test_no_file_has(pattern: re.Pattern[str]) -> None:
    assert lines_matching(pattern) == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (REGISTRY_HOST, "see https://{}.org/project/x".format("pypi")),
        (REGISTRY_HOST, "deb http://{}.debian.org/debian bookworm main".format("deb")),
        (MACHINE_PATH, "cd /{}/main".format("work")),
        (UNFINISHED, "# {}: later".format("TO" + "DO")),
    ],
)
def test_the_rules_see_what_they_forbid(pattern: re.Pattern[str], line: str) -> None:
    assert pattern.search(line)


def test_modules_are_short() -> None:
    lengths = {str(p.relative_to(CHECKOUT)): len(p.read_text().splitlines()) for p in tracked() if p.suffix == ".py"}
    assert {name: n for name, n in lengths.items() if n > LONGEST_MODULE and name not in LONG_MODULES} == {}
    assert {name for name in LONG_MODULES if lengths.get(name, 0) <= LONGEST_MODULE} == set(), "no longer long: take it off the list"


def fences() -> Iterator[tuple[str, str, str]]:
    """Place, language and text of each code block in the Markdown files."""
    for path in tracked():
        if path.suffix != ".md":
            continue
        language, block, start = None, [], 0
        for number, line in enumerate(path.read_text().splitlines(), 1):
            fence = re.match(r"\s*```(\w*)", line)
            if fence is None:
                block.append(line)
            elif language is None:
                language, block, start = fence[1], [], number
            else:
                yield f"{path.relative_to(CHECKOUT)}:{start}", language, "\n".join(block) + "\n"
                language = None
        assert language is None, f"{path.relative_to(CHECKOUT)}:{start}: code block without an end"


def fault_in(language: str, text: str) -> str | None:
    """Why a code block does not parse as what it says it is; None where it does, or is of a kind that is not checked."""
    try:
        match language:
            case "yaml":
                data = yaml.safe_load(text)
                if isinstance(data, dict) and {"name", "stack"} <= data.keys():
                    parse_spec(text.encode(), "block")
            case "json":
                json.loads(text)
            case "toml":
                tomllib.loads(text)
            case "python":
                compile(text, "block", "exec")
            case "sh" | "bash":
                subprocess.run(["bash", "-n"], input=text, text=True, check=True, capture_output=True, timeout=10)
    except subprocess.CalledProcessError as error:
        return str(error.stderr)
    except Exception as error:
        return repr(error)
    return None


def test_code_blocks_in_the_docs_parse() -> None:
    faults = {place: fault_in(language, text) for place, language, text in fences()}
    assert {place: fault for place, fault in faults.items() if fault} == {}


@pytest.mark.parametrize(
    ("language", "text"),
    [("yaml", "name: x\nstack: {torhc: 1}"), ("json", "{"), ("toml", "a ="), ("python", "def"), ("sh", "if true")],
)
def test_a_block_that_does_not_parse_is_seen(language: str, text: str) -> None:
    assert fault_in(language, text)
