"""Reads the data files into a frozen `Catalogue`, and refuses a row that does not say where it comes from."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from envlock.catalogue import rows
from envlock.errors import CatalogueInvalid, Exit, Finding, Problems

DATA = Path(__file__).with_name("data")
TABLES: dict[str, type[rows.Row]] = {
    "torch": rows.Build,
    "variants": rows.Build,
    "family": rows.Family,
    "toolkits": rows.Toolkit,
    "drivers": rows.CudaRelease,
    "branches": rows.Branch,
    "generations": rows.Generation,
    "code": rows.CodeRule,
    "gpus": rows.GpuModel,
    "distributions": rows.Distribution,
    "images": rows.PythonImage,
    "numpy": rows.NumpyAbi,
}
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
AnyRow = TypeVar("AnyRow", bound=rows.Row)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All tables. `builds` are newest release first, the default index before PyTorch's own, newest CUDA first."""

    digest: str
    builds: tuple[rows.Build, ...]
    family: tuple[rows.Family, ...]
    toolkits: tuple[rows.Toolkit, ...]
    drivers: tuple[rows.CudaRelease, ...]
    branches: tuple[rows.Branch, ...]
    generations: tuple[rows.Generation, ...]
    code: tuple[rows.CodeRule, ...]
    gpus: tuple[rows.GpuModel, ...]
    distributions: tuple[rows.Distribution, ...]
    images: tuple[rows.PythonImage, ...]
    numpy: tuple[rows.NumpyAbi, ...]

    def releases(self) -> list[str]:
        """Versions of torch, oldest first."""
        return sorted({build.torch for build in self.builds}, key=rows.numbers)


@cache
def load() -> Catalogue:
    """The catalogue that ships with envlock, read once per process. Raises `Problems` (`catalogue-invalid`)."""
    return parse(read_files())


def read_files() -> dict[str, bytes]:
    """The bytes of each table that ships with envlock."""
    return {table: (DATA / f"{table}.json").read_bytes() for table in TABLES}


def parse(files: Mapping[str, bytes]) -> Catalogue:
    """The catalogue from the bytes of each table. Raises `Problems` naming every bad row."""
    faults: list[Finding] = []
    tables = {name: _rows(TABLES[name], name, raw, faults) for name, raw in files.items()}
    if faults:
        raise Problems(faults, Exit.NO_STACK)
    builds = _of(rows.Build, tables["torch"]) + _of(rows.Build, tables["variants"])
    builds.sort(key=lambda b: (b.release, b.index == "default", rows.numbers(b.cuda or "0")), reverse=True)
    return Catalogue(
        digest=_digest(files),
        builds=tuple(builds),
        family=tuple(_of(rows.Family, tables["family"])),
        toolkits=tuple(_of(rows.Toolkit, tables["toolkits"])),
        drivers=tuple(sorted(_of(rows.CudaRelease, tables["drivers"]), key=lambda row: rows.numbers(row.cuda))),
        branches=tuple(_of(rows.Branch, tables["branches"])),
        generations=tuple(_of(rows.Generation, tables["generations"])),
        code=tuple(_of(rows.CodeRule, tables["code"])),
        gpus=tuple(_of(rows.GpuModel, tables["gpus"])),
        distributions=tuple(_of(rows.Distribution, tables["distributions"])),
        images=tuple(_of(rows.PythonImage, tables["images"])),
        numpy=tuple(_of(rows.NumpyAbi, tables["numpy"])),
    )


def _of(kind: type[AnyRow], table: list[rows.Row]) -> list[AnyRow]:
    return [row for row in table if isinstance(row, kind)]


def _digest(files: Mapping[str, bytes]) -> str:
    """sha256 over the tables' names and content, layout of the JSON not counted."""
    content = {name: json.loads(raw) for name, raw in files.items()}
    return "sha256:" + hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _rows(kind: type[rows.Row], table: str, raw: bytes, faults: list[Finding]) -> list[rows.Row]:
    wanted = {field.name for field in fields(kind)}
    read = []
    for place, row in enumerate(json.loads(raw)["rows"], 1):
        why = _complaint(row, wanted)
        if why:
            what, hint = "a row of the catalogue cannot be used", "every row needs source, date and how"
            faults.append(Finding(CatalogueInvalid.id, "error", what, f"{table}.json row {place}", why, hint))
        else:
            values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
            read.append(kind(**values))
    return read


def _complaint(row: dict[str, Any], wanted: set[str]) -> str:
    if missing := sorted(wanted - row.keys()):
        return "missing: " + ", ".join(missing)
    if unknown := sorted(row.keys() - wanted):
        return "unknown: " + ", ".join(unknown)
    if empty := [key for key in ("source", "date", "how") if not str(row[key]).strip()]:
        return "empty: " + ", ".join(empty)
    if not _DATE.fullmatch(str(row["date"])):
        return f"date {row['date']!r} is not written as 2026-11-29"
    return ""
