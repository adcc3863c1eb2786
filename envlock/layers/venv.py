"""Venv layer: the empty virtual environment /opt/venv, as the base's own Python makes it, without clock or host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from io import BytesIO

from envlock.layers.canonical import ASSEMBLED, Entry, Plan, Tree, plan_layer, read_tar
from envlock.layers.recipes import folders_below, recipe_key
from envlock.layers.sandbox import Sandbox, put_files, run_step, stream_of
from envlock.layers.wheelfile import VENV

HOLDS = "virtual environment"

_STEP = "venv.sh"
_WORK = "envlock-steps"


def venv_recipe(python: str, build: str, steps: Mapping[str, bytes], below: Tree) -> str:
    """The recipe key of the layer over `below`; `build` is what `bytecode.python_build` says of the base's Python."""
    return recipe_key("venv", python=python, build=build, step=steps[_STEP].decode(), below=folders_below([VENV], below))


def plan_venv(sandbox: Sandbox, python: str, steps: Mapping[str, bytes], below: Tree) -> Plan:
    """Make the environment in a container of the base, and decide its layer; `steps` are the bundle's programs, by name.

    Raises `BuildFailed` with what Python printed.
    """
    put_files(sandbox, {f"{_WORK}/{_STEP}": steps[_STEP]})
    hint = f"the base needs Python {python} with its venv module: name a base or a package that has it"
    run_step(sandbox, ["sh", f"/{_WORK}/{_STEP}", python], "making the virtual environment", hint)
    folder = VENV.rpartition("/")[0]
    entries = [_settled(entry, folder) for entry in read_tar(stream_of(sandbox.get(f"/{VENV}")), "virtual environment")]
    return plan_layer(entries, below)


def _settled(entry: Entry, folder: str) -> Entry:
    """The entry at its place, with the constant time, and its content at hand."""
    opener = None
    if entry.open is not None:
        with entry.open() as stream:
            opener = partial(BytesIO, stream.read())
    return replace(entry, path=f"{folder}/{entry.path}", mtime=ASSEMBLED, uid=0, gid=0, capability=None, open=opener)
