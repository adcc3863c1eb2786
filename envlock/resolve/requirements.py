"""Requirement files as pip reads them, as far as a lock can honour them.

What names a place to take packages from is refused: a lock names no host, so such settings belong to pip's or uv's own
configuration. PyTorch's index is passed over, since envlock itself knows which build of torch to take from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envlock.errors import Exit, Finding, Problems
from envlock.urls import split_url
from envlock.yamlfile import read_bytes

_AGREED = ("--only-binary", "--prefer-binary", "--require-hashes", "--use-feature")
_PLACES = {"-i": "--index-url", "-f": "--find-links"} | {
    name: name for name in ("--index-url", "--pypi-url", "--extra-index-url", "--find-links", "--no-index", "--trusted-host")
}
_NOT_A_RELEASE = re.compile(r"(-e|--editable)\b|\.{0,2}/|[a-z+]+://|[^\s\[;=<>!~]+\.(whl|zip|tar\.gz)\b")


@dataclass
class RequirementSet:
    """What requirement files ask for: requirements and constraints as text, the sha256 hashes (hex) that they allow for a project,
    and every file that was read."""

    requirements: list[str] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)
    hashes: dict[str, frozenset[str]] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)


def read_requirements(paths: Iterable[Path]) -> RequirementSet:
    """Read requirement files and those that they include. Raises `FileUnreadable`, or `Problems` (exit 2) with every fault in them."""
    reader = _Reader()
    for path in paths:
        reader.read(path, constraint=False)
    if reader.faults:
        raise Problems(reader.faults, Exit.USAGE)
    return reader.found


class _Reader:
    def __init__(self) -> None:
        self.found = RequirementSet()
        self.faults: list[Finding] = []

    def read(self, path: Path, *, constraint: bool) -> None:
        if path in self.found.files:
            return
        self.found.files.append(path)
        text = read_bytes(path).decode("utf-8-sig", errors="replace")
        for number, line in logical_lines(text):
            self._line(line, path, f"{path.name}:{number}", constraint)

    def _line(self, line: str, path: Path, where: str, constraint: bool) -> None:
        option, _, value = line.replace("=", " ", 1).partition(" ") if line.startswith("--") else (line[:2], "", line[2:])
        value = value.strip()
        if "${" in line:
            why = "a lock must not depend on the variables of one machine"
            self._fault("requirement-option", "a requirement file may not use variables", where, why, "write the value out")
        elif option in ("-r", "--requirement"):
            self.read(path.parent / value, constraint=constraint)
        elif option in ("-c", "--constraint"):
            self.read(path.parent / value, constraint=True)
        elif option in _PLACES:
            if split_url(value).hostname != "download.pytorch.org":
                why = "a lock names no place, so that a mirror or an offline folder serves as well"
                hint = "move it to pip.conf or uv.toml of the machine; the lock then names the index by its alias"
                self._fault("requirement-option", f"{_PLACES[option]} cannot stand in a requirement file", where, why, hint)
        elif _NOT_A_RELEASE.match(line):
            hint = "build a wheel of it, put it in a folder and name that folder in pip's or uv's find-links"
            self._fault("needs-compiling", f"{line.split()[0]} points at a source, not at a published wheel", where, "", hint)
        elif line.startswith("-"):
            if option not in _AGREED:
                hint = "take it out of the file; name the version you want instead"
                self._fault("requirement-option", f"{line.split()[0]} cannot be honoured", where, "", hint)
        else:
            self._requirement(line, where, constraint)

    def _requirement(self, line: str, where: str, constraint: bool) -> None:
        text, *options = re.split(r"\s(?=--)", line)
        try:
            requirement = Requirement(text.strip())
        except InvalidRequirement as error:
            why = str(error).splitlines()[0]
            self._fault("requirement-syntax", f"{text.strip()!r} is not a requirement", where, why, "write it as name==1.2")
            return
        if requirement.url is not None:
            hint = "build a wheel of it, put it in a folder and name that folder in pip's or uv's find-links"
            self._fault("needs-compiling", f"{requirement.name} points at a source, not at a published wheel", where, "", hint)
            return
        (self.found.constraints if constraint else self.found.requirements).append(str(requirement))
        allowed = frozenset(match[1] for option in options if (match := re.match(r"--hash[= ]sha256:([0-9a-f]{64})", option)))
        if allowed:
            name = canonicalize_name(requirement.name)
            self.found.hashes[name] = self.found.hashes.get(name, frozenset()) | allowed

    def _fault(self, id_: str, what: str, where: str, why: str, hint: str) -> None:
        self.faults.append(Finding(id_, "error", what, where, why, hint))


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their 1-based number: continued ones joined, comments and empty ones left out."""
    pending, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        start = start if pending else number
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            pending += line[:-1] + " "
            continue
        whole = re.sub(r"(^|\s+)#.*$", "", pending + line).strip()
        pending = ""
        if whole:
            yield start, whole
    if pending.strip():
        yield start, pending.strip()
