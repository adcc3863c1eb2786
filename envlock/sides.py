"""The two sides of `envlock diff`, read from where they are: a lock or spec file, or an image in an engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from envlock import lock as locks
from envlock import yamlfile
from envlock.errors import UsageError
from envlock.locking import is_lock, solve_file
from envlock.portrait import Portrait, of_image, of_lock, of_spec
from envlock.progress import Progress
from envlock.treediff import TreeComparison, compare_trees, read_tree
from envlock.verify import find_image, read_lock

if TYPE_CHECKING:
    from envlock.engine import Engine, EngineImage

SUFFIXES = (".yaml", ".yml", ".json")


class Sides:
    """Reads both; the engine is asked for only where an image is named."""

    def __init__(self, open_engine: Callable[[], Engine]) -> None:
        self._open_engine = open_engine

    @cached_property
    def _engine(self) -> Engine:
        return self._open_engine()

    def pair(self, one: str, other: str) -> tuple[Portrait, Portrait]:
        """Both sides. A spec is read last, since what it leaves open is taken as the other side has it."""
        if is_spec(one):
            second = self._read(other, None)
            return self._read(one, _numpy(second)), second
        first = self._read(one, None)
        return first, self._read(other, _numpy(first))

    def _read(self, name: str, numpy: str | None) -> Portrait:
        path = Path(name)
        if not names_file(name):
            image = find_image(self._engine, name)
            return of_image(image, read_lock(self._engine, image).lock, name)
        if is_spec(name):
            spec, solution = solve_file(path)
            return of_spec(spec, solution, name, numpy)
        found = locks.parse(yamlfile.read_bytes(path), path.name)
        return of_lock(found.lock, found.built, name)

    def compare_files(self, one: Portrait, other: Portrait, progress: Progress) -> TreeComparison:
        """The file trees of two sides. Raises `UsageError` for a spec, `ImageMissing` where the engine lacks one."""
        images = [self._image(side) for side in (one, other)]
        trees = [read_tree(self._engine, image.id, side.name, progress) for image, side in zip(images, (one, other), strict=True)]
        return compare_trees(self._engine, trees[0], trees[1], one.lock or other.lock)

    def _image(self, side: Portrait) -> EngineImage:
        if side.kind == "image":
            return find_image(self._engine, side.name)
        if side.lock is None:
            raise UsageError(f"{side.name} is a spec, which has no files", where="--files", hint="name its lock, or an image")
        return find_image(self._engine, f"{side.lock.name}:{side.lock.short_digest}")


def names_file(name: str) -> bool:
    """Whether an argument that may be a file or an image names a file: it is there, or it ends as specs and locks do."""
    return name.endswith(SUFFIXES) or Path(name).is_file()


def is_spec(name: str) -> bool:
    """Whether it names a file that is not a lock."""
    return names_file(name) and not is_lock(Path(name))


def _numpy(side: Portrait) -> str | None:
    return side.wheels["numpy"].version if side.wheels and "numpy" in side.wheels else None
