"""Reproducing: an image made again from nothing but its lock, and held against what was built before, against the other route, or
against an image in the engine. What differs is explained by file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from envlock import lock as locks
from envlock.build import load_image, require_platform
from envlock.clock import Clock
from envlock.damage import damage_of, names_of
from envlock.docker_build import build_with_docker, docker_tag
from envlock.errors import Exit, ImageDiffers, Problems
from envlock.lock import DebianBase, Lock
from envlock.progress import Progress
from envlock.sources import keep_files
from envlock.store import Store
from envlock.treediff import ImageTree, TreeComparison, compare_trees, read_tree

if TYPE_CHECKING:
    from envlock.engine import Engine, EngineImage
    from envlock.image import Image
    from envlock.locking import ChosenLock

Route = Literal["assemble", "dockerfile"]
Outcome = Literal["reproduced", "differs", "inconclusive"]
Source = Literal["upstream", "store"]

_WORDS: Mapping[Outcome, str] = {"reproduced": "REPRODUCED", "differs": "DIFFERS", "inconclusive": "INCONCLUSIVE"}


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """One image that was made again. The image digest of what Docker builds depends on the engine, so it is not held against anything."""

    route: Route
    image_digest: str | None
    rootfs_digest: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Held:
    """One digest held against another: of what was made by `route`, and of what `against` names."""

    what: Literal["image digest", "rootfs digest"]
    route: Route
    found: str
    against: str
    expected: str

    @property
    def equal(self) -> bool:
        """Whether the two are the same."""
        return self.found == self.expected


@dataclass(frozen=True, slots=True)
class Reproduction:
    """What came out. `comparisons` explain the differences by file, as far as both trees could be read."""

    lock: Lock
    rebuilt: tuple[Rebuilt, ...]
    held: tuple[Held, ...]
    comparisons: tuple[TreeComparison, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """`inconclusive` where there was nothing to hold it against."""
        if not self.held:
            return "inconclusive"
        return "reproduced" if all(item.equal for item in self.held) else "differs"

    @property
    def exit(self) -> Exit:
        """The exit status."""
        return {"reproduced": Exit.OK, "differs": Exit.DOES_NOT_HOLD, "inconclusive": Exit.INCONCLUSIVE}[self.outcome]

    def as_json(self) -> dict[str, Any]:
        """What `reproduce --json` prints."""
        return {
            "outcome": self.outcome,
            "lock_digest": self.lock.digest,
            "rebuilt": [asdict(item) for item in self.rebuilt],
            "held": [{**asdict(item), "equal": item.equal} for item in self.held],
            "comparisons": [comparison.as_json() for comparison in self.comparisons],
            "notes": list(self.notes),
        }

    def as_text(self) -> str:
        """What people read: the verdict first."""
        lines = [f"{_WORDS[self.outcome]}  {self.lock.name}, lock digest {self.lock.digest}"]
        for item in self.rebuilt:
            lines.append(f"  {item.route}: made again in {item.seconds:.1f} s")
            lines += [f"    image digest  {item.image_digest}"] if item.image_digest else []
            lines.append(f"    rootfs digest {item.rootfs_digest}")
        for held in self.held:
            lines.append(f"  {held.what} ({held.route}): {'equal to' if held.equal else 'differs from'} {held.against}")
            lines += [] if held.equal else [f"    expected {held.expected}", f"    found    {held.found}"]
        lines += [f"  {note}" for note in self.notes]
        return "\n".join([*lines, *(comparison.as_text() for comparison in self.comparisons)])


def reproduce(
    chosen: ChosenLock,
    routes: Sequence[Route],
    against: str | None,
    files_from: Source,
    engine: Engine,
    store: Store,
    progress: Progress,
) -> Reproduction:
    """Make the image of a lock again by these routes, in an empty store, and hold it against all that is known of it.

    `files_from` says where the inputs come from: fetched again, or hashed and taken from `store`. What has no upstream (the spec's files,
    a base from an archive, the bundle of another release) comes from `store` either way. No tag of the engine's changes. Raises what
    building raises, and `Problems` (exit 6) for inputs in the store that are damaged.
    """
    lock = chosen.lock
    require_platform(lock, engine)
    if chosen.spec_folder is not None:
        keep_files(lock.files, chosen.spec_folder, store)
    with ExitStack() as started:
        if against is not None:
            _require_image(engine, against)
        fresh = Store(started.enter_context(store.scratch()) / "store")
        take_over(lock, files_from, store, fresh)
        work = _Work(chosen, engine, fresh, store, progress, started)
        for route in routes:
            work.make(route)
        if len(routes) == 2:
            work.hold_routes()
        work.hold_record()
        if against is not None:
            work.hold_image(against)
        return Reproduction(lock, tuple(work.rebuilt), tuple(work.held), tuple(work.comparisons), tuple(work.notes))


@dataclass(slots=True)
class _Work:
    """One reproduction while it goes on."""

    chosen: ChosenLock
    engine: Engine
    fresh: Store
    store: Store
    progress: Progress
    started: ExitStack
    rebuilt: list[Rebuilt] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    comparisons: list[TreeComparison] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    trees: dict[Route, ImageTree] = field(default_factory=dict)

    def make(self, route: Route) -> None:
        """Make the image by a route, under a temporary name, and read its files."""
        from envlock.engine import temporary_name

        tag, clock, digest = temporary_name(), Clock(), None
        self.started.callback(self.engine.untag, tag)
        unbiased = replace(self.chosen, built=None)
        with clock.step("total"):
            if route == "assemble":
                image, _ = load_image(unbiased, self.engine, self.fresh, self.progress, (tag,), clock)
                digest = image.digest
                self._note_layers(image)
            else:
                log = self.store.root / "logs" / f"{docker_tag(self.chosen.lock).replace(':', '-')}.log"
                build_with_docker(unbiased, self.engine, self.fresh, self.progress, (tag,), log, from_cache=False)
        self.trees[route] = read_tree(self.engine, tag, f"what {route} made", self.progress)
        self.rebuilt.append(Rebuilt(route, digest, self.trees[route].rootfs.digest, round(clock.seconds["total"], 2)))

    def _note_layers(self, image: Image) -> None:
        built = self.chosen.built
        if built is None or built.lock != self.chosen.lock.digest:
            return
        self.held.append(Held("image digest", "assemble", image.digest, "the lock's record", built.image_digest))
        for number, (layer, recorded) in enumerate(zip(image.layers, built.diff_ids, strict=False), 1):
            if layer.diff_id != recorded:
                self.notes.append(f"layer {number} differs: {layer.holds}, recorded {recorded[:19]}…, made {layer.diff_id[:19]}…")

    def hold_routes(self) -> None:
        """The two routes against each other."""
        assembled, docker = self.trees["assemble"], self.trees["dockerfile"]
        self._hold("dockerfile", docker, "what assemble made", assembled)

    def hold_record(self) -> None:
        """The files against the digest in the lock file; explained by the image that was built, where the engine has it."""
        built = self.chosen.built
        if built is None or built.lock != self.chosen.lock.digest:
            return
        if built.rootfs_digest is not None:
            for rebuilt in self.rebuilt:
                self.held.append(Held("rootfs digest", rebuilt.route, rebuilt.rootfs_digest, "the lock's record", built.rootfs_digest))
        name = f"{self.chosen.lock.name}:{self.chosen.lock.short_digest}"
        kept = self.engine.image(name)
        differs = any(not held.equal for held in self.held if held.against == "the lock's record")
        if kept is not None and kept.digest == built.image_digest and (differs or not self.held):
            tree = read_tree(self.engine, kept.id, name, self.progress)
            self._hold(self.rebuilt[0].route, self.trees[self.rebuilt[0].route], name, tree)

    def hold_image(self, reference: str) -> None:
        """Everything against an image in the engine."""
        image = _require_image(self.engine, reference)
        tree = read_tree(self.engine, image.id, reference, self.progress)
        for rebuilt in self.rebuilt:
            if rebuilt.image_digest is not None and image.made is not None:
                self.held.append(Held("image digest", rebuilt.route, rebuilt.image_digest, reference, image.made.digest))
            self._hold(rebuilt.route, self.trees[rebuilt.route], reference, tree)

    def _hold(self, route: Route, found: ImageTree, against: str, expected: ImageTree) -> None:
        self.held.append(Held("rootfs digest", route, found.rootfs.digest, against, expected.rootfs.digest))
        if not self.held[-1].equal:
            self.comparisons.append(compare_trees(self.engine, expected, found, self.chosen.lock))


def _require_image(engine: Engine, reference: str) -> EngineImage:
    from envlock.verify import find_image

    return find_image(engine, reference)


def take_over(lock: Lock, files_from: Source, store: Store, fresh: Store) -> None:
    """Put into an empty store what need not, or cannot, be fetched again; every file is hashed. Raises `Problems` for damaged ones."""
    without_upstream = {file.sha256 for file in lock.files} | {lock.shipped.sha256}
    if not isinstance(lock.base, DebianBase) and lock.base.kind == "archive":
        without_upstream |= {
            digest.removeprefix("sha256:") for digest in (lock.base.config_digest, *(blob.digest for blob in lock.base.layers))
        }
    names, damaged = names_of(lock), []
    for sha256 in sorted(names if files_from == "store" else names.keys() & without_upstream):
        if store.has(sha256) and not _taken(store, fresh, sha256):
            damaged.append(damage_of(sha256, names[sha256], store))
    if damaged:
        raise Problems(damaged, Exit.FILE)


def _taken(store: Store, fresh: Store, sha256: str) -> bool:
    """Link a blob into the other store, where that file system allows it; False where it is not what its name says."""
    with store.path(sha256).open("rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != sha256:
            return False
    target = fresh.path(sha256)
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        os.link(store.path(sha256), target)
    fresh.add(store.path(sha256), sha256)
    return True


def keep_rootfs(chosen: ChosenLock, image_digest: str | None, rootfs_digest: str) -> None:
    """Write a rootfs digest into the lock file, beside the image digest that it belongs to.

    `image_digest` is None for an image that Docker built: that is only held against what is there. Raises `ImageDiffers`.
    """
    built = locks.read(chosen.path).built
    if built is None or built.lock != chosen.lock.digest:
        return
    if built.rootfs_digest not in (None, rootfs_digest):
        why = f"recorded {built.rootfs_digest}, found {rootfs_digest}"
        hint = "`envlock reproduce --via both` names the files that differ"
        raise ImageDiffers("the files are not those that this lock gave before", where=str(chosen.path), why=why, hint=hint)
    if image_digest == built.image_digest:
        replace(chosen, built=built).record(built.model_copy(update={"rootfs_digest": rootfs_digest}))
