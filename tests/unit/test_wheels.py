"""Wheels in, layers out: which share one, in what order, who writes a file that several bring."""

from __future__ import annotations

import io

import pytest
from layer_helpers import file, members, tree
from wheel_helpers import make_wheel

from envlock.errors import FileConflict, Problems
from envlock.layers.canonical import ASSEMBLED, Entry
from envlock.layers.tree import Tree
from envlock.layers.wheels import WheelGroup, open_groups, plan_wheels, source_of, wheel_groups, wheel_recipes
from envlock.lock import Wheel

SITE = "opt/venv/lib/python3.11/site-packages"
MB = 1_000_000


def wheel(name: str, megabytes: float, sha256: str = "0" * 64) -> Wheel:
    return Wheel(name=name, version="1", file=f"{name}-1-py3-none-any.whl", sha256=sha256, size=int(megabytes * MB), index="default")


def names(groups: tuple[WheelGroup, ...]) -> list[list[str]]:
    return [[w.name for w in group.wheels] for group in groups]


def layers(folder, *groups: tuple[Wheel, ...], below: Tree | None = None, bytecode=None) -> list[bytes]:
    paths = {w.sha256: folder / w.file for group in groups for w in group}
    opened = open_groups([WheelGroup(group) for group in groups], paths, "3.11", below or Tree())
    written = []
    for group in opened:
        target = io.BytesIO()
        plan_wheels(group, bytecode or {}, below or Tree()).write(target, "test")
        written.append(target.getvalue())
    return written


def test_heavy_wheels_are_layers_of_their_own_and_the_stack_comes_first():
    wheels = [wheel("zlib-ng", 1), wheel("torch", 900), wheel("scipy", 35), wheel("triton", 200), wheel("nvidia-nvtx", 0.1)]
    wheels += [wheel("nvidia-cudnn-cu12", 660), wheel("nvidia-cublas-cu12", 360), wheel("numpy", 4.9), wheel("exact", 5)]
    groups = wheel_groups(wheels)
    assert names(groups) == [
        ["nvidia-cublas-cu12"],
        ["nvidia-cudnn-cu12"],
        ["triton"],
        ["torch"],
        ["exact"],
        ["scipy"],
        ["nvidia-nvtx", "numpy", "zlib-ng"],
    ]
    assert wheel_groups(reversed(wheels)) == groups
    assert (groups[3].holds, groups[-1].holds) == ("torch 1", "3 smaller wheels")


def test_there_are_never_more_layers_than_allowed():
    groups = wheel_groups([wheel(f"w{n:03}", 30 + n) for n in range(150)], most=100)
    assert len(groups) == 100
    assert [len(group.wheels) for group in groups] == [1] * 99 + [51]
    assert "w000" in [w.name for w in groups[-1].wheels]
    assert names(wheel_groups([wheel("a", 1)])) == [["a"]]
    assert wheel_groups([]) == ()


def test_a_layer_holds_what_its_wheels_install_at_one_date(tmp_path):
    (raw,) = layers(tmp_path, (make_wheel(tmp_path, "one", {"one.py": "1"}, entry_points="[console_scripts]\none = one:main\n"),))
    found = members(raw)
    assert f"{SITE}/one.py" in found
    assert found["opt/venv/bin/one"].mode == 0o755
    assert {m.mtime for m in found.values()} == {ASSEMBLED}
    assert {(m.uid, m.gid, m.uname) for m in found.values()} == {(0, 0, "")}


def test_an_equal_file_is_written_by_the_first_wheel(tmp_path):
    shared = {"nvidia/__init__.py": "", "nvidia/x/__init__.py": ""}
    one = make_wheel(tmp_path, "one", {**shared, "nvidia/x/one.py": "1"})
    two = make_wheel(tmp_path, "two", {**shared, "nvidia/x/two.py": "2"})
    bytecode = {w.sha256: [file(f"{SITE}/nvidia/__pycache__/__init__.cpython-311.pyc", b"code")] for w in (one, two)}
    first, second = (members(raw) for raw in layers(tmp_path, (one,), (two,), bytecode=bytecode))
    assert f"{SITE}/nvidia/__init__.py" in first
    assert f"{SITE}/nvidia/__pycache__/__init__.cpython-311.pyc" in first
    assert f"{SITE}/nvidia/__init__.py" not in second
    assert f"{SITE}/nvidia/__pycache__/__init__.cpython-311.pyc" not in second
    assert f"{SITE}/nvidia/x/two.py" in second


def test_different_files_at_one_path_name_both_wheels(tmp_path):
    one = make_wheel(tmp_path, "one", {"pkg/a.py": "1", "pkg/b.py": "1"})
    two = make_wheel(tmp_path, "two", {"pkg/a.py": "2", "pkg/b.py": "2", "other.py": ""})
    with pytest.raises(FileConflict) as refused:
        layers(tmp_path, (one, two))
    assert refused.value.what == "two 1 and one bring different files to one path"
    assert refused.value.why == f"both want /{SITE}/pkg/a.py, and at 1 more paths"


def test_all_conflicts_come_at_once(tmp_path):
    wheels = [make_wheel(tmp_path, name, {"pkg.py": name}) for name in ("one", "two", "three")]
    with pytest.raises(Problems) as refused:
        layers(tmp_path, tuple(wheels))
    assert [f.id for f in refused.value.findings] == ["file-conflict"] * 2


@pytest.mark.parametrize(("first", "second"), [("pkg", "pkg/a.py"), ("pkg/a.py", "pkg")])
def test_a_file_cannot_be_a_folder_of_another_wheel(tmp_path, first, second):
    wheels = (make_wheel(tmp_path, "one", {first: "1"}), make_wheel(tmp_path, "two", {second: "2"}))
    with pytest.raises(FileConflict):
        layers(tmp_path, wheels)


def test_a_wheel_cannot_replace_the_interpreter(tmp_path):
    evil = make_wheel(tmp_path, "evil", {"evil-1.data/scripts/python": "#!/bin/sh\n"})
    below = tree(Entry("opt/venv/bin/python", "symlink", target="/usr/bin/python3.11"), file("usr/bin/python3.11", b"ELF"))
    with pytest.raises(FileConflict) as refused:
        layers(tmp_path, (evil,), below=below)
    assert "the virtual environment" in refused.value.what


def test_a_recipe_changes_with_all_that_goes_in_and_with_nothing_else():
    groups = [WheelGroup((wheel("torch", 900, "a" * 64),)), WheelGroup((wheel("numpy", 19, "b" * 64),))]
    below = tree(file("opt/venv/bin/activate"), file("usr/bin/env"))
    first, second = wheel_recipes(groups, "3.11", "compiler", below)
    assert (first, second) == wheel_recipes(groups, "3.11", "compiler", tree(file("opt/venv/bin/activate"), file("usr/bin/other")))
    assert first not in wheel_recipes(groups, "3.12", "compiler", below)
    assert first not in wheel_recipes(groups, "3.11", "another", below)
    assert first not in wheel_recipes(groups, "3.11", "compiler", tree(file("opt/venv/bin/activate", mode=0o600)))
    more = [groups[0], WheelGroup((wheel("numpy", 19, "b" * 64), wheel("small", 1, "c" * 64)))]
    assert wheel_recipes(more, "3.11", "compiler", below)[0] == first
    assert wheel_recipes(more, "3.11", "compiler", below)[1] != second
    other = [WheelGroup((wheel("torch", 900, "d" * 64),)), groups[1]]
    assert second not in wheel_recipes(other, "3.11", "compiler", below)


def test_bytecode_knows_its_source():
    assert source_of("a/__pycache__/b.cpython-311.pyc") == "a/b.py"
    assert source_of("a/__pycache__/b.c.cpython-311.pyc") == "a/b.c.py"
