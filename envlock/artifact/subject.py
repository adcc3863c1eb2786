"""Subject: the image that is pinned, its lock, and a way to come by its layers."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from envlock import locking
from envlock.artifact.inputs import inputs_of
from envlock.build import build_image, recall_image
from envlock.bundle import open_bundle
from envlock.clock import Clock
from envlock.config import image_settings
from envlock.errors import EngineRefused, ImageDiffers, NotPinnable
from envlock.image import Image, OpenLayer, make_image
from envlock.layers import Layer
from envlock.layers.assembly import Disposable
from envlock.layers.sandbox import stream_of
from envlock.lock import Lock
from envlock.makers import LayerMaker
from envlock.progress import Progress
from envlock.spec import read_spec
from envlock.store import CHUNK, Store, explained_when_full
from envlock.verify import find_image, read_lock

if TYPE_CHECKING:
    from envlock.engine import Engine, EngineImage
    from envlock.locking import ChosenLock


@dataclass(frozen=True, slots=True)
class Subject:
    """A lock and its image; `spec` is the spec file where it is known."""

    lock: Lock
    image: Image
    spec: Path | None = None
    held: bool = False
    """Whether the engine holds the image, so that it could save it."""


def subject_of(what: str, spec: Path | None, engine: Engine, store: Store, progress: Progress) -> Subject:
    """The image of a lock or spec file, or an image in the engine by its name.

    A lock whose image was never built here is built. Raises `NotPinnable`, `ImageMissing`, `ImageDiffers` and what building raises.
    """
    path = Path(what)
    if path.suffix in (".yaml", ".yml", ".json") and path.is_file():
        return _of_lock(locking.find_lock(path), _spec_beside(path, spec), engine, store, progress)
    return _of_engine(what, spec, engine)


def _of_lock(chosen: ChosenLock, spec: Path | None, engine: Engine, store: Store, progress: Progress) -> Subject:
    image = recall_image(chosen.lock, store)
    if image is None:
        progress.say(f"the image of {chosen.path.name} was not built here yet: building it")
        image = build_image(chosen, engine, store, progress).image
    if chosen.built is not None and chosen.built.lock == chosen.lock.digest and chosen.built.image_digest != image.digest:
        why = f"recorded {chosen.built.image_digest}, made {image.digest}"
        raise ImageDiffers("the image is not the one that this lock gave before", where=str(chosen.path), why=why)
    return Subject(chosen.lock, image, fitting(spec, chosen.lock), _holds(engine, image))


def _of_engine(name: str, spec: Path | None, engine: Engine) -> Subject:
    found = find_image(engine, name)
    lock = read_lock(engine, found).lock
    if lock is None:
        hint = "pin what `envlock build` made; for another image, write a spec with it as `base: {image: …}` and build that"
        raise NotPinnable(f"{name} carries no lock", where=name, why="envlock did not build it, or it was changed since", hint=hint)
    image = _made(found, lock, name)
    return Subject(lock, image, fitting(spec, lock), held=True)


def _made(found: EngineImage, lock: Lock, name: str) -> Image:
    """The image as envlock made it, proved by its digests."""
    expected = make_image(found.made.layers, image_settings(lock)) if found.made is not None else None
    if expected is None or found.made is None or expected.digest != found.made.digest:
        why = "its config is not the one that its lock gives" if found.made else "it was compressed, saved or committed by another tool"
        hint = "build it again: `envlock build LOCK` with the lock that it was made from"
        raise NotPinnable(f"{name} is not as envlock made it", where=name, why=why, hint=hint)
    return found.made


def _holds(engine: Engine, image: Image) -> bool:
    found = engine.image(_identity(engine, image))
    return found is not None and found.digest == image.digest


def _identity(engine: Engine, image: Image) -> str:
    return image.manifest_digest if engine.store == "containerd" else image.digest


def _spec_beside(path: Path, spec: Path | None) -> Path | None:
    """The spec that was named; else the file itself where it is one, else the one whose lock stands at `path`."""
    if spec is not None:
        return spec
    if not locking.is_lock(path):
        return path
    name = path.name.removesuffix(locking.SUFFIX) + ".yaml"
    places = [path.parent, path.absolute().parent.parent, *sorted(path.absolute().parent.parent.glob("*/"))]
    return next((place / name for place in places if (place / name).is_file() and not locking.is_lock(place / name)), None)


def fitting(spec: Path | None, lock: Lock) -> Path | None:
    """The spec file, if it is the lock's. Raises `NotPinnable` where it is another's."""
    if spec is None:
        return None
    found = read_spec(spec).digest
    if found != lock.spec:
        why = f"the lock was made from {lock.spec[:19]}…, this one is {found[:19]}…"
        hint = f"lock it again with `envlock lock {spec}`, or name the right one with --spec"
        raise NotPinnable(f"{spec} is not the spec of this lock", where=str(spec), why=why, hint=hint)
    return spec


@contextmanager
def open_layers(subject: Subject, engine: Engine, store: Store, progress: Progress) -> Iterator[OpenLayer]:
    """Opens the layers of the image, lowest first, for the time of a `with` block.

    Where the store has all that they are made of they are made again, one at a time: that takes the space of one layer. Else the
    engine saves the image (`docker save`), which takes the space of all. Raises `ImageDiffers`, `EngineRefused` and `DiskFull`, on opening
    a layer too, and what building raises.
    """
    lock = subject.lock
    at_hand = all(store.has(row.sha256, row.size) for row in inputs_of(lock))
    with store.scratch() as folder:
        if subject.held and not (at_hand and recall_image(lock, store) is not None):
            store.require_space(subject.image.size)
            progress.say("the store does not have what the layers are made of: the engine saves the image")
            yield _Saved(engine.save(_identity(engine, subject.image)), subject.image, folder).open
            return
        with LayerMaker(lock, open_bundle(lock.shipped, store), engine, store, progress, folder, Clock()) as maker:
            yield _Made(maker).open


class _Made:
    """The layers as their maker makes them again, asked for in order. A layer that the engine holds is made when it is opened."""

    def __init__(self, maker: LayerMaker) -> None:
        self._maker = maker
        self._layers = maker.layers()

    def open(self, layer: Layer) -> BinaryIO:
        for made in self._layers:
            if made.diff_id == layer.diff_id:
                return self._maker.open(made)
            self._maker.open(made).close()  # an earlier run has written it to the archive
        why = f"no layer that its lock gives now has the digest {layer.diff_id}"
        hint = "build it again from its lock: where that gives another digest, the lock names the envlock release that made it"
        raise ImageDiffers("the image cannot be made again from its lock", where=layer.holds, why=why, hint=hint)


class _Saved:
    """The layers of an image out of a saved archive, whatever it calls them: a layer is known by its sha256."""

    def __init__(self, pieces: Iterable[bytes], image: Image, folder: Path) -> None:
        self._paths: dict[str, Path] = {}
        wanted = {layer.diff_id: layer.size for layer in image.layers}
        with tarfile.open(fileobj=stream_of(pieces), mode="r|", bufsize=CHUNK) as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # else it keeps every header
                if member.isreg() and member.size in wanted.values():
                    path = folder / f"{len(self._paths)}.tar"
                    digest = _copied(cast(BinaryIO, tar.extractfile(member)), path)
                    if digest in wanted and digest not in self._paths:
                        self._paths[digest] = path
        missing = [layer.holds for layer in image.layers if layer.diff_id not in self._paths]
        if missing:
            raise EngineRefused("the engine's archive lacks a layer of the image", where=missing[0], hint="build the image again")

    def open(self, layer: Layer) -> BinaryIO:
        return cast(BinaryIO, Disposable(self._paths[layer.diff_id]))


def _copied(source: BinaryIO, path: Path) -> str:
    """Write a stream to a file; its digest."""
    hasher = hashlib.sha256()
    with explained_when_full(path.parent, 0), path.open("wb") as target:
        while chunk := source.read(CHUNK):
            hasher.update(chunk)
            target.write(chunk)
    return f"sha256:{hasher.hexdigest()}"
