"""The Dockerfile's steps against the assembled layers: two ways to one file tree."""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

import installer
from python_base import STEPS, PythonBase, python_base  # noqa: F401

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from wheel_helpers import make_wheel

from envlock.layers.bytecode import compile_wheels, python_build
from envlock.layers.canonical import Plan, Tree
from envlock.layers.sandbox import put_files, stream_of
from envlock.layers.tree import Node
from envlock.layers.venv import plan_venv
from envlock.layers.wheels import WheelGroup, open_groups, plan_wheels
from envlock.lock import Wheel
from envlock.progress import Silent
from envlock.store import Store

FIRST = {
    "first/__init__.py": "x = {'a', 'b'}\n",
    "first/lib.so": b"\x7fELF" + bytes(70_000),
    "first/broken.py": "def (:\n",
    "shared/__init__.py": "",
    "first-1.data/scripts/first-run": "#!python\nimport first\n",
    "first-1.data/data/share/first/notes.txt": "n",
    "first-1.data/data/lib/python{}/site-packages/odd.py": "y = 1\n",
    "first-1.data/headers/first.h": "//",
    "first-1.data/platlib/first/plat.py": "z = 1\n",
}
SECOND = {"second/ünï.py": "def f(): return 'ü'\n", "shared/__init__.py": "", "shared/two.py": "two = 2\n"}


def wheels_of(folder: Path, python: str) -> list[Wheel]:
    modes = {"first/lib.so": 0o755, "first/__init__.py": 0o600}
    first = {path.format(python): text for path, text in FIRST.items()}
    return [
        make_wheel(folder, "first", first, purelib=False, modes=modes, entry_points="[console_scripts]\nfirst = first:main\n"),
        make_wheel(folder, "second", SECOND, modes={"shared/__init__.py": 0o755}),
    ]


def assembled(base: PythonBase, folder: Path, wheels: list[Wheel]) -> dict[str, Node]:
    def over(tree: Tree, plan: Plan) -> Tree:
        raw = io.BytesIO()
        plan.write(raw, "layer")
        return tree.with_tar(io.BytesIO(raw.getvalue()), "layer")

    with base.sandbox() as container:
        merged = over(base.tree, plan_venv(container, base.python, STEPS, base.tree))
    groups = open_groups([WheelGroup((wheel,)) for wheel in wheels], {w.sha256: folder / w.file for w in wheels}, base.python, merged)
    build = python_build(base.tree, base.python)
    store = Store(folder / "store")
    bytecode = compile_wheels([w for group in groups for w in group], base.python, build, STEPS, store, base.sandbox, Silent())
    below = merged
    for group in groups:
        merged = over(merged, plan_wheels(group, bytecode, below))
    return {path: node for path, node in merged.nodes.items() if path.startswith("opt/venv")}


def built(base: PythonBase, folder: Path, wheels: list[Wheel]) -> dict[str, Node]:
    context = {f"context/steps/{name}": content for name, content in STEPS.items()}
    context |= {f"context/wheels/{wheel.file}": (folder / wheel.file).read_bytes() for wheel in wheels}
    context |= {f"context/lists/{wheel.name}.txt": f"{wheel.sha256}  wheels/{wheel.file}\n".encode() for wheel in wheels}
    context |= {f"context/{path}": content for path, content in installer_library().items()}
    with base.sandbox() as container:
        put_files(container, context)
        commands = [["venv.sh", base.python], *(["wheels.sh", base.python, f"lists/{wheel.name}.txt"] for wheel in wheels)]
        for step, *arguments in commands:
            ended = container.exec(["sh", f"/context/steps/{step}", *arguments])
            assert ended.status == 0, ended.output.decode()
        nodes = Tree().with_tar(stream_of(container.get("/opt/venv")), "built").nodes
    return {f"opt/{path}": node for path, node in nodes.items()}


def installer_library() -> dict[str, bytes]:
    """This host's `installer`, as a wheel that can be imported from."""
    root = Path(installer.__file__).parent
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for path in sorted(root.rglob("*.py")):
            archive.write(path, f"installer/{path.relative_to(root)}")
    return {f"installer/installer-{installer.__version__}-py3-none-any.whl": raw.getvalue()}


def identity(node: Node) -> tuple[object, ...]:
    return node.kind, oct(node.mode), node.uid, node.gid, node.target, node.sha256


def test_both_routes_give_the_same_files(tmp_path, base: PythonBase) -> None:
    wheels = wheels_of(tmp_path, base.python)
    ours, theirs = assembled(base, tmp_path, wheels), built(base, tmp_path, wheels)
    assert sorted(ours) == sorted(theirs)
    assert {path: identity(node) for path, node in ours.items()} == {path: identity(node) for path, node in theirs.items()}
    site = f"opt/venv/lib/python{base.python}/site-packages"
    assert f"{site}/__pycache__/odd.cpython-{base.python.replace('.', '')}.pyc" in ours
    assert ours[f"{site}/shared/__init__.py"].mode == 0o644


def test_the_steps_refuse_other_bytes_at_one_path(tmp_path, base: PythonBase) -> None:
    wheels = [make_wheel(tmp_path, name, {"same.py": name}) for name in ("one", "two")]
    context = {f"context/steps/{name}": content for name, content in STEPS.items()} | {
        f"context/{path}": content for path, content in installer_library().items()
    }
    context |= {f"context/wheels/{wheel.file}": (tmp_path / wheel.file).read_bytes() for wheel in wheels}
    context["context/lists/all.txt"] = "".join(f"{wheel.sha256}  wheels/{wheel.file}\n" for wheel in wheels).encode()
    context["context/lists/forged.txt"] = f"{'0' * 64}  wheels/{wheels[0].file}\n".encode()
    with base.sandbox() as container:
        put_files(container, context)
        assert container.exec(["sh", "/context/steps/venv.sh", base.python]).status == 0
        for listed, message in (("forged", b"is not the file that the list names"), ("all", b"would be written twice")):
            ended = container.exec(["sh", "/context/steps/wheels.sh", base.python, f"lists/{listed}.txt"])
            assert ended.status != 0
            assert message in ended.output
