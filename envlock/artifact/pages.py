"""The artifact's pages for people, rendered from templates: README, checklist, licences, appendix, files for Apptainer and Slurm. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from packaging.utils import canonicalize_name

from envlock.artifact import layout
from envlock.artifact.citation import OPEN
from envlock.artifact.inputs import inputs_of
from envlock.artifact.licences import Licence
from envlock.artifact.record import Record
from envlock.artifact.scan import Scan
from envlock.bundle import templates_folder
from envlock.lock import Lock
from envlock.paper import Paper
from envlock.progress import human_bytes
from envlock.report import Report

NVIDIA_TERMS = "https://docs.nvidia.com/cuda/eula/"
NONE = Licence()

_PLAIN = {layout.README, layout.CHECKLIST, layout.LICENCES, layout.APPENDIX_MD, layout.APPTAINER, layout.SLURM}


@dataclass(frozen=True, slots=True)
class LicenceRow:
    """One package in the list of licences."""

    name: str
    version: str
    kind: str
    licence: str
    nvidia: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """What the pages say."""

    lock: Lock
    record: Record
    scan: Scan
    paper: Paper | None
    reports: Mapping[str, Report]
    references: tuple[str, ...]
    has_spec: bool


def pages(facts: Facts) -> dict[str, bytes]:
    """Every page by its path in the artifact."""
    made = {path: _render(f"{path.rpartition('/')[2]}.j2", facts, _environment()) for path in sorted(_PLAIN)}
    made[layout.APPENDIX_TEX] = _render("appendix.tex.j2", facts, _tex_environment())
    return made


def licence_rows(lock: Lock, scan: Scan) -> list[LicenceRow]:
    """Every package with what it says of its licence, by kind and name."""
    rows = []
    for wheel in lock.wheels:
        licence = scan.python.get(canonicalize_name(wheel.name), NONE)
        theirs = licence.is_nvidia or wheel.name.startswith("nvidia-")
        rows.append(LicenceRow(wheel.name, wheel.version, "Python", licence.text, theirs))
    for deb in lock.debs:
        rows.append(LicenceRow(deb.name, deb.version, "Debian", scan.debian.get(deb.name, NONE).text, "nvidia" in deb.name))
    return rows


def _render(template: str, facts: Facts, environment: Environment) -> bytes:
    return environment.get_template(template).render(**_told(facts)).encode()


def _told(facts: Facts) -> dict[str, Any]:
    lock, record = facts.lock, facts.record
    rows = licence_rows(lock, facts.scan)
    files = [file.name for file in record.archive.files]
    packed = sum(file.size for file in record.archive.files)
    vendored = [row for row in inputs_of(lock) if row.lies_in(record.vendor)]
    missing = [row for row in inputs_of(lock) if not row.lies_in(record.vendor)]
    layers = sum(layer.size for layer in record.layers)
    return {
        "lock": lock,
        "record": record,
        "paper": facts.paper,
        "reports": facts.reports,
        "references": facts.references,
        "has_spec": facts.has_spec,
        "layout": layout,
        "OPEN": OPEN,
        "NVIDIA_TERMS": NVIDIA_TERMS,
        "licences": rows,
        "nvidia": [row for row in rows if row.nvidia],
        "debs": lock.debs,
        "missing": missing,
        "missing_bytes": sum(row.size for row in missing),
        "files": files,
        "stream": _stream(record, files),
        "disk": {
            "artifact": packed + sum(row.size for row in vendored),
            "packed": packed,
            "loaded": layers,
            "rebuild": sum(row.size for row in inputs_of(lock)) + layers,
        },
    }


def _stream(record: Record, files: list[str]) -> str:
    """The command that gives the plain archive on stdout; empty where the archive is one plain file."""
    parts = f"{files[0].rpartition('.part-')[0]}.part-*" if record.archive.split else files[0]
    if record.archive.compression == "zstd":
        return f"cat {parts} | zstd -dc" if record.archive.split else f"zstd -dc {parts}"
    return f"cat {parts}" if record.archive.split else ""


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(templates_folder() / "artifact"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["bytes"] = human_bytes
    environment.filters["cell"] = lambda text: str(text).replace("|", "\\|").replace("\n", " ")
    return environment


def _tex_environment() -> Environment:
    """For LaTeX, whose braces are not to be mistaken for the template's; every value is escaped by hand with `tex`."""
    environment = _environment().overlay(
        block_start_string="<%", block_end_string="%>", variable_start_string="<<", variable_end_string=">>", comment_start_string="<#",
        comment_end_string="#>",
    )  # fmt: skip
    environment.filters["tex"] = tex
    return environment


_TEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}", '"': "''",
    "“": "``", "”": "''", "‘": "`", "’": "'", "–": "--", "—": "---", "…": r"\ldots{}", "×": r"$\times$", "≥": r"$\geq$", "≤": r"$\leq$",
    "→": r"$\to$", "·": r"$\cdot$", "ß": r"\ss{}", "æ": r"\ae{}", "Æ": r"\AE{}", "ø": r"\o{}", "Ø": r"\O{}", "ł": r"\l{}", "Ł": r"\L{}",
    "œ": r"\oe{}", "Œ": r"\OE{}", "ı": r"\i{}",
}  # fmt: skip
_ACCENTS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0304": "=", "\u0306": "u", "\u0307": ".", "\u0308": '"', "\u030a": "r",
    "\u030b": "H", "\u030c": "v", "\u0327": "c",
}  # fmt: skip
_BREAK = 16  # characters of a long word without a place to break it


def tex(value: object) -> str:
    """Text for LaTeX, in plain ASCII and with the base packages alone: letters with accents as commands, what LaTeX lacks as `?`.

    Words longer than a line can hold get places to break.
    """
    return " ".join(_tex_word(word) for word in str(value).split(" "))


def _tex_word(word: str) -> str:
    made = ""
    for number, character in enumerate(word, 1):
        made += _tex_character(character)
        if len(word) > 2 * _BREAK and number % _BREAK == 0:
            made += r"\allowbreak{}"
    return made


def _tex_character(character: str) -> str:
    if character in _TEX:
        return _TEX[character]
    if character.isascii():
        return character if character.isprintable() else " "
    plain = unicodedata.normalize("NFD", character)
    if len(plain) == 2 and plain[0].isascii() and plain[1] in _ACCENTS:
        return f"\\{_ACCENTS[plain[1]]}{{{plain[0]}}}"
    return "?"
