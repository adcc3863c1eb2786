"""Wheel layers: which wheels share a layer, in what order, and what each layer holds.

What weighs most and changes least comes first, so that images with the same stack share those layers. A file that several
wheels bring is written by the first of them in that order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import chain
from pathlib import Path

from envlock.errors import Exit, FileConflict, Finding, Problems
from envlock.layers.canonical import Plan, plan_layer
from envlock.layers.entry import Entry, ancestors
from envlock.layers.recipes import folders_below, recipe_key
from envlock.layers.tree import Tree
from envlock.layers.wheelfile import VENV, InstalledFile, InstalledWheel, open_wheel, site_packages
from envlock.lock import Wheel

HEAVY = 5_000_000
"""Bytes from which a wheel is a layer of its own. The lighter ones are made and sent anew when one is added: few bytes, then."""

MOST_LAYERS = 100
"""Most wheel layers of an image; engines load at most 125 layers in all."""

_HINT = "leave one of the two out, or pin a version of it that does not bring this file"


@dataclass(frozen=True, slots=True)
class WheelGroup:
    """The wheels that share one layer, in the order in which they are installed."""

    wheels: tuple[Wheel, ...]

    @property
    def holds(self) -> str:
        """The group in a few words: `torch 2.5.1`, or `17 smaller wheels`."""
        if len(self.wheels) == 1:
            return f"{self.wheels[0].name} {self.wheels[0].version}"
        return f"{len(self.wheels)} smaller wheels"


def wheel_groups(wheels: Iterable[Wheel], most: int = MOST_LAYERS) -> tuple[WheelGroup, ...]:
    """The wheels in layers and in order: NVIDIA's, triton, torch, other heavy ones, and last all light ones together.

    More heavy wheels than `most` layers allow: the lightest of them share the last layer too.
    """
    by_weight = sorted(wheels, key=lambda wheel: (-wheel.size, wheel.name))
    alone = [wheel for wheel in by_weight if wheel.size >= HEAVY][: most - 1]
    together = by_weight[len(alone) :]
    groups = [WheelGroup((wheel,)) for wheel in sorted(alone, key=_rank)]
    return (*groups, *([WheelGroup(tuple(sorted(together, key=_rank)))] if together else []))


def _rank(wheel: Wheel) -> tuple[int, str]:
    if wheel.name.startswith("nvidia-"):
        return 0, wheel.name
    return {"triton": 1, "torch": 2}.get(wheel.name, 3), wheel.name


def wheel_recipes(groups: Sequence[WheelGroup], python: str, compiler: str, below: Tree) -> tuple[str, ...]:
    """The recipe key of each group's layer over `below`, the tree of base and virtual environment.

    `python` is major and minor version, `compiler` what `bytecode.compiler` says of the image's Python and our programs.
    """
    hashes = [[wheel.sha256 for wheel in group.wheels] for group in groups]
    shared = {
        "python": python,
        "compiler": compiler,
        "installer": version("installer"),
        "below": folders_below([site_packages(python), *(path for path in below.nodes if path.startswith(f"{VENV}/"))], below),
    }
    return tuple(
        recipe_key("wheels", wheels=mine, before=list(chain.from_iterable(hashes[:at])), **shared) for at, mine in enumerate(hashes)
    )


def open_groups(
    groups: Sequence[WheelGroup], paths: Mapping[str, Path], python: str, below: Tree
) -> tuple[tuple[InstalledWheel, ...], ...]:
    """Open the wheels (`paths`: where each lies, by sha256) and settle who writes what; contents are not read yet.

    By group and wheel, every path once. Raises `FileConflict`, or `Problems` for several, where wheels bring different files to
    one path or one brings what the virtual environment has; and as `open_wheel`.
    """
    claims = _Claims(below)
    settled = tuple(tuple(claims.settle(open_wheel(wheel, paths[wheel.sha256], python)) for wheel in group.wheels) for group in groups)
    claims.refuse_conflicts()
    return settled


class _Claims:
    """Which wheel writes which path, first come."""

    def __init__(self, below: Tree) -> None:
        self._below = below
        self._files: dict[str, tuple[str, str]] = {}
        self._folders: dict[str, str] = {}
        self._conflicts: dict[tuple[Wheel, str], list[str]] = {}

    def settle(self, installed: InstalledWheel) -> InstalledWheel:
        """The wheel, with the paths that an earlier one writes told apart."""
        name = installed.wheel.name
        mine: set[str] = set()
        for file in installed.files:
            path = file.entry.path
            holder = self._holder(file)
            if holder is not None:
                self._conflicts.setdefault((installed.wheel, holder), []).append(path)
            elif path not in self._files:
                mine.add(path)
                self._files[path] = (name, file.sha256)
        for above in {above for path in mine for above in ancestors(path)}:
            self._folders.setdefault(above, name)
        return replace(installed, elsewhere=frozenset(file.entry.path for file in installed.files) - mine)

    def _holder(self, file: InstalledFile) -> str | None:
        """Who has something else where the file is to go; None where the place is free, or has the very same file."""
        path = file.entry.path
        name, sha256 = self._files.get(path, ("", file.sha256))
        if sha256 != file.sha256:
            return name
        if path in self._folders:
            return self._folders[path]
        for above in ancestors(path):
            if above in self._files:
                return self._files[above][0]
        node = self._below.nodes.get(self._below.resolve(path))
        return "the virtual environment" if node is not None and node.sha256 != file.sha256 else None

    def refuse_conflicts(self) -> None:
        findings = []
        for (wheel, holder), paths in self._conflicts.items():
            more = f", and at {len(paths) - 1} more paths" if len(paths) > 1 else ""
            what = f"{wheel.name} {wheel.version} and {holder} bring different files to one path"
            why = f"both want /{min(paths)}{more}"
            findings.append(Finding(FileConflict.id, "error", what, wheel.file, why, _HINT))
        if len(findings) > 1:
            raise Problems(findings, Exit.NO_STACK)
        for only in findings:
            raise FileConflict(only.what, where=only.where, why=only.why, hint=only.hint)


def plan_wheels(installed: Sequence[InstalledWheel], bytecode: Mapping[str, Sequence[Entry]], below: Tree) -> Plan:
    """Decide one group's layer. `bytecode` holds each wheel's compiled modules, by the wheel's sha256."""
    entries: list[Entry] = []
    for wheel in installed:
        mine = {file.entry.path: file.entry for file in wheel.files if file.entry.path not in wheel.elsewhere}
        entries += mine.values()
        entries += [compiled for compiled in bytecode.get(wheel.wheel.sha256, ()) if source_of(compiled.path) in mine]
    return plan_layer(entries, below)


def source_of(compiled: str) -> str:
    """The module that a file in `__pycache__` was compiled from: `a/b.py` for `a/__pycache__/b.cpython-311.pyc` (PEP 3147)."""
    folder, _, name = compiled.rpartition("/")
    return f"{folder.removesuffix('__pycache__')}{name.rsplit('.', 2)[0]}.py"
