"""A draft as the text of a spec, and what a person is told of it."""

from __future__ import annotations

import json
import re
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from envlock.bundle import templates_folder
from envlock.console import finding_data
from envlock.init.draft import Draft
from envlock.init.said import by_reason
from envlock.schema import POINTER

TEMPLATE = "envlock.yaml.j2"
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9._/-]*(?:\[[A-Za-z0-9,._-]+\])?(?:[=<>~!]=?[A-Za-z0-9.*]+(?:,[=<>~!]=?[A-Za-z0-9.*]+)*)?")
_WORDS_OF_YAML = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
REMARK_COLUMN = 32


def spec_text(draft: Draft, file: str) -> str:
    """The spec with its remarks; `file` is the name that its own commands call it by."""
    environment = Environment(
        loader=FileSystemLoader(templates_folder() / "init"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters |= {"scalar": scalar, "quoted": quoted, "flow": flow, "comment": comment}
    values: dict[str, Any] = dict.fromkeys(("python", "base", "target", "packages", "apt", "env", "files", "run")) | draft.values
    values["stack"] = {"cuda": None} | values["stack"]
    if values["target"]:
        values["target"] = dict.fromkeys(("gpus", "driver", "platform")) | values["target"]
    text = environment.get_template(TEMPLATE).render(
        spec=values,
        solution=draft.solution,
        sources=draft.sources,
        left_out=by_reason(draft.left_out),
        pointer=POINTER,
        file=file,
        remark=lambda key: f"  # {comment(draft.remarks[key])}" if draft.remarks.get(key) else "",
    )
    return "".join(_aligned(line) + "\n" for line in text.splitlines())


def summary(draft: Draft, path: str) -> str:
    """What people read after `envlock init`."""
    stack = draft.values["stack"]
    if draft.solution is not None:
        solved = draft.solution.stack
        lines = [f"{path} written: torch {solved.torch} ({solved.cuda or 'CPU only'}), Python {solved.python}"]
    else:
        lines = [f"{path} written for torch {stack['torch']}, and `envlock check {path}` refuses it"]
    if draft.left_out:
        lines.append(f"left out, {len(draft.left_out)} in all (they stand at the end of the spec too):")
        for why, rows in by_reason(draft.left_out).items():
            lines += [f"  {why}:", *(f"    {row.where}  {row.what}" for row in rows)]
    return "\n".join(lines)


def as_json(draft: Draft, path: str) -> dict[str, Any]:
    """What `init --json` prints."""
    problems = draft.problems.findings if draft.problems else ()
    return {
        "spec": path,
        "values": draft.values,
        "holds": draft.problems is None,
        "findings": [finding_data(finding) for finding in (*draft.findings, *problems)],
        "left_out": [{"what": row.what, "where": row.where, "why": row.why} for row in draft.left_out],
    }


def quoted(text: str) -> str:
    """Text in double quotes, as JSON and YAML write it."""
    return json.dumps(str(text), ensure_ascii=False)


def scalar(text: str) -> str:
    """Text plain where every reader of YAML takes it for text, else in quotes."""
    plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS_OF_YAML
    return text if plain else quoted(text)


def flow(value: Any) -> str:
    """A list or mapping on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {quoted(item)}" for key, item in value.items()) + "}"
    return "[" + ", ".join(quoted(item) if not re.fullmatch(r"[a-z][a-z0-9_]*", item) else item for item in value) + "]"


def comment(text: str) -> str:
    """Text on one line, fit to stand behind a `#`."""
    return "".join(character if character.isprintable() else " " for character in " ".join(text.split()))


def _aligned(line: str) -> str:
    """Remarks behind values begin in one column."""
    match = re.fullmatch(r"(?P<value>[^#\"]*(?:\"[^\"]*\"[^#\"]*)*?)\s{2,}# (?P<remark>.*)", line)
    if match is None or not match["value"].strip():
        return line.rstrip()
    return f"{match['value'].rstrip():<{REMARK_COLUMN - 2}}  # {match['remark']}"
