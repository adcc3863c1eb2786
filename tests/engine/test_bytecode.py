"""Bytecode: the same from run to run, for every seed, order and number of workers; and it is used."""

from __future__ import annotations

import hashlib
import json
import marshal
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from python_base import STEPS, PythonBase, python_base  # noqa: F401

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from wheel_helpers import make_wheel

from envlock.errors import BuildFailed
from envlock.layers.bytecode import Bytecode, compile_wheels, compiler, python_build
from envlock.layers.sandbox import put_files, stream_of
from envlock.layers.tarfiles import read_tar
from envlock.layers.wheelfile import InstalledWheel, open_wheel
from envlock.progress import Silent
from envlock.store import Store

SETTLED = b"    settled = share_sets(code, {})\n"
"""The line of the program at which a module is compiled and not yet written."""

# Modules whose bytecode would differ if the seed, the order or shared objects mattered.
TRICKY = {
    "one/__init__.py": "NAMES = frozenset({'a', 'b', 'c', 'd', 'e'})\ndef f(x):\n    return x in {'alpha', 'beta', 'gamma', 'delta'}\n",
    "one/shared.py": "A = (1, 2.5, 'x', b'y')\nB = (1, 2.5, 'x', b'y')\nclass C:\n    a: int = 10**6\n    b: 'C' = None\n",
    "one/same_names.py": "def alpha(beta, gamma='alpha'):\n    delta = lambda alpha: (alpha, beta, 'delta', 1000001)\n    return delta\n",
    "one/late.py": "import os\nX = 1000001\nY = {'k': 1000001, 'l': 1e100}\n",
    "one/broken.py": "def (:\n",
    "one/latin.py": b"x = 'caf\xe9'\n",
    "one/null.py": b"x = 1\0\n",
    "one/data.txt": "no module",
    "one-1.data/scripts/tool.py": "#!python\n",
}


@contextmanager
def no_sandbox():
    raise AssertionError("nothing needs to be compiled")
    yield


def opened(folder: Path, base: PythonBase, name: str = "one", files=TRICKY) -> InstalledWheel:
    wheel = make_wheel(folder, name, {path.replace("one", name): text for path, text in files.items()})
    return open_wheel(wheel, folder / wheel.file, base.python)


def compiled(base: PythonBase, store: Store, *wheels: InstalledWheel) -> Bytecode:
    return compile_wheels(wheels, base.python, python_build(base.tree, base.python), STEPS, store, base.sandbox, Silent())


def contents(bytecode: Bytecode) -> dict[str, bytes]:
    return {entry.path: entry.open().read() for entries in bytecode.values() for entry in entries}


def test_modules_are_compiled_to_their_place_with_unchecked_hashes(tmp_path, base: PythonBase) -> None:
    bytecode = compiled(base, Store(tmp_path / "store"), opened(tmp_path, base))
    tag = f"cpython-{base.python.replace('.', '')}.pyc"
    folder = f"opt/venv/lib/python{base.python}/site-packages/one/__pycache__"
    found = contents(bytecode)
    assert sorted(found) == [f"{folder}/{name}.{tag}" for name in ("__init__", "late", "same_names", "shared")]
    assert {entry.mode for entries in bytecode.values() for entry in entries} == {0o644}
    assert {raw[4:8] for raw in found.values()} == {b"\1\0\0\0"}  # PEP 552: hash-based, not checked
    if sys.version_info[:2] == tuple(map(int, base.python.split("."))):
        code = marshal.loads(found[f"{folder}/late.{tag}"][16:])
        assert code.co_filename == f"/opt/venv/lib/python{base.python}/site-packages/one/late.py"


def test_bytes_do_not_depend_on_the_run_or_on_the_company(tmp_path, base: PythonBase) -> None:
    one, two, three = (opened(tmp_path, base, name) for name in ("one", "two", "three"))
    alone = contents(compiled(base, Store(tmp_path / "a"), one))
    together = contents(compiled(base, Store(tmp_path / "b"), three, two, one))
    assert alone.items() <= together.items()


def test_bytes_do_not_depend_on_seed_order_or_workers(tmp_path, base: PythonBase) -> None:
    modules = {f"envlock-sources/m/{path}": text.encode() for path, text in TRICKY.items() if isinstance(text, str)}
    modules |= {f"envlock-sources/m/lib/{path}": (Path("/usr/lib") / f"python{base.python}" / path).read_bytes() for path in STDLIB}
    paths = [path.removeprefix("envlock-sources/m/") for path in modules if path.endswith(".py")]
    found = set()
    for seed, order, cores in (("0", paths, 1), ("1", paths[::-1], 2), ("random", sorted(paths, key=hash), 3)):
        program = STEPS["compile_modules.py"].replace(b"os.cpu_count()", str(cores).encode())
        if seed == "random":  # as if the program had loaded the same modules before, and held their strings
            program = program.replace(SETTLED, b"    KEPT.append(code)\n" + SETTLED)
            program = b"import argparse, typing\nKEPT = []\n" + program
        jobs = json.dumps([["/envlock-sources/m", "/compiled", path] for path in order]).encode()
        with base.sandbox() as container:
            put_files(container, {**modules, "steps/jobs.json": jobs, "steps/compile_modules.py": program})
            seeded = ["env", "-i", f"PYTHONHASHSEED={seed}", f"/usr/bin/python{base.python}", "-s", "-S", "-B", "-W", "ignore"]
            ended = container.exec([*seeded, "/steps/compile_modules.py", "/steps/jobs.json"])
            assert ended.status == 0, ended.output
            tree = {e.path: e.open().read() for e in read_tar(stream_of(container.get("/compiled")), "x") if e.kind == "file"}
        assert len(tree) > len(STDLIB)
        found.add(hashlib.sha256(repr(sorted(tree.items())).encode()).hexdigest())
    assert len(found) == 1


STDLIB = ("typing.py", "argparse.py", "ast.py", "enum.py", "dataclasses.py", "inspect.py", "tarfile.py", "_pydecimal.py")


def test_what_was_compiled_once_is_not_compiled_again(tmp_path, base: PythonBase) -> None:
    store, wheel = Store(tmp_path / "store"), opened(tmp_path, base)
    once = contents(compiled(base, store, wheel))
    build = python_build(base.tree, base.python)
    assert contents(compile_wheels([wheel], base.python, build, STEPS, store, no_sandbox, Silent())) == once
    with pytest.raises(AssertionError, match="nothing needs"):
        compile_wheels([wheel], base.python, "another build", STEPS, store, no_sandbox, Silent())
    changed = {**STEPS, "compile_modules.py": b"# another program\n"}
    with pytest.raises(AssertionError, match="nothing needs"):
        compile_wheels([wheel], base.python, build, changed, store, no_sandbox, Silent())


def test_a_wheel_without_modules_needs_no_container(tmp_path, base: PythonBase) -> None:
    wheel = opened(tmp_path, base, "data", {"one/data.bin": b"1"})
    assert compile_wheels([wheel], base.python, "build", STEPS, Store(tmp_path / "store"), no_sandbox, Silent()) == {}


def test_a_worker_that_dies_is_told(tmp_path, base: PythonBase) -> None:
    wheel = opened(tmp_path, base)
    steps = {**STEPS, "compile_modules.py": STEPS["compile_modules.py"].replace(SETTLED, b"    os.abort()\n", 1)}
    assert steps != STEPS
    with pytest.raises(BuildFailed) as refused:
        compile_wheels([wheel], base.python, "b", steps, Store(tmp_path / "store"), base.sandbox, Silent())
    assert "a worker ended with wait status" in refused.value.why


def test_the_build_of_python_is_told_by_its_bytes(base: PythonBase) -> None:
    build = python_build(base.tree, base.python)
    assert build == python_build(base.tree, base.python)
    with pytest.raises(BuildFailed, match=r"no Python 3\.1$"):
        python_build(base.tree, "3.1")


def test_a_recipe_can_tell_what_compiled(base: PythonBase) -> None:
    build = python_build(base.tree, base.python)
    assert compiler(build, STEPS) == compiler(build, {**STEPS, "venv.sh": b"another"})
    assert compiler(build, STEPS) != compiler("another", STEPS)
    assert compiler(build, STEPS) != compiler(build, {**STEPS, "compile_modules.py": b"another"})
