"""Apt layer: locked Debian packages installed by the base's own apt in a container without network, as one canonical layer.

The layer is the difference of two file trees by the layer rules, never the engine's own layer: that one holds copied-up files,
mount stubs and whiteouts that depend on its storage driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path, PurePosixPath
from tempfile import TemporaryFile
from typing import BinaryIO, Protocol, cast

from envlock.errors import Exit, Finding, Problems
from envlock.layers import Layer
from envlock.layers.canonical import Entry, Tree, difference, plan_layer, write_layer
from envlock.layers.entry import ancestors
from envlock.layers.recipes import recipe_key
from envlock.layers.sandbox import Sandbox, pieces_of, run_step, stream_of
from envlock.lock import Apt
from envlock.store import Store


class Box(Sandbox, Protocol):
    """A container whose file tree can be had as a whole."""

    def export(self) -> Iterator[bytes]:
        """The file tree as one tar, in pieces."""


OpenBox = Callable[[], AbstractContextManager[Box]]

_WORK = "envlock-work"
_STEPS = ("apt.sh", "clean_up.sh")


def holds(apt: Apt) -> str:
    """What the layer holds, in a few words."""
    return f"apt: {', '.join(apt.asked)}, {len(apt.debs)} packages"


def apt_recipe(apt: Apt, steps: Mapping[str, bytes], below: str) -> str:
    """The recipe key of the layer over the base whose layers `below` names (a digest over their diffIDs)."""
    debs = sorted(deb.sha256 for deb in apt.debs)
    return recipe_key("apt", debs=debs, date=apt.date, steps=[steps[name].decode() for name in _STEPS], below=below)


def install_apt(apt: Apt, steps: Mapping[str, bytes], open_sandbox: OpenBox, below: Tree, store: Store, target: BinaryIO) -> Layer:
    """Install the packages, which are in the store, in a container of the base, and write the layer over `below` to `target`.

    `steps` are the bundle's programs, by name. Raises `BuildFailed` with the end of what apt printed.
    """
    with store.scratch() as folder, open_sandbox() as sandbox, (folder / "content").open("w+b") as content:
        entries = _installed(apt, steps, sandbox, below, store, content)
        return plan_layer(entries, below).write(target, holds(apt))


def require_repeatable(apt: Apt, steps: Mapping[str, bytes], open_sandbox: OpenBox, below: Tree, store: Store) -> None:
    """Install the packages twice, and raise `Problems` (exit 3) naming each file that differs and the package that it is of.

    A package's script may write a time or randomness; such a layer could never be rebuilt.
    """
    found: list[Tree] = []
    for _ in range(2):
        with store.scratch() as folder, open_sandbox() as sandbox, (folder / "content").open("w+b") as content:
            entries = _installed(apt, steps, sandbox, below, store, content)
            tree = below.with_entries(plan_layer(entries, below).entries, holds(apt))
            owners = _owners(sandbox, [path for path in tree.nodes if found and tree.nodes[path] != found[0].nodes.get(path)])
        found.append(tree)
    first, second = found
    paths = sorted(path for path in first.nodes.keys() | second.nodes.keys() if first.nodes.get(path) != second.nodes.get(path))
    if paths:
        why = "a script of the package writes the time or something random into it"
        hint = "leave the package out, or report the path as one that envlock should take out"
        findings = [
            Finding("apt-varies", "error", f"/{path} differs from run to run", owners.get(path, "apt"), why, hint) for path in paths
        ]
        raise Problems(findings, Exit.NO_STACK)


def _installed(apt: Apt, steps: Mapping[str, bytes], sandbox: Box, below: Tree, store: Store, content: BinaryIO) -> tuple[Entry, ...]:
    """What the installation changed in the container; the files' bytes go to `content`."""
    _hand_over({f"debs/{PurePosixPath(deb.path).name}": store.path(deb.sha256) for deb in apt.debs}, steps, sandbox)
    hint = "lock the spec again; a package that cannot be installed without network or services must be left out"
    run_step(sandbox, ["sh", f"/{_WORK}/steps/apt.sh", str(apt.date)], "installing the Debian packages", hint)
    run_step(sandbox, ["rm", "-rf", f"/{_WORK}"], "cleaning up after the installation", hint)
    changed = difference(below, lambda: stream_of(sandbox.export()), content, apt.date, "the container's files")
    return tuple(_dated(entry, apt.date, below) for entry in changed)


def _dated(entry: Entry, date: int, below: Tree) -> Entry:
    """Folders that are new have the layer's date: which package made one first is chance."""
    node = below.nodes.get(entry.path)
    new = entry.kind == "directory" and (node is None or node.kind != "directory")
    return replace(entry, mtime=date) if new else entry


def _hand_over(debs: Mapping[str, Path], steps: Mapping[str, bytes], sandbox: Sandbox) -> None:
    """Put the packages and programs into the container, laid out as in a rendered Dockerfile's context."""
    files = [Entry(f"{_WORK}/{name}", "file", size=path.stat().st_size, open=partial(_open, path)) for name, path in debs.items()]
    programs = [Entry(f"{_WORK}/steps/{name}", "file", size=len(steps[name]), open=partial(BytesIO, steps[name])) for name in _STEPS]
    with TemporaryFile() as tar:
        write_layer([*files, *programs], cast(BinaryIO, tar), "")
        tar.seek(0)
        sandbox.put("/", pieces_of(cast(BinaryIO, tar)))


def _open(path: Path) -> BinaryIO:
    return path.open("rb")


def _owners(sandbox: Sandbox, paths: Sequence[str]) -> dict[str, str]:
    """The package of each path, or of the nearest folder above that one package alone has."""
    return dict(_owner(sandbox, path) for path in paths)


def _owner(sandbox: Sandbox, path: str) -> tuple[str, str]:
    for part in _upwards(path):
        ended = sandbox.exec(["dpkg-query", "--search", f"/{part}"])
        owner = ended.output.decode("utf-8", "replace").partition(": ")[0]
        if ended.status == 0 and "," not in owner:
            return path, owner
    return path, "apt"


def _upwards(path: str) -> Iterator[str]:
    yield path
    yield from ancestors(path)
