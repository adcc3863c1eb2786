"""Whose a differing file is: read from what dpkg and wheels recorded in the tree itself."""

from __future__ import annotations

from io import BytesIO

import pytest
from stand_in_engine import sample_lock

from envlock.layers.apt import holds as apt_holds
from envlock.layers.entry import Entry
from envlock.layers.tree import Tree
from envlock.lock import Apt, Deb, Wheel
from envlock.owners import Package, layer_of, noting, owner_of, owners

SITE = "opt/venv/lib/python3.11/site-packages"
FILES = {
    "usr/bin/ls": b"ls",
    "usr/share/x": b"x",
    "var/lib/dpkg/status": b"Package: coreutils\nVersion: 9.1-1\nDescription: tools\n more: of them\n\nPackage: libx\nVersion: 2\n",
    "var/lib/dpkg/info/coreutils.list": b"/.\n/bin\n/bin/ls\n",
    "var/lib/dpkg/info/libx:amd64.list": b"/usr/share/x\n/usr/share/gone\n",
    f"{SITE}/tiny/a.py": b"a",
    f"{SITE}/tiny/__pycache__/a.cpython-311.pyc": b"compiled",
    f"{SITE}/tiny-1.0.dist-info/RECORD": b'tiny/a.py,sha256=x,1\n"../../../bin/tiny, tool",,\n',
    "opt/venv/bin/tiny, tool": b"tool",
}


def read() -> tuple[Tree, dict[str, Package]]:
    lists: dict[str, bytes] = {}
    entries = [Entry("bin", "symlink", target="usr/bin")]
    entries += [Entry(path, "file", size=len(content), open=lambda content=content: BytesIO(content)) for path, content in FILES.items()]
    tree = Tree().with_entries(noting(entries, lists), "test")
    return tree, owners(lists, tree)


def test_what_lists_packages_is_read_and_the_tree_is_as_without():
    tree, _ = read()
    assert {path for path, node in tree.nodes.items() if node.kind == "file"} == set(FILES)
    assert all(node.sha256 for node in tree.nodes.values() if node.kind == "file")


@pytest.mark.parametrize(
    ("path", "package"),
    [
        ("usr/bin/ls", "coreutils 9.1-1"),
        ("usr/share/x", "libx 2"),
        (f"{SITE}/tiny/a.py", "tiny 1.0"),
        (f"{SITE}/tiny/__pycache__/a.cpython-311.pyc", "tiny 1.0"),
        (f"{SITE}/tiny/__pycache__", "tiny 1.0"),
        ("opt/venv/bin/tiny, tool", "tiny 1.0"),
        ("var/lib/dpkg/status", ""),
        ("usr/share/gone", ""),
    ],
)
def test_a_file_belongs_to_the_package_that_lists_it(path: str, package: str):
    assert str(owner_of(path, read()[1]) or "") == package


def deb(name: str) -> Deb:
    return Deb(name=name, version="1", architecture="amd64", archive="debian", path=f"pool/{name}.deb", sha256="b" * 64, size=1)


HEAVY = Wheel(name="big-one", version="2", file="big.whl", sha256="a" * 64, size=30_000_000, index="default")
LOCK = sample_lock(wheels=(HEAVY,), apt=Apt(asked=("git",), date=0, debs=(deb("git"),)))


@pytest.mark.parametrize(
    ("path", "package", "layer"),
    [
        ("opt/envlock/lock.json", None, "self-test, start-up hook, lock"),
        (f"{SITE}/envlock.pth", None, "self-test, start-up hook, lock"),
        (f"{SITE}/big_one/x.so", Package("wheel", "Big_One", "2"), "big-one 2"),
        ("opt/venv/pyvenv.cfg", None, "virtual environment"),
        ("usr/bin/git", Package("deb", "git", "1"), apt_holds(LOCK.apt)),
        ("usr/bin/ls", Package("deb", "coreutils", "9.1-1"), "Debian bookworm, 0 packages"),
        ("var/lib/dpkg/status", None, ""),
    ],
)
def test_a_file_lies_in_a_layer(path: str, package: Package | None, layer: str):
    assert layer_of(path, package, LOCK) == layer


def test_without_packages_on_top_all_the_rest_is_the_bases():
    assert layer_of("etc/x", None, sample_lock()) == "Debian bookworm, 0 packages"
