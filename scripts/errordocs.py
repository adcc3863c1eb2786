"""Writes docs/errors.md: every error and finding of the code with its cause and remedy.

    python scripts/errordocs.py

Ids, exit statuses and severities are read from the sources; causes and remedies stand in envlock/explanations.yaml, and those of
what programs print in envlock/diagnoses.yaml. A test holds the page current and the explanations complete.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT))

import yaml  # noqa: E402

from envlock import diagnose, explanations  # noqa: E402
from envlock.errors import EnvlockError  # noqa: E402

PAGE = CHECKOUT / "docs" / "errors.md"
MAKERS = ("Finding", "Fault", "PydanticCustomError")
ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
PASSED_ON = ast.Attribute
"""A finding whose id is that of another object (`fault.id`, `CatalogueInvalid.id`) brings no id of its own."""


@dataclass
class Found:
    """The ids of the sources: exit statuses of those that are error classes, severities of the others, and what cannot be read."""

    exits: dict[str, int] = field(default_factory=dict)
    severities: dict[str, set[str]] = field(default_factory=dict)
    patterns: dict[str, str] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)

    @property
    def ids(self) -> set[str]:
        return self.exits.keys() | self.severities.keys()


def collect() -> Found:
    """Every id that envlock's sources can give to an error or a finding."""
    found = Found()
    for kind in _subclasses(EnvlockError):
        found.exits[kind.id] = int(kind.exit_code)
    for path in sorted((CHECKOUT / "envlock").rglob("*.py")):
        _read(ast.parse(path.read_text()), str(path.relative_to(CHECKOUT)), found)
    return found


def _subclasses(kind: type[EnvlockError]) -> Iterator[type[EnvlockError]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from _subclasses(inner)


def _read(tree: ast.Module, path: str, found: Found) -> None:
    constants = {name: value for node in ast.walk(tree) for name, value in _assigned(node)}
    makers = dict.fromkeys(MAKERS, 0) | _wrappers(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.target.id == "id":
                    _note(line.value, "error", constants, f"{path}:{line.lineno}", found)
        if isinstance(node, ast.Call) and _name(node.func) == "Remark":
            given = {word.arg: word.value for word in node.keywords}
            severity = getattr(given.get("severity"), "value", "error")
            _note(given.get("id"), str(severity), constants, f"{path}:{node.lineno}", found)
        if isinstance(node, ast.Call) and _name(node.func) in makers and len(node.args) > makers[_name(node.func)]:
            given = node.args[makers[_name(node.func)] :]
            severity = given[1].value if len(given) > 1 and isinstance(given[1], ast.Constant) else "error"
            _note(given[0], str(severity), constants, f"{path}:{node.lineno}", found)


def _wrappers(tree: ast.Module) -> dict[str, int]:
    """Functions of a module that make a finding with an id they are given, and the place of that argument in a call."""
    found = {}
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        names = [argument.arg for argument in function.args.args if argument.arg != "self"]
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            first = call.args[0] if _name(call.func) in MAKERS and call.args else None
            if isinstance(first, ast.Name) and first.id in names:
                found[function.name] = names.index(first.id)
    return found


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _assigned(node: ast.AST) -> Iterator[tuple[str, list[ast.expr]]]:
    """Names that hold ids: assigned, or bound by a loop over a tuple of tuples."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, [node.value]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from (
                    (name.id, [value]) for name, value in zip(target.elts, node.value.elts, strict=True) if isinstance(name, ast.Name)
                )
    if isinstance(node, ast.For) and isinstance(node.target, ast.Tuple) and isinstance(node.iter, ast.Tuple):
        for place, name in enumerate(node.target.elts):
            if isinstance(name, ast.Name):
                yield name.id, [row.elts[place] for row in node.iter.elts if isinstance(row, ast.Tuple)]


def _note(node: ast.expr | None, severity: str, constants: dict[str, list[ast.expr]], where: str, found: Found) -> None:
    """Note the ids that an expression can have."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        if ID.fullmatch(node.value):
            found.severities.setdefault(node.value, set()).add(severity if severity in ("error", "warning", "info") else "error")
    elif isinstance(node, ast.IfExp):
        _note(node.body, severity, constants, where, found)
        _note(node.orelse, severity, constants, where, found)
    elif isinstance(node, ast.JoinedStr):
        parts = (re.escape(str(part.value)) if isinstance(part, ast.Constant) else "[a-z]+" for part in node.values)
        found.patterns["".join(parts)] = where
    elif isinstance(node, ast.Name) and node.id in constants:
        for value in constants[node.id]:
            _note(value, severity, {}, where, found)
    elif node is not None and not isinstance(node, (PASSED_ON, ast.Name, ast.Call)):
        found.unread.append(where)


def page() -> str:
    """The text of docs/errors.md."""
    found = collect()
    lines = ["# Errors", "", *INTRODUCTION.strip().splitlines(), ""]
    topic = ""
    for row in explanations.load().values():
        if row.topic != topic:
            topic = row.topic
            lines += [f"## {topic}", ""]
        lines += [f"### {row.id}", "", f"{_kind(row.id, found)}", "", f"Cause: {row.cause}", "", f"Remedy: {row.remedy}", ""]
    lines += ["## What programs print", "", *DIAGNOSES.strip().splitlines(), ""]
    lines += ["| id | whose matter | exit | what it means | what to do |", "|---|---|---|---|---|"]
    for row in yaml.safe_load(diagnose.TABLE.read_text(encoding="utf-8")):
        cells = (row["id"], MATTERS.get(row["fault"], row["fault"]), str(row["exit"]), row["what"], row["hint"])
        lines.append("| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _kind(id_: str, found: Found) -> str:
    if id_ in found.exits:
        return f"Error, exit status {found.exits[id_]}."
    kinds = [kind for kind in ("error", "warning", "info") if kind in found.severities.get(id_, {"error"})]
    return {"info": "Information"}.get(kinds[0], kinds[0].capitalize()) + "".join(f" or {kind}" for kind in kinds[1:]) + "."


INTRODUCTION = """
Every error and finding has an id, which stands in brackets behind the message, and four parts: what, where, why, and what to do.
`envlock explain ID` prints an entry of this page. An error ends the command with an exit status; warnings and information do not.

| exit | meaning |
|---|---|
| 0 | done; all that was asked holds |
| 1 | it does not hold: a check failed, not reproduced, differs |
| 2 | usage or spec error |
| 3 | no compatible stack |
| 4 | lock missing, stale or drifted |
| 5 | host not ready: no engine, no GPU runtime, driver too old, no space |
| 6 | a file could not be had: gone, unreachable, wrong hash |
| 7 | build failed |
| 8 | inconclusive: not everything could run here, and `--allow-partial` was not given |
| 70 | envlock itself is at fault: report it with what `--verbose` prints |
| 130 | interrupted; what was finished is kept, what was half-written is gone |

This page is written by `python scripts/errordocs.py` from the code; change `envlock/explanations.yaml`, not this file.
"""

MATTERS = {"libcuda": "image or host, by which libcuda was loaded", "gpu-targets": "image, or host where the GPU is no target"}

DIAGNOSES = """
Where a build, a container or a host prints one of these known faults, envlock says what it means and whose matter it is. Words in
braces stand for what was printed.
"""

if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"{PAGE.relative_to(CHECKOUT)} written")
