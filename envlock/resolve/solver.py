"""uv asked for one wish on one machine, until every package of the torch family comes from where it should."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envlock.errors import EnvlockError, Exit, NeedsCompiling, NoSolution, Problems, Unreachable
from envlock.lock import Wheel
from envlock.resolve.choice import Choice, choose, needs_compiling, summary, version_of
from envlock.resolve.finds import FindLinks
from envlock.resolve.indexes import Indexes
from envlock.resolve.pages import Pages, with_credentials
from envlock.resolve.requirements import RequirementSet
from envlock.resolve.uv import NoUsableWheel, Uv
from envlock.resolve.wish import PythonWish
from envlock.secrecy import redact


@dataclass(frozen=True, slots=True)
class Solver:
    """A wish, the requirement files that belong to it, and what this machine has to answer it."""

    wish: PythonWish
    files: RequirementSet
    uv: Uv
    indexes: Indexes
    pages: Pages

    @property
    def requirements(self) -> tuple[str, ...]:
        return (*self.wish.requirements, *self.files.requirements)

    @property
    def pytorch_index(self) -> str:
        return f"{self.indexes.pytorch}/{self.wish.torch_index_path}"

    def solve(self, folder: Path, kept: Mapping[str, Wheel]) -> list[Choice]:
        """One wheel for each package, sorted by name; `folder` is for files of ours. Versions in `kept` are preferred."""
        finds = FindLinks.prepared(self.indexes, self.wish.family, self._labels(), folder / "find-links")
        question = _Question(folder, self.requirements, self._missing_in(finds), finds, _pins(kept))
        while True:
            try:
                packages = self._ask(question)
                choices = [self._choice(package, kept) for package in packages]
                strayed = {choice.name for choice in choices if self._has_strayed(choice, question)}
            except NoSolution as error:
                # Held to PyTorch's build, a package that only others ask for cannot be found in the default index.
                strayed = {name for name in self.wish.family if f"{name}==" in error.why} if self.wish.variant else set()
                if strayed <= question.from_pytorch:
                    raise
            if strayed <= question.from_pytorch:
                return sorted(choices, key=lambda choice: choice.name)
            question = replace(question, from_pytorch=question.from_pytorch | strayed)

    def _labels(self) -> frozenset[str]:
        """Local version labels that the wish accepts for the torch family: those it names."""
        asked = [Requirement(text) for text in self.requirements]
        family = [requirement for requirement in asked if canonicalize_name(requirement.name) in self.wish.family]
        named = {Version(spec.version).local for requirement in family for spec in requirement.specifier if "+" in spec.version}
        return frozenset(label for label in (*named, self.wish.variant) if label)

    def _missing_in(self, finds: FindLinks) -> frozenset[str]:
        """Packages of the torch family that are asked for, come from PyTorch's index, and are in no find-links folder."""
        if self.wish.variant is None:
            return frozenset()
        asked = [Requirement(text) for text in self.requirements]
        names = {canonicalize_name(requirement.name) for requirement in asked if not finds.offers(requirement, self.wish.target)}
        return frozenset(names & set(self.wish.family))

    def _has_strayed(self, choice: Choice, question: _Question) -> bool:
        """Whether a package of the torch family came out of no find-links folder; it must then come from PyTorch's index."""
        return self.wish.variant is not None and choice.name in self.wish.family and not question.finds.has(choice.file)

    def _ask(self, question: _Question) -> list[dict[str, Any]]:
        """uv's answer. Packages without a wheel are left out one by one, so that all of them are named at once."""
        without: list[NeedsCompiling] = []
        while True:
            try:
                packages = self._call(question)
            except NoUsableWheel as error:
                without.append(self._needs_compiling(error))
                rest = tuple(text for text in question.requirements if canonicalize_name(Requirement(text).name) != error.package.name)
                if len(rest) < len(question.requirements):
                    question = replace(question, requirements=rest, from_pytorch=question.from_pytorch - {error.package.name})
                    continue
            except Unreachable as error:
                raise self._explained(error) from None
            except EnvlockError:
                if not without:
                    raise
            else:
                if not without:
                    return packages
            raise without[0] if len(without) == 1 else Problems((error.finding for error in without), Exit.NO_STACK)

    def _call(self, question: _Question) -> list[dict[str, Any]]:
        target = self.wish.target
        arguments: list[str | Path] = [
            *question.write(self.wish.constraints + tuple(self.files.constraints), self.pytorch_index, self.wish.python),
            *("--python-version", target.python, "--python-platform", target.uv_platform, "--only-binary", ":all:"),
            *("--format", "pylock.toml", "--output-file", question.answer, "--quiet"),
        ]
        self.uv.compile([*arguments, *self.indexes.options], question.finds.environment)
        packages = tomllib.loads(question.answer.read_text(encoding="utf-8")).get("packages", [])
        return [package for package in packages if isinstance(package, dict)]

    def _choice(self, package: Mapping[str, Any], kept: Mapping[str, Wheel]) -> Choice:
        name = canonicalize_name(str(package["name"]))
        preferred = kept[name].file if name in kept else None
        choice = choose(package, self.wish.target, preferred, self.files.hashes.get(name))
        source = choice.source
        for index in filter(None, (self.indexes.default, *self.indexes.named.values(), *self.indexes.unnamed, self.pytorch_index)):
            source = with_credentials(source, index)
        return replace(choice, source=source)

    def _explained(self, error: Unreachable) -> Unreachable:
        """PyTorch's index cannot be reached from everywhere, and there are ways around it."""
        if self.wish.variant is None or not error.where.startswith(redact(self.indexes.pytorch)):
            return error
        names = " ".join(text for text in self.wish.requirements if "+" in text) or "this build of torch"
        hint = (
            f"download the wheel of {names} elsewhere, put it into a folder and name that folder in find-links (PIP_FIND_LINKS, "
            "pip.conf or uv.toml); or name a mirror in ENVLOCK_PYTORCH_INDEX"
        )
        why = f"{names} is published only there; {error.why}"
        return type(error)("PyTorch's wheel index cannot be reached", where=error.where, why=why, hint=hint)

    def _needs_compiling(self, error: NoUsableWheel) -> NeedsCompiling:
        name, version = error.package.name, error.package.version
        for index in filter(None, (self.indexes.default, *self.indexes.named.values(), *self.indexes.unnamed)):
            try:
                files = {offer.file: version_of(offer.file) for offer in self.pages.project(index, name)}
            except EnvlockError:
                continue
            newest = max((found for found in files.values() if found), key=Version, default=None)
            shown = [file for file, found in files.items() if found is not None and found == (version or newest)]
            if shown:
                return needs_compiling(name, version, summary(shown), self.wish.target)
        return needs_compiling(name, version, f"no file that suits. uv says: {error.why}", self.wish.target)


@dataclass(frozen=True, slots=True)
class _Question:
    """What uv is asked: requirements, and which of the torch family it must take from PyTorch's index."""

    folder: Path
    requirements: tuple[str, ...]
    from_pytorch: frozenset[str]
    finds: FindLinks
    pins: str

    @property
    def answer(self) -> Path:
        return self.folder / "pylock.envlock.toml"

    def write(self, constraints: Iterable[str], pytorch_index: str, python: str) -> list[str | Path]:
        """Write the files that uv reads; its arguments that name them. Only a project file can say that an index is for certain
        packages alone, so what comes from PyTorch's index is asked for in one."""
        project, plain, held = (self.folder / name for name in ("pyproject.toml", "requirements.in", "constraints.in"))
        of_pytorch = [text for text in self.requirements if canonicalize_name(Requirement(text).name) in self.from_pytorch]
        unasked = self.from_pytorch - {canonicalize_name(Requirement(text).name) for text in of_pytorch}
        plain.write_text(_lines(text for text in self.requirements if text not in of_pytorch))
        held.write_text(_lines(constraints))
        self.answer.unlink(missing_ok=True)
        if self.pins:
            self.answer.write_text(self.pins)
        if not self.from_pytorch:
            return [plain, "--constraints", held]
        project.write_text(_project([*of_pytorch, *sorted(unasked)], sorted(self.from_pytorch), pytorch_index, python))
        return [project, plain, "--constraints", held]


def _lines(texts: Iterable[str]) -> str:
    return "".join(f"{text}\n" for text in texts)


def _pins(kept: Mapping[str, Wheel]) -> str:
    """The versions of an older lock as uv reads them from a file that it is about to write: preferred, not demanded."""
    packages = [f"[[packages]]\nname = {json.dumps(w.name)}\nversion = {json.dumps(w.version)}\n" for w in kept.values()]
    return "\n".join(['lock-version = "1.0"\ncreated-by = "envlock"\n', *packages]) if packages else ""


def _project(requirements: Sequence[str], sourced: Sequence[str], index: str, python: str) -> str:
    sources = "".join(f'{name} = {{index = "pytorch"}}\n' for name in sourced)
    return (
        f'[project]\nname = "spec"\nversion = "0"\nrequires-python = ">={python}"\ndependencies = {json.dumps(requirements)}\n'
        f'[tool.uv.sources]\n{sources}[[tool.uv.index]]\nname = "pytorch"\nurl = {json.dumps(index)}\nexplicit = true\n'
    )
