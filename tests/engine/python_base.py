"""A small base image with this host's own Python and a shell, for tests that run Python in a container."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from envlock.engine import Container, Engine
from envlock.image import Settings, make_image
from envlock.layers.canonical import Entry, Tree, write_layer
from envlock.progress import Silent

PYTHON = Path("/usr/bin/python3")
TOOLS = ("sh", "env", "sed", "sleep", "dirname", "ls")
STEPS = {path.name: path.read_bytes() for path in (Path(__file__).parents[2] / "templates/image/steps").iterdir() if path.is_file()}


@dataclass(frozen=True)
class PythonBase:
    """An image in the engine, its tree, and its Python's major and minor version."""

    engine: Engine
    tag: str
    tree: Tree
    python: str

    @contextmanager
    def sandbox(self, **more: object) -> Iterator[Container]:
        """A started container with no network."""
        with self.engine.container(self.tag, ["sleep", "3600"], **more) as container:  # type: ignore[arg-type]
            container.start()
            try:
                yield container
            finally:
                container.kill()
                for _ in container.output():
                    pass


@pytest.fixture(name="base", scope="session")
def python_base(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PythonBase]:
    if not PYTHON.exists():
        pytest.skip(f"needs {PYTHON}")
    version, stdlib = _ask("import sys, sysconfig; print('%d.%d' % sys.version_info[:2]); print(sysconfig.get_path('stdlib'))")
    entries = {path: _file(path, source) for path, source in _files(Path(stdlib), version).items()}
    entries[f"usr/bin/python{version}"] = _file(f"usr/bin/python{version}", PYTHON.resolve(), 0o755)
    tar = tmp_path_factory.mktemp("base") / "base.tar"
    with tar.open("wb") as target:
        layer = write_layer(entries.values(), target, "this host's Python")
    settings = Settings(platform=engine.platform, created=0, environment={"PATH": "/usr/bin:/bin"}, labels={}, command=("sh",))
    image = make_image([layer], settings)
    tag = f"envlock-test-python:{secrets.token_hex(4)}"
    engine.load(image, [tag], lambda _: tar.open("rb"), Silent())
    try:
        yield PythonBase(engine, tag, Tree().with_entries(entries.values(), "base"), version)
    finally:
        engine.untag(tag)


def _ask(program: str) -> list[str]:
    return subprocess.run([PYTHON, "-I", "-c", program], check=True, capture_output=True, text=True).stdout.splitlines()


def _files(stdlib: Path, version: str) -> dict[str, Path]:
    found = {
        str(path)[1:]: path for path in stdlib.rglob("*") if path.is_file() and not {"__pycache__", "test", "site-packages"} & {*path.parts}
    }
    programs = [Path("/bin") / tool for tool in TOOLS] + [PYTHON]
    libraries = {word for tool in programs for word in _ldd(tool) if word.startswith("/")}
    libraries |= {word for module in stdlib.glob("lib-dynload/*.so") for word in _ldd(module) if word.startswith("/")}
    return found | {f"bin/{tool}": Path("/bin") / tool for tool in TOOLS} | {library[1:]: Path(library) for library in sorted(libraries)}


def _ldd(program: Path) -> list[str]:
    return subprocess.run(["ldd", program], check=False, capture_output=True, text=True).stdout.split()


def _file(path: str, source: Path, mode: int | None = None) -> Entry:
    real = source.resolve()
    return Entry(path, "file", mode or real.stat().st_mode & 0o755, size=real.stat().st_size, open=partial(real.open, "rb"))
