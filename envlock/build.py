"""From a lock to an image in an engine: fetch, make the layers that are missing, send them, tag, record."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, Any

from envlock import dockerfile
from envlock.bundle import open_bundle
from envlock.clock import Clock
from envlock.config import image_settings
from envlock.damage import blamed_on_inputs
from envlock.errors import BuildFailed, ImageDiffers, Problems, exit_code_of
from envlock.errors import EnvlockError as Error
from envlock.fetch import fetch_all
from envlock.foundation import Foundation
from envlock.image import Image, make_image
from envlock.layers import Layer
from envlock.layers.recipes import recipe_key
from envlock.lock import Built, DebianBase, Lock
from envlock.makers import LayerMaker
from envlock.progress import Progress, human_bytes
from envlock.resolve.baseimage import fetch_base
from envlock.resolve.debian import fetch_debs
from envlock.resolve.python import wheel_wanted
from envlock.sources import keep_files
from envlock.store import Store, write_atomically

if TYPE_CHECKING:
    from envlock.engine import Engine
    from envlock.locking import ChosenLock

_IMAGE = "image"
_MAY_NOT_WRITE = (errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True, slots=True)
class BuildResult:
    """An image in an engine and how it came there. `seconds` are wall time by step; steps overlap, so they add up to more."""

    image: Image
    lock: Lock
    tags: tuple[str, ...]
    sent: frozenset[str]
    seconds: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """What `build --json` prints."""
        return {
            "image": self.tags[0],
            "tags": list(self.tags),
            "image_digest": self.image.digest,
            "manifest_digest": self.image.manifest_digest,
            "lock_digest": self.lock.digest,
            "layers": [
                {"digest": layer.diff_id, "size": layer.size, "holds": layer.holds, "state": self._state(layer)}
                for layer in self.image.layers
            ],
            "seconds": {step: round(seconds, 2) for step, seconds in self.seconds.items()},
        }

    def summary(self) -> str:
        """What people read after `envlock build`."""
        sent = sum(layer.size for layer in self.image.layers if layer.diff_id in self.sent)
        done = f"{len(self.sent)} of {len(self.image.layers)} layers sent ({human_bytes(sent)})" if self.sent else "unchanged"
        return "\n".join(
            [
                f"{self.tags[0]}  {done}, {self.seconds['total']:.1f} s",
                f"image digest {self.image.digest}",
                f"lock digest  {self.lock.digest}",
                f"also tagged  {', '.join(self.tags[1:])}",
            ]
        )

    def _state(self, layer: Layer) -> str:
        return "sent" if layer.diff_id in self.sent else "reused"


def build_image(chosen: ChosenLock, engine: Engine, store: Store, progress: Progress, extra_tags: Sequence[str] = ()) -> BuildResult:
    """Make the image of a lock and load it, as NAME:<lock digest>, NAME:latest and `extra_tags`.

    The first build records the digests beside the lock's inputs, where that file may be written; later ones are held against them
    before anything is tagged.
    Raises `ImageDiffers`, `BuildFailed`, the fetch errors and those of the host.
    """
    lock = chosen.lock
    clock = Clock()
    tags = (f"{lock.name}:{lock.short_digest}", f"{lock.name}:latest", *extra_tags)
    require_platform(lock, engine)
    with clock.step("total"):
        image = recall_image(lock, store)
        if image is not None and _is_there(image, engine):
            check_digest(chosen, image)
            for tag in tags:
                engine.tag(_identity(image, engine), tag)
            sent: frozenset[str] = frozenset()
        else:
            image, sent = load_image(chosen, engine, store, progress, tags, clock)
    try:
        chosen.record(built_of(lock, image))
        _write_dockerfile(chosen, store)
    except OSError as error:
        if error.errno not in _MAY_NOT_WRITE:
            raise
        progress.say(f"what was built is not recorded beside the lock: {error.strerror} ({chosen.path.parent})")
    return BuildResult(image, lock, tags, sent, clock.seconds)


def require_platform(lock: Lock, engine: Engine) -> None:
    """Raises `BuildFailed` where the engine runs another platform than the lock's."""
    if lock.stack.platform != engine.platform:
        why = f"the lock is for {lock.stack.platform}, the engine runs {engine.platform}"
        raise BuildFailed("this engine cannot make the image", where=lock.name, why=why, hint="build it on an engine of its own platform")


def load_image(
    chosen: ChosenLock, engine: Engine, store: Store, progress: Progress, tags: Sequence[str], clock: Clock
) -> tuple[Image, frozenset[str]]:
    """Make the image of a lock and load it under these tags; the image, and the diffIDs of the layers that were sent.

    Raises as `build_image`, before anything is tagged.
    """
    lock = chosen.lock
    if chosen.spec_folder is not None:
        keep_files(lock.files, chosen.spec_folder, store)
    bundle = open_bundle(lock.shipped, store)
    with (
        blamed_on_inputs(lock, store),
        store.scratch() as folder,
        LayerMaker(lock, bundle, engine, store, progress, folder, clock) as maker,
    ):

        def finish(layers: tuple[Layer, ...]) -> Image:
            image = make_image(layers, image_settings(lock))
            check_digest(chosen, image)
            return image

        with clock.step("load"):
            loaded = engine.load_growing(maker.layers(), finish, tags, maker.open, progress)
    remember_image(lock, loaded.image, store)
    return loaded.image, frozenset(loaded.sent)


def fetch_inputs(lock: Lock, open_engine: Callable[[], Engine], store: Store, progress: Progress) -> int:
    """Bring every file of a lock into the store; how many were missing. All that could not be had is raised together.

    The engine is asked for only where an image base must say which archives its packages came from.
    """
    wheels = (*lock.wheels, lock.installer)
    base = lock.base
    files = [(wheel.sha256, wheel.size) for wheel in wheels] + [(deb.sha256, deb.size) for deb in lock.debs]
    if not isinstance(base, DebianBase):
        files += [(blob.digest.removeprefix("sha256:"), blob.size) for blob in base.layers]
    missing = sum(not store.has(sha256, size) for sha256, size in files)

    def fetch_foundation() -> None:
        if isinstance(base, DebianBase):
            fetch_debs(base.debs, base.suite, lock.stack.platform, store, progress, base.snapshot)
        else:
            fetch_base(base, store, progress)
        if lock.apt is not None:
            with Foundation(base, lock.apt, lock.stack.platform, {}, open_engine, store, progress) as foundation:
                foundation.fetch_apt(lock.apt)

    stop = Event()
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(fetch_all, [wheel_wanted(wheel) for wheel in wheels], store, progress, stop=stop)
        try:
            others = _fault_of(fetch_foundation)
            faults = [fault for fault in (_fault_of(job.result), others) if fault is not None]
        except BaseException:
            stop.set()
            raise
    if faults:
        raise Problems([finding for fault in faults for finding in fault.findings], exit_code_of(faults[0]))
    return missing


def _fault_of(work: Callable[[], object]) -> Error | None:
    try:
        work()
    except Error as error:
        return error
    return None


def recall_image(lock: Lock, store: Store) -> Image | None:
    """The image of a lock that was built before, without making any layer."""
    known = store.recall(_IMAGE, _key(lock))
    if known is None:
        return None
    return make_image([Layer(row["diff_id"], row["size"], row["holds"]) for row in known["layers"]], image_settings(lock))


def remember_image(lock: Lock, image: Image, store: Store) -> None:
    """Remember which layers the image of a lock has."""
    rows = [{"diff_id": layer.diff_id, "size": layer.size, "holds": layer.holds} for layer in image.layers]
    store.remember(_IMAGE, _key(lock), {"layers": rows})


def _key(lock: Lock) -> str:
    return recipe_key(_IMAGE, lock=lock.digest)


def built_of(lock: Lock, image: Image) -> Built:
    """What a build came out as, for the lock file."""
    return Built(
        lock=lock.digest,
        image_digest=image.digest,
        manifest_digest=image.manifest_digest,
        diff_ids=tuple(layer.diff_id for layer in image.layers),
    )


def check_digest(chosen: ChosenLock, image: Image) -> None:
    """Raises `ImageDiffers` when the lock file records another image digest for these inputs; the first layer that differs is named."""
    built = chosen.built
    if built is None or built.lock != chosen.lock.digest or built.image_digest == image.digest:
        return
    layers = image.layers
    number = next((n for n, (a, b) in enumerate(zip(built.diff_ids, layers, strict=False)) if a != b.diff_id), None)
    why = f"recorded {built.image_digest}, made {image.digest}"
    if number is not None:
        why += f"; layer {number + 1} is the first that differs: {layers[number].holds}"
    elif len(built.diff_ids) != len(layers):
        why += f"; it had {len(built.diff_ids)} layers and has {len(layers)}"
    else:
        why += "; the layers are the same, the settings differ"
    hint = "compare the two with `envlock diff`; nothing was tagged. If the recorded digest is to go, take `built` out of the lock file"
    raise ImageDiffers("the image is not the one that this lock gave before", where=str(chosen.path), why=why, hint=hint)


def _is_there(image: Image, engine: Engine) -> bool:
    found = engine.image(_identity(image, engine))
    return found is not None and found.digest == image.digest


def _identity(image: Image, engine: Engine) -> str:
    return image.manifest_digest if engine.store == "containerd" else image.digest


def _write_dockerfile(chosen: ChosenLock, store: Store) -> None:
    path, content = chosen.sibling(".Dockerfile"), dockerfile.render(chosen.lock, open_bundle(chosen.lock.shipped, store))
    if not path.exists() or path.read_bytes() != content:
        write_atomically(path, content)
