"""Whose a file of an image is: the package that lists it, and the layer that holds it. Packages' lists are read out of the tree itself."""

from __future__ import annotations

import csv
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from typing import Literal

from packaging.utils import canonicalize_name

from envlock.errors import BuildFailed
from envlock.layers.apt import holds as apt_holds
from envlock.layers.entry import Entry
from envlock.layers.tree import Tree
from envlock.layers.venv import HOLDS as VENV_HOLDS
from envlock.layers.wheelfile import VENV
from envlock.layers.wheels import source_of, wheel_groups
from envlock.lock import DebianBase, Lock

RECORD = re.compile(r"(?P<site>.*/)?(?P<name>[^/-]+)-(?P<version>[^/]+)\.dist-info/RECORD")
"""What a wheel installed (PyPA, "Recording installed projects")."""
LIST = re.compile(r"var/lib/dpkg/info/(?P<name>[^/:]+)(:[^/]+)?\.list")
"""What a Debian package installed (dpkg-query(1))."""
STATUS = "var/lib/dpkg/status"
OWN = ("opt/envlock", "envlock.pth")
OWN_HOLDS = "self-test, start-up hook, lock"


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package, by its name as it was installed."""

    kind: Literal["wheel", "deb"]
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}".strip()


def is_list(path: str) -> bool:
    """Whether a file of the tree says what a package installed."""
    return path == STATUS or LIST.fullmatch(path) is not None or RECORD.fullmatch(path) is not None


def noting(entries: Iterable[Entry], lists: dict[str, bytes]) -> Iterator[Entry]:
    """The same entries; the content of those that list a package's files is kept in `lists`."""
    for entry in entries:
        if entry.kind == "file" and entry.open is not None and is_list(entry.path):
            with entry.open() as stream:
                lists[entry.path] = stream.read()
            yield replace(entry, open=partial(BytesIO, lists[entry.path]))
        else:
            yield entry


def owners(lists: Mapping[str, bytes], tree: Tree) -> dict[str, Package]:
    """The package of each path that one lists; what two list goes to the first by name."""
    versions = _versions(lists.get(STATUS, b"").decode("utf-8", "replace"))
    found: dict[str, Package] = {}
    folders: dict[str, str] = {}
    for path, raw in sorted(lists.items()):
        text = raw.decode("utf-8", "surrogateescape")
        if match := LIST.fullmatch(path):
            package = Package("deb", match["name"], versions.get(match["name"], ""))
            names: Iterable[str] = (line.lstrip("/") for line in text.splitlines())
        elif match := RECORD.fullmatch(path):
            package = Package("wheel", match["name"], match["version"])
            site = match["site"] or ""
            names = (posixpath.normpath(posixpath.join(site, row[0])) for row in csv.reader(text.splitlines()) if row)
        else:
            continue
        for name in names:
            real = _real(name, tree, folders)
            node = tree.nodes.get(real)
            if node is not None and node.kind != "directory":
                found.setdefault(real, package)
    return found


def _real(path: str, tree: Tree, known: dict[str, str]) -> str:
    """The path with the links among its folders followed: Debian's packages list /bin/ls, which lies in usr/bin."""
    folder, slash, name = path.rpartition("/")
    if folder not in known:
        known[folder] = folder
        with suppress(BuildFailed):
            known[folder] = tree.resolve(folder)
    return f"{known[folder]}{slash}{name}"


def _versions(status: str) -> dict[str, str]:
    found = {}
    for paragraph in status.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and not line.startswith(" "))
        if "Package" in fields:
            found[fields["Package"]] = fields.get("Version", "")
    return found


def owner_of(path: str, known: Mapping[str, Package]) -> Package | None:
    """The package of a path; bytecode is its module's, and a folder of bytecode that of the modules beside it."""
    if path.endswith("/__pycache__"):
        beside = path.removesuffix("__pycache__")
        return next((package for name, package in known.items() if name.startswith(beside)), None)
    return known.get(path) or (known.get(source_of(path)) if "/__pycache__/" in path else None)


def layer_of(path: str, package: Package | None, lock: Lock) -> str:
    """The layer of the lock's image that holds a path, in the words that the build uses; empty where that is not known."""
    if (
        path.startswith(f"{OWN[0]}/")
        or path == OWN[0]
        or path.endswith(f"/{OWN[1]}")
        or any(file.to.lstrip("/") == path for file in lock.files)
    ):
        return OWN_HOLDS
    if package is not None and package.kind == "wheel":
        name = canonicalize_name(package.name)
        return next((group.holds for group in wheel_groups(lock.wheels) if any(wheel.name == name for wheel in group.wheels)), "")
    if path == VENV or path.startswith(f"{VENV}/"):
        return VENV_HOLDS
    if lock.apt is not None and (package is None or any(deb.name == package.name for deb in lock.apt.debs)):
        return "" if package is None else apt_holds(lock.apt)
    base = lock.base
    return f"Debian {base.suite}, {len(base.debs)} packages" if isinstance(base, DebianBase) else base.reference
