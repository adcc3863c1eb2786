"""The program that compiles bytecode in the image: the same bytes whatever else is compiled, in whatever order, by how many."""

from __future__ import annotations

import json
import marshal
import random
import subprocess
import sys
import sysconfig
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "templates" / "image" / "steps" / "compile_modules.py"
LIBRARY = Path(sysconfig.get_path("stdlib"))


def compiled(modules: list[str], folder: Path) -> dict[str, bytes]:
    jobs = folder.with_suffix(".json")
    jobs.write_text(json.dumps([[str(LIBRARY.parent), str(folder), f"{LIBRARY.name}/{module}"] for module in modules]))
    subprocess.run([sys.executable, "-S", "-B", "-W", "ignore", str(PROGRAM), str(jobs)], check=True, env={"PYTHONHASHSEED": "0"})
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.pyc")}


def test_bytes_do_not_depend_on_what_was_compiled_before(tmp_path: Path) -> None:
    modules = [str(path.relative_to(LIBRARY)) for name in ("email", "asyncio", "json", "http") for path in (LIBRARY / name).glob("*.py")]
    modules += ["argparse.py", "typing.py", "tarfile.py", "inspect.py", "pydoc.py", "doctest.py"]
    one = compiled(sorted(modules), tmp_path / "one")
    other = compiled(random.Random(1).sample(modules, len(modules)), tmp_path / "other")
    alone = {name: content for module in modules[:6] for name, content in compiled([module], tmp_path / f"alone-{module[6:]}").items()}
    assert len(one) == len(modules)
    assert one == other
    assert alone == {name: one[name] for name in alone}


def test_bytes_do_not_depend_on_names_that_live_in_the_process(tmp_path: Path) -> None:
    """Sets of constants are shared between functions or not, by which strings are interned when the module is compiled."""
    (tmp_path / "s" / "p").mkdir(parents=True)
    text = (
        "def f(x):\n    return x == 'uniform' or x in {'uniform', 'distance'} or x in {1, 2.5}\n"
        "def g(x):\n    return x in {'uniform', 'distance'} or x in {True, 2.5}\n"
    )
    (tmp_path / "s" / "p" / "m.py").write_text(text)
    made = []
    for number, parts in enumerate(([], ["uni|form", "dist|ance"])):
        program = f"""
import sys
held = [sys.intern("".join(parts.split("|"))) for parts in {parts!r}]
sys.path.insert(0, {str(PROGRAM.parent)!r})
from compile_modules import compile_modules
compile_modules([[{str(tmp_path / "s")!r}, {str(tmp_path / str(number))!r}, "p/m.py"]])
"""
        subprocess.run([sys.executable, "-B", "-c", program], check=True, env={"PYTHONHASHSEED": "0"})
        made.append((tmp_path / str(number) / "p" / "__pycache__" / f"m.{sys.implementation.cache_tag}.pyc").read_bytes())
    assert made[0] == made[1]
    space: dict[str, object] = {}
    exec(marshal.loads(made[0][16:]), space)
    assert [space[name](value) for name in "fg" for value in ("distance", 1, 3)] == [True, True, False] * 2  # type: ignore[operator]


def test_what_does_not_compile_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "s" / "p").mkdir(parents=True)
    (tmp_path / "s" / "p" / "bad.py").write_text("def f(:\n")
    (tmp_path / "s" / "p" / "good.py").write_text("x = 1\n")
    jobs = tmp_path / "jobs.json"
    jobs.write_text(json.dumps([[str(tmp_path / "s"), str(tmp_path / "t"), name] for name in ("p/bad.py", "p/good.py")]))
    subprocess.run([sys.executable, str(PROGRAM), str(jobs)], check=True)
    assert [path.name.split(".")[0] for path in (tmp_path / "t").rglob("*.pyc")] == ["good"]
