"""Bytecode: each wheel's modules, compiled by the image's own Python in a container, kept in the store by what it depends on.

`import torch` takes a third of the time with it. Hashes instead of times (PEP 552, unchecked), compiled module by module in
order, so that the bytes are those of any other run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from envlock.errors import BuildFailed
from envlock.layers.canonical import ASSEMBLED, Entry, Tree, read_tar, write_layer
from envlock.layers.parts import spooled, stored_files
from envlock.layers.recipes import recipe_key
from envlock.layers.sandbox import Sandbox, pieces_of, put_files, run_step, stream_of
from envlock.layers.wheelfile import InstalledWheel, site_packages
from envlock.progress import Progress
from envlock.spec import canonical_json
from envlock.store import Store

SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where a base has its programs, when its config does not say otherwise."""

Bytecode = Mapping[str, tuple[Entry, ...]]
"""The compiled modules of each part, at their place in the image, by the part's identity (a wheel's sha256)."""

_KIND = "bytecode"
_PROGRAM = "compile_modules.py"
_RUNNER = "python.sh"
_STEPS = "envlock-steps"
_SOURCES = "envlock-sources"
_COMPILED = "envlock-compiled"


def python_build(tree: Tree, python: str, search: str = SEARCH) -> str:
    """What tells this build of Python from another (sha256 in hex): its program, its library, its compiler and venv modules.

    `python` is major and minor version, `search` the base's PATH. Raises `BuildFailed` where the base has no such Python.
    """
    program = _program(tree, python, search)
    parts = {
        path: node.sha256
        for path, node in tree.nodes.items()
        if path.endswith(f"/python{python}/py_compile.py")
        or f"/python{python}/venv/" in path
        or path.rpartition("/")[2].startswith(f"libpython{python}.so")
    }
    return hashlib.sha256(canonical_json([program, tree.nodes[program].sha256, parts])).hexdigest()


def _program(tree: Tree, python: str, search: str) -> str:
    for folder in search.split(":"):
        path = tree.resolve(f"{folder}/python{python}")
        if path in tree.nodes and tree.nodes[path].kind == "file":
            return path
    hint = f"name the package python{python} under `apt`, choose a base that has it, or another Python"
    raise BuildFailed(f"the base has no Python {python}", where="base", why=f"there is no python{python} in {search}", hint=hint)


def compiler(build: str, steps: Mapping[str, bytes]) -> str:
    """What bytecode depends on besides the modules: Python's build, and the programs that compile (sha256 in hex)."""
    programs = [hashlib.sha256(steps[name]).hexdigest() for name in (_PROGRAM, _RUNNER)]
    return hashlib.sha256(canonical_json([build, programs])).hexdigest()


@dataclass(frozen=True, slots=True)
class Modules:
    """Modules that are compiled together: a name for people, the sha256 (hex) of what they come out of, and the modules themselves."""

    name: str
    identity: str
    entries: tuple[Entry, ...]


def modules_of(wheel: InstalledWheel, python: str) -> Modules:
    """The modules of a wheel that are worth compiling: those that hold anything."""
    folder = site_packages(python) + "/"
    files = (file.entry for file in wheel.files if file.entry.size)
    entries = tuple(entry for entry in files if entry.path.startswith(folder) and entry.path.endswith(".py"))
    return Modules(wheel.wheel.name, wheel.wheel.sha256, entries)


def compile_wheels(
    wheels: Sequence[InstalledWheel],
    python: str,
    build: str,
    steps: Mapping[str, bytes],
    store: Store,
    sandbox: Callable[[], AbstractContextManager[Sandbox]],
    progress: Progress,
) -> Bytecode:
    """The compiled modules of each wheel, by its sha256; see `compile_modules`."""
    return compile_modules([modules_of(wheel, python) for wheel in wheels], python, build, steps, store, sandbox, progress)


def compile_modules(
    parts: Sequence[Modules],
    python: str,
    build: str,
    steps: Mapping[str, bytes],
    store: Store,
    sandbox: Callable[[], AbstractContextManager[Sandbox]],
    progress: Progress,
) -> Bytecode:
    """The compiled modules of each part, by its identity; those that the store lacks are compiled in one container.

    `sandbox` gives the container, `build` is what `python_build` says, `steps` the bundle's programs by name. Raises `BuildFailed`,
    and as reading a wheel.
    """
    keys = {part.identity: _key(part, python, build, steps) for part in parts}
    lacking = [part for part in parts if part.entries and _kept(store, keys[part.identity]) is None]
    if lacking:
        what = f"bytecode of {lacking[0].name if len(lacking) == 1 else f'{len(lacking)} wheels'}"
        with progress.track(what), sandbox() as container:
            _compile(lacking, python, keys, steps, store, container)
    found = {identity: _kept(store, key) for identity, key in keys.items()}
    return {identity: stored_files(path) for identity, path in found.items() if path is not None}


def _key(part: Modules, python: str, build: str, steps: Mapping[str, bytes]) -> str:
    return recipe_key(_KIND, wheel=part.identity, python=python, compiler=compiler(build, steps))


def _kept(store: Store, key: str) -> Path | None:
    known = store.recall(_KIND, key)
    return store.path(known["sha256"]) if known is not None and store.has(known["sha256"], known["size"]) else None


def _compile(
    parts: Sequence[Modules], python: str, keys: Mapping[str, str], steps: Mapping[str, bytes], store: Store, container: Sandbox
) -> None:
    """Compile the modules of `parts`, each part's in a folder of its own, and keep what comes out."""
    sources, jobs = [], []
    for number, part in enumerate(parts):
        for module in sorted(part.entries, key=lambda entry: entry.path):
            sources.append(replace(module, path=f"{_SOURCES}/{number}/{module.path}"))
            jobs.append([f"/{_SOURCES}/{number}", f"/{_COMPILED}/{number}", module.path])
    with store.scratch() as folder, (folder / "sources").open("w+b") as tar:
        write_layer(sources, tar, "")
        tar.seek(0)
        container.put("/", pieces_of(tar))
    put_files(
        container,
        {
            f"{_STEPS}/{_PROGRAM}": steps[_PROGRAM],
            f"{_STEPS}/{_RUNNER}": steps[_RUNNER],
            f"{_STEPS}/jobs.json": json.dumps(jobs).encode(),
            f"{_COMPILED}/made": b"",
        },
    )
    command = ["sh", f"/{_STEPS}/{_RUNNER}", python, f"/{_STEPS}/{_PROGRAM}", f"/{_STEPS}/jobs.json"]
    run_step(container, command, "compiling bytecode", "look whether the disk or the memory of the engine is full")
    _keep(stream_of(container.get(f"/{_COMPILED}")), [keys[part.identity] for part in parts], store)


def _keep(compiled: BinaryIO, keys: Sequence[str], store: Store) -> None:
    """Sort the compiled modules that a container gives by part, and keep a tar for each."""
    with store.scratch() as folder:
        made: dict[int, list[Entry]] = {number: [] for number in range(len(keys))}
        with (folder / "content").open("w+b") as content:
            for entry in read_tar(compiled, "bytecode"):
                place = entry.path.removeprefix(f"{_COMPILED}/").split("/", 1)
                if entry.kind == "file" and len(place) == 2:
                    made[int(place[0])].append(_settled(spooled(entry, content), place[1]))
            for number, entries in made.items():
                with store.incoming(what="bytecode") as blob:
                    write_layer(entries, blob, "bytecode")
                    sha256, size = blob.sha256, blob.size
                store.remember(_KIND, keys[number], {"sha256": sha256, "size": size})


def _settled(entry: Entry, path: str) -> Entry:
    return replace(entry, path=path, mode=0o644, uid=0, gid=0, mtime=ASSEMBLED, capability=None)
