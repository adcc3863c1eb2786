"""Lock files on disk: where they stand, how they are made and kept, whether they still fit their spec."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from envlock import lock as locks
from envlock import yamlfile
from envlock.catalogue import load
from envlock.errors import Exit, FetchError, Finding, LockMissing, Problems
from envlock.lock import Built, ImageBase, Lock, LockFile
from envlock.outside import sources_of
from envlock.progress import Progress
from envlock.resolve.baseimage import moved_base
from envlock.resolve.inputs import resolve_base_of, resolve_on
from envlock.sources import hash_requirements, list_files
from envlock.spec import Spec, parse_spec, read_spec
from envlock.stack import BaseFacts, Solution, completed, located, located_problems, solve
from envlock.store import Store, write_atomically

if TYPE_CHECKING:
    from envlock.engine import Engine

SUFFIX = ".lock.yaml"


@dataclass(frozen=True, slots=True)
class ChosenLock:
    """A lock that a command works on: its content, its place, and the spec's folder where the command was given the spec."""

    path: Path
    lock: Lock
    built: Built | None
    spec_folder: Path | None = None

    def sibling(self, suffix: str) -> Path:
        """A file beside the lock that belongs to it: `cpu.lock.yaml` and `.Dockerfile` give `cpu.Dockerfile`."""
        return self.path.with_name(self.path.name.removesuffix(SUFFIX).removesuffix(".yaml").removesuffix(".json") + suffix)

    def record(self, built: Built) -> None:
        """Write what a build came out as into the lock file. A rootfs digest that is known of the same image stays."""
        if self.built is not None and self.built.image_digest == built.image_digest and built.rootfs_digest is None:
            built = built.model_copy(update={"rootfs_digest": self.built.rootfs_digest})
        if built != self.built:
            write_atomically(self.path, locks.dump(LockFile(lock=self.lock, built=built)))


@dataclass(frozen=True, slots=True)
class MadeLock:
    """What locking did."""

    lock: Lock
    findings: tuple[Finding, ...]
    changed: bool
    changes: tuple[str, ...]

    def summary(self, path: Path) -> str:
        """What people read after `envlock lock`."""
        lock = self.lock
        packed = sum(wheel.size for wheel in lock.wheels)
        counts = f"{len(lock.wheels)} wheels ({packed / 1e6:.0f} MB), {len(lock.debs)} Debian packages"
        state = "written" if self.changed else "unchanged"
        return "\n".join([f"{path}  {state}: {counts}", f"lock digest {lock.digest}", *(f"  {change}" for change in self.changes)])


def lock_path_of(spec_path: Path) -> Path:
    """Where the lock of a spec stands: in `lockfiles` beside the spec or beside its folder where there is one, else beside the spec."""
    name = spec_path.stem + SUFFIX
    folder = spec_path.absolute().parent
    for lockfiles in (folder / "lockfiles", folder.parent / "lockfiles"):
        if lockfiles.is_dir():
            return _shortest(lockfiles / name)
    return spec_path.parent / name


def _shortest(path: Path) -> Path:
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path


def solve_file(path: Path, facts: BaseFacts | None = None) -> tuple[Spec, Solution]:
    """A spec file and the stack that it asks for; `facts`: what its base says of itself.

    Raises `FileUnreadable`, or `Problems` with every complaint and its place in the file.
    """
    raw = yamlfile.read_bytes(path)
    spec = parse_spec(raw, path.name)
    document = yamlfile.parse_text(raw, path.name)
    try:
        solution = solve(spec, load(), facts)
    except Problems as error:
        raise located_problems(error, document) from None
    return spec, replace(solution, findings=located(solution.findings, document))


def lock_spec(
    spec_path: Path, path: Path, open_engine: Callable[[], Engine], store: Store, progress: Progress, *, upgrade: bool
) -> MadeLock:
    """Resolve a spec and write its lock. What an older lock pinned is kept where it still fits, unless `upgrade`."""
    spec, solution = solve_file(spec_path)
    before = locks.read(path) if path.exists() and not upgrade else None
    keep, folder = before.lock if before else None, spec_path.parent
    base = resolve_base_of(spec, solution, folder, store, progress, keep)
    if isinstance(base, ImageBase):
        # What the base's config says is known only now.
        spec, solution = solve_file(spec_path, BaseFacts.of_config(base.environment, base.facts))
    made = resolve_on(base, spec, solution, folder, open_engine, store, progress, keep)
    changed = before is None or before.lock.digest != made.digest
    if changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, locks.dump(LockFile(lock=made)))
    return MadeLock(made, solution.findings, changed, tuple(changes_between(before.lock, made)) if before else ())


def changes_between(old: Lock, new: Lock) -> Iterator[str]:
    """What moved between two locks of one spec, in package versions."""
    old_versions, new_versions = _versions(old), _versions(new)
    for name in sorted(old_versions.keys() | new_versions.keys()):
        was, now = old_versions.get(name), new_versions.get(name)
        if was != now:
            yield f"{name}: {was or 'absent'} → {now or 'gone'}"


def _versions(lock: Lock) -> dict[str, str]:
    return {wheel.name: wheel.version for wheel in lock.wheels} | {f"{deb.name} (Debian)": deb.version for deb in lock.debs}


def is_lock(path: Path) -> bool:
    """Whether a YAML or JSON file is a lock rather than a spec: a lock has `wheels` and `epoch`."""
    if path.name.endswith(SUFFIX):
        return True
    document = yamlfile.parse_text(yamlfile.read_bytes(path), path.name)
    return isinstance(document.data, dict) and {"wheels", "epoch"} <= document.data.keys()


def find_lock(path: Path) -> ChosenLock:
    """The lock at `path`, or the lock of the spec at `path`. Raises `LockMissing`, or `Problems` (exit 4) when it is stale."""
    if is_lock(path):
        found = locks.read(path)
        return ChosenLock(path, found.lock, found.built)
    lock_path = lock_path_of(path)
    found = _read_for(path, lock_path)
    stale = staleness(read_spec(path), path.parent, found.lock)
    if stale:
        hint = Finding("lock-stale", "info", f"lock it again with `envlock lock {path}`, or build the lock itself: {lock_path}")
        raise Problems([*stale, hint], Exit.LOCK)
    return ChosenLock(lock_path, found.lock, found.built, path.parent)


def _read_for(spec_path: Path, lock_path: Path) -> LockFile:
    """The lock file of a spec. Raises `LockMissing` where there is none."""
    if not lock_path.exists():
        raise LockMissing(f"{spec_path.name} has no lock", where=str(lock_path), hint=f"write it with `envlock lock {spec_path}`")
    return locks.read(lock_path)


def find_or_make_lock(path: Path, open_engine: Callable[[], Engine], store: Store, progress: Progress) -> ChosenLock:
    """As `find_lock`, but a spec without a lock is locked first."""
    if not is_lock(path) and not lock_path_of(path).exists():
        lock_path = lock_path_of(path)
        progress.say(f"{path.name} has no lock yet; writing {lock_path}")
        made = lock_spec(path, lock_path, open_engine, store, progress, upgrade=False)
        return ChosenLock(lock_path, made.lock, None, path.parent)
    return find_lock(path)


def staleness(spec: Spec, folder: Path, lock: Lock) -> list[Finding]:
    """What of a spec, its files or the catalogue changed since the lock was written. Needs no network."""
    found: list[Finding] = []

    def stale(what: str, why: str = "") -> None:
        found.append(Finding("lock-stale", "error", what, lock.name, why))

    if spec.digest != lock.spec:
        stale("the spec changed since it was locked", f"locked {lock.spec[:19]}…, now {spec.digest[:19]}…")
        return found
    for name, digest in hash_requirements(spec, folder).items():
        if lock.requirements.get(name) != digest:
            stale(f"{name} changed since it was locked")
    now, then = list_files(spec, folder), lock.files
    for path in sorted({f.to for f in set(now) ^ set(then)}):
        stale(f"what goes to {path} changed since it was locked")
    base = lock.base
    facts = BaseFacts.of_config(base.environment, base.facts) if isinstance(base, ImageBase) else None
    stack = completed(solve(spec, load(), facts).stack, lock.wheels)
    for field in type(stack).model_fields:
        was, is_now = getattr(lock.stack, field), getattr(stack, field)
        if was != is_now:
            stale(f"the catalogue now gives {field} {is_now} for this spec; {was} is locked")
    return found


def check_lock(spec_path: Path, lock_path: Path, store: Store, progress: Progress) -> tuple[Finding, ...]:
    """Whether a lock still holds against its spec, its files and the catalogue, whether its base's tag still means the same, and
    whether every outside source that a rebuild would need is there: everything that is not so. Raises `LockMissing`."""
    lock = _read_for(spec_path, lock_path).lock
    found = staleness(read_spec(spec_path), spec_path.parent, lock)
    if isinstance(lock.base, ImageBase):
        try:
            moved = moved_base(lock.base, lock.stack.platform, store, progress)
        except FetchError as error:
            moved = error.finding
        found += [moved] if moved is not None else []
    outside = [source.finding for source in sources_of(lock, store, progress)]
    return (*found, *(finding for finding in outside if finding is not None))
