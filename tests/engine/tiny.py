"""A small stack that is locked, built and started as any other, in seconds: Debian with its Python, and wheels made by the tests.

Torch's wheel is not among them: what torch does in an image is tested where an image has it.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from envlock import bundle
from envlock import lock as locks
from envlock.build import BuildResult, build_image
from envlock.engine import Engine
from envlock.engine.loading import INCOMING
from envlock.engine.owner import LABEL
from envlock.environment import image_environment
from envlock.foundation import debian_layer
from envlock.lock import Lock, LockFile, Settings, Stack, Wheel
from envlock.locking import ChosenLock
from envlock.progress import Silent
from envlock.resolve.debian import resolve_base
from envlock.resolve.inputs import INSTALLER
from envlock.resolve.python import PythonWish, resolve_wheels
from envlock.spec import parse_spec
from envlock.store import Store

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from wheel_helpers import make_wheel

CHECKOUT = Path(__file__).parents[2]
PYTHON = "3.11"
SUITE = "bookworm"
COMMAND = [sys.executable, "-c", "from envlock.cli import main; main()"]

TOOL = "import sys\n\n\ndef main():\n    print('tool of', sys.prefix)\n"
WHEELS: dict[str, dict[str, bytes | str]] = {
    "tiny": {"tiny/__init__.py": "ANSWER = 42\n", "tiny/tool.py": TOOL, "tiny/data.bin": bytes(range(256))},
    "weighty": {
        "weighty/__init__.py": "from weighty.inner import SIZE\n",
        "weighty/inner.py": "SIZE = 21\n",
        "weighty/ballast": b"w" * 21_000_000,
    },
    "other": {"other.py": "def double(x):\n    return 2 * x\n", "other-1.data/scripts/other-script": "#!python\nprint('script')\n"},
}


@dataclass(frozen=True)
class Tiny:
    """A lock, a store that has all of its files, and where the lock file is to stand."""

    lock: Lock
    store: Store
    lock_path: Path

    @property
    def folder(self) -> Path:
        return self.lock_path.parent

    @property
    def tag(self) -> str:
        return f"{self.lock.name}:{self.lock.short_digest}"

    def written(self) -> Path:
        """The lock as a file, without what a build recorded."""
        self.lock_path.write_bytes(locks.dump(LockFile(lock=self.lock)))
        return self.lock_path

    def with_lock(self, **changes: Any) -> Tiny:
        """The same with other inputs."""
        return replace(self, lock=self.lock.model_copy(update=changes))

    def built(self, engine: Engine) -> BuildResult:
        """Build it here; nothing else knows of the lock file."""
        return build_image(ChosenLock(self.written(), self.lock, None), engine, self.store, Silent())


@pytest.fixture(scope="session")
def tiny_session(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    """The stack that all tests share, with its base layer made and held by the engine. Its images go at the end of the session."""
    if shutil.which("mmdebstrap") is None:
        pytest.skip("needs mmdebstrap")
    folder = tmp_path_factory.mktemp("tiny")
    store = Store(folder / "store")
    tiny = Tiny(_lock(engine.platform, store, folder), store, folder / "tiny.lock.yaml")
    debian_layer(tiny.lock.base, store, Silent())
    try:
        yield tiny
    finally:
        remove_images(engine, tiny.lock.name)


@pytest.fixture
def tiny(tiny_session: Tiny, engine: Engine, tmp_path: Path) -> Iterator[Tiny]:
    """The stack under a name of its own, with a store and a folder of the test's own."""
    yield from renamed(tiny_session, engine, tmp_path)


@pytest.fixture(scope="module")
def tiny_built(tiny_session: Tiny, engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Tiny, Any]]:
    """The stack as the command line built it, and what that printed: for tests that leave it as it is."""
    for tiny in renamed(tiny_session, engine, tmp_path_factory.mktemp("built")):
        yield tiny, result(envlock("build", tiny.written(), "--store", tiny.store.root, "--json", "--tag", f"{tiny.lock.name}:mine"))


def renamed(tiny: Tiny, engine: Engine, folder: Path) -> Iterator[Tiny]:
    """The stack under a new name, with a copy of its store in a folder; its images go at the end."""
    own = Tiny(tiny.lock, copied_store(tiny.store, folder / "store"), folder / "tiny.lock.yaml")
    own = own.with_lock(name=f"envlock-tiny-{secrets.token_hex(4)}")
    try:
        yield own
    finally:
        remove_images(engine, own.lock.name)


def _lock(platform: str, store: Store, folder: Path) -> Lock:
    base = resolve_base(SUITE, platform, (), store, Silent())
    wish = PythonWish(requirements=(INSTALLER,), python=PYTHON, platform=platform, glibc=(2, 36))
    (installer,) = resolve_wheels(wish, store, Silent())
    bundle.keep_bundle(store)
    stack = Stack(torch="2.5.1", variant="cpu", python=PYTHON, platform=platform)
    name = f"envlock-tiny-{secrets.token_hex(4)}"
    spec = parse_spec(f"name: {name}\nstack: {{torch: 2.5.1}}\nenv: {{GREETING: 'a \"b\" $HOME \\ c'}}\n".encode(), "tiny.yaml")
    return Lock(
        name=name,
        spec=spec.digest,
        epoch=base.date,
        stack=stack,
        base=base,
        shipped=bundle.own_shipped(),
        wheels=tuple(stored_wheel(store, folder, wheel, files) for wheel, files in WHEELS.items()),
        installer=installer,
        determinism=Settings(**spec.determinism.model_dump()),
        environment=image_environment(spec, stack, None, {}),
    )


def stored_wheel(store: Store, folder: Path, name: str, files: Mapping[str, bytes | str]) -> Wheel:
    """Make a wheel and put it into a store."""
    points = "[console_scripts]\ntiny-tool = tiny.tool:main\n" if name == "tiny" else ""
    scripts = {path: 0o755 for path in files if "/scripts/" in path}
    wheel = make_wheel(folder, name, files, entry_points=points, modes=scripts, pack=zipfile.ZIP_STORED)
    store.add(folder / wheel.file, wheel.sha256)
    return wheel


def copied_store(store: Store, root: Path, *, facts: bool = True, owner: int | None = None) -> Store:
    """A store with the same blobs elsewhere; without facts it knows of no layer that was made before."""
    shutil.copytree(store.root / "blobs", root / "blobs", copy_function=_link)
    if facts:
        shutil.copytree(store.root / "facts", root / "facts")
    if owner is not None:
        for path in (root, *root.rglob("*")):
            if path.is_dir():
                os.chown(path, owner, owner)
    return Store(root)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def left_in(store: Store) -> list[str]:
    """What a run left half done in a store."""
    return [path.name for path in (store.root / "work").iterdir() if path.name != ".gate"]


def temporaries(engine: Engine, pids: Iterable[int]) -> list[str]:
    """Temporary images and containers in an engine that belong to these processes."""
    marks = [f"-{pid:x}-" for pid in pids]
    api: Any = engine._api
    names = [tag for image in engine.images() for tag in image.tags if tag.startswith(f"{INCOMING}:")]
    names += [row["Labels"][LABEL] for row in api.containers(all=True, filters={"label": LABEL})]
    return [name for name in names if any(mark in name for mark in marks)]


def remove_images(engine: Engine, name: str) -> None:
    """Remove all images of this name."""
    for image in engine.images():
        for tag in image.tags:
            if tag.startswith(f"{name}:"):
                engine.untag(tag)


def launched(*words: str | Path, before: Sequence[str] = (), env: Mapping[str, str] | None = None, **more: Any) -> subprocess.Popen[str]:
    """Start the command line in a process of its own; `before` are words that start it in turn."""
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), **(env or {})}
    command = [*before, *COMMAND, *map(str, words)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def ended(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Wait for its end."""
    out, err = process.communicate(timeout=900)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def envlock(*words: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end, as `launched`."""
    return ended(launched(*words, **more))


def said(done: subprocess.CompletedProcess[str], status: int) -> str:
    """What a run said on stderr, once it is sure that it ended with this status and without a traceback."""
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == status, done.stderr
    return done.stderr


def result(done: subprocess.CompletedProcess[str]) -> Any:
    """What a run printed as JSON."""
    said(done, 0)
    return json.loads(done.stdout)
