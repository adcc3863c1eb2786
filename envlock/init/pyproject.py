"""pyproject.toml: the project's dependencies, with the tables of uv and Poetry. Sources: PEP 621, and the documentation of both."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from envlock.errors import FileUnreadable
from envlock.init import pip
from envlock.init.said import Claim, Said, texts_in
from envlock.yamlfile import read_bytes

ITSELF = "the image holds the wheels of other projects; add this one with `files`, or as a wheel in a folder of find-links"


def read(path: Path, said: Said) -> None:
    """Take over a pyproject.toml. Raises `FileUnreadable` where it is not TOML."""
    text = read_bytes(path).decode("utf-8-sig", errors="replace")
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise FileUnreadable(f"{path} is not TOML", where=path.name, why=str(error)) from None
    lines = text.splitlines()

    def where(words: str) -> str:
        number = next((number for number, line in enumerate(lines, 1) if words and words in line), None)
        return f"{path.name}:{number}" if number else path.name

    project, tool = _table(data, "project"), _table(data, "tool")
    if isinstance(project.get("name"), str):
        said.names.append(project["name"])
        said.leave(f"the project {project['name']} itself", where("[project]"), ITSELF)
    if isinstance(project.get("requires-python"), str):
        said.python.append(Claim(project["requires-python"], f"requires-python {project['requires-python']}", where("requires-python")))
    uv = _table(tool, "uv")
    sources = _table(uv, "sources")
    for text in texts_in(project.get("dependencies")):
        source = sources.get(re.split(r"[\s\[;=<>!~@]", text)[0])
        if isinstance(source, dict) and not {"index"} & source.keys():
            said.leave(f"{text} from {source}", where(text), pip.NOT_A_WHEEL)
        else:
            pip.take_requirement(text, where(text), said)
    for key in (*_table(project, "optional-dependencies"), *_table(data, "dependency-groups")):
        said.leave(f"the optional dependencies {key}", where(f"{key} ="), "name those that the image needs under `packages`")
    _read_uv(uv, sources, where, said)
    _read_poetry(_table(tool, "poetry"), where, said)


def _read_uv(uv: dict[str, Any], sources: dict[str, Any], where: Any, said: Said) -> None:
    tables = [table for table in uv.get("index", []) if isinstance(table, dict) and isinstance(table.get("url"), str)]
    for url in [*texts_in(uv.get("extra-index-url")), *texts_in(uv.get("find-links")), *texts_in([uv.get("index-url")])]:
        pip.take_place("index", url, where(url), said)
    for table in tables:
        if not table.get("explicit") or any(_names_index(source, table.get("name")) for source in sources.values()):
            pip.take_place("index", table["url"], where(table["url"]), said)
    for key in ("override-dependencies", "constraint-dependencies"):
        for text in texts_in(uv.get(key)):
            said.leave(f"{key} {text}", where(text), "name the version under `packages` where the image needs it")


def _names_index(source: Any, name: Any) -> bool:
    rows = source if isinstance(source, list) else [source]
    return any(isinstance(row, dict) and row.get("index") == name for row in rows)


def _read_poetry(poetry: dict[str, Any], where: Any, said: Said) -> None:
    if isinstance(poetry.get("name"), str):
        said.names.append(poetry["name"])
        said.leave(f"the project {poetry['name']} itself", where("[tool.poetry]"), ITSELF)
    for source in poetry.get("source", []):
        if isinstance(source, dict) and isinstance(source.get("url"), str):
            pip.take_place("source", source["url"], where(source["url"]), said)
    for name, value in _table(poetry, "dependencies").items():
        version = value.get("version") if isinstance(value, dict) else value
        place = where(f"{name} =")
        if not isinstance(version, str):
            said.leave(f"{name} from {value}", place, pip.NOT_A_WHEEL)
        elif name == "python":
            said.python.append(Claim(_poetry_version(version), f"python {version}", place))
        elif isinstance(value, dict) and value.get("optional"):
            said.leave(f"the optional dependency {name}", place, "name it under `packages` where the image needs it")
        else:
            pip.take_requirement(f"{name}{_poetry_version(version)}", place, said)


def _poetry_version(text: str) -> str:
    """Poetry's versions as Python writes them: `^1.2` is >=1.2,<2, `1.2` is ==1.2. Source: Poetry, Dependency specification."""
    if text == "*":
        return ""
    if text.startswith("^"):
        parts = text[1:].split(".")
        lead = next((place for place, part in enumerate(parts) if part != "0"), len(parts) - 1)
        upper = [*parts[:lead], str(int(parts[lead]) + 1)] if parts[lead].isdigit() else parts
        return f">={text[1:]},<{'.'.join(upper)}"
    if text.startswith("~") and not text.startswith("~="):
        parts = text[1:].split(".")
        return f">={text[1:]},=={'.'.join(parts[:2])}.*"
    return text if re.match(r"[<>=!~]", text) else f"=={text}"


def _table(data: dict[str, Any], key: str) -> dict[str, Any]:
    found = data.get(key)
    return found if isinstance(found, dict) else {}
