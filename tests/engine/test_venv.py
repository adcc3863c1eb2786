"""The virtual environment of a base: usable, and the same whoever makes it."""

from __future__ import annotations

import io
import tarfile

import pytest
from python_base import STEPS, PythonBase, python_base  # noqa: F401

from envlock.errors import BuildFailed
from envlock.layers.canonical import ASSEMBLED
from envlock.layers.sandbox import stream_of
from envlock.layers.venv import plan_venv, venv_recipe


def made(base: PythonBase, **more: object) -> bytes:
    target = io.BytesIO()
    with base.sandbox(**more) as container:
        plan_venv(container, base.python, STEPS, base.tree).write(target, "venv")
    return target.getvalue()


def test_it_is_the_same_every_time_and_names_no_host(base: PythonBase) -> None:
    once = made(base)
    assert made(base, environment={"PYTHONHASHSEED": "7", "PYTHONPATH": "/x", "TZ": "Asia/Tokyo"}) == once
    with tarfile.open(fileobj=io.BytesIO(once)) as tar:
        members = {member.name: member for member in tar}
        config = tar.extractfile("opt/venv/pyvenv.cfg").read().decode()
    assert {member.mtime for member in members.values()} == {ASSEMBLED}
    assert members["opt/venv/bin/python3"].issym() or members["opt/venv/bin/python"].issym()
    assert "command" not in config
    assert f"version = {base.python}" in config
    assert not any("__pycache__" in name for name in members)


def test_its_python_is_the_bases_own_and_looks_into_it(base: PythonBase) -> None:
    layer = made(base)
    with base.sandbox() as container:
        container.put("/", [layer])
        ended = container.exec(["/opt/venv/bin/python", "-c", "import sys; print(sys.prefix, sys.base_prefix, *sys.path)"])
        assert ended.status == 0, ended.output
        assert ended.output.decode().split()[:2] == ["/opt/venv", "/usr"]
        assert f"/opt/venv/lib/python{base.python}/site-packages" in ended.output.decode().split()
        assert b"".join(stream_of(container.get("/opt/venv/bin/python")))


def test_a_base_without_that_python_is_a_clear_error(base: PythonBase) -> None:
    with base.sandbox() as container, pytest.raises(BuildFailed) as refused:
        plan_venv(container, "3.99", STEPS, base.tree)
    assert "python3.99" in refused.value.why
    assert "python3.99" not in refused.value.what
    assert "Python 3.99" in refused.value.hint


def test_its_recipe_changes_with_python(base: PythonBase) -> None:
    once = venv_recipe(base.python, "build", STEPS, base.tree)
    assert once == venv_recipe(base.python, "build", STEPS, base.tree)
    assert once != venv_recipe(base.python, "other", STEPS, base.tree)
    assert once != venv_recipe(base.python, "build", {**STEPS, "venv.sh": b"other"}, base.tree)
