"""The layers of one lock, made on demand: those that the engine holds are only named, the others are written when they are due."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, partial
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from threading import Event
from threading import Lock as Mutex
from typing import TYPE_CHECKING, BinaryIO, cast

from envlock import dockerfile
from envlock.bundle import Bundle
from envlock.clock import Clock
from envlock.damage import require_whole
from envlock.errors import BuildFailed, EnvlockError, HostNotReady, Problems, exit_code_of
from envlock.fetch import fetch_all
from envlock.foundation import Foundation, OpenContainer
from envlock.layers import Layer
from envlock.layers.ahead import Ahead
from envlock.layers.assembly import Disposable, Job, assemble
from envlock.layers.bytecode import compile_modules, compile_wheels, compiler, modules_of, python_build
from envlock.layers.canonical import ASSEMBLED, Plan, Tree
from envlock.layers.entry import ancestors
from envlock.layers.recipes import kept_layer, recall_layer, remember_layer
from envlock.layers.runtime import plan_runtime, shipped_modules
from envlock.layers.tree import Node
from envlock.layers.venv import HOLDS as VENV_HOLDS
from envlock.layers.venv import plan_venv, venv_recipe
from envlock.layers.wheelfile import VENV, InstalledWheel, site_packages
from envlock.layers.wheels import WheelGroup, open_groups, plan_wheels, wheel_groups, wheel_recipes
from envlock.lock import DebianBase, Lock
from envlock.progress import Progress
from envlock.resolve.python import wheel_wanted
from envlock.store import Store

if TYPE_CHECKING:
    from envlock.engine import Engine

STEPS = "templates/steps"
UNPACKED = 2.6
"""How much larger wheels are unpacked, at most as seen (torch 2.5.1 with CUDA 12.4: 1.9)."""


class LayerMaker:
    """Makes the layers of a lock, in order, for one engine. A context manager: what it started ends with it.

    `folder` is scratch space for layers between assembly and sending; small layers are kept in the store by their digest.
    """

    def __init__(self, lock: Lock, bundle: Bundle, engine: Engine, store: Store, progress: Progress, folder: Path, clock: Clock) -> None:
        self._lock = lock
        self._bundle = bundle
        self._engine = engine
        self._store = store
        self._progress = progress
        self._folder = folder
        self._clock = clock
        self._steps = bundle.below(STEPS)
        self._foundation = open_foundation(lock, bundle, lambda: engine, store, progress)
        self._mutex = Mutex()
        self._written: dict[str, Path] = {}
        self._fetcher = ThreadPoolExecutor(1, thread_name_prefix="wheels")
        self._fetching: Future[None] | None = None
        self._stop_fetching = Event()
        self._ahead: Ahead | None = None

    def __enter__(self) -> LayerMaker:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_fetching.set()
        if self._ahead is not None:
            self._ahead.stop()
        self._fetcher.shutdown(cancel_futures=True)
        self._foundation.__exit__(None, None, None)

    def layers(self) -> Iterator[Layer]:
        """All layers from the lowest, each written by the time it is yielded unless the engine holds it.

        A layer that was made before must come out as it did then. Raises what its makers raise.
        """
        foundation, python = self._foundation, self._lock.stack.python
        if not foundation.is_at_hand:
            # A base takes longest to make: what the wheel layers will need comes meanwhile.
            self._fetching = self._fetcher.submit(self._fetch_wheels)
            if isinstance(self._lock.base, DebianBase):
                self._ahead = Ahead(partial(self._jobs_ahead, self._lock.base.date))
        with self._clock.step("base"):
            below = self._made_below(python)
        yield from below
        with self._clock.step("venv"):
            venv = self._venv
        yield venv
        known = self._known()
        held = self._held(known)
        due = [number for number, layer in enumerate(known) if layer is None or layer.diff_id not in held]
        fresh = self._assembled(due, known)
        for number, layer in enumerate(known):
            with self._clock.step("wheels"):
                made = next(fresh) if number in due else cast(Layer, layer)
            yield made
        with self._clock.step("apt"):
            apt = foundation.apt_layer
        if apt is not None and apt not in below:
            yield apt
        with self._clock.step("runtime"):
            runtime = self._runtime
        yield runtime

    def open(self, layer: Layer) -> BinaryIO:
        """The tar of one of the layers; a layer that is no longer at hand is made again."""
        if layer in self._foundation.base_layers:
            return self._foundation.open(layer)
        hex_digest = layer.diff_id.removeprefix("sha256:")
        if self._store.has(hex_digest):
            return self._store.path(hex_digest).open("rb")
        if layer.diff_id not in self._written:
            known = self._known()
            due = [number for number, other in enumerate(known) if other is not None and other.diff_id == layer.diff_id]
            for _ in self._assembled(due, known):
                pass
        return cast(BinaryIO, Disposable(self._written.pop(layer.diff_id)))

    @cached_property
    def _venv(self) -> Layer:
        python, steps, below = self._lock.stack.python, self._steps, self._tree

        def write(target: BinaryIO) -> Layer:
            with self._container() as container:
                return plan_venv(container, python, steps, below).write(target, VENV_HOLDS)

        return kept_layer(self._store, venv_recipe(python, self._python_build, steps, below), VENV_HOLDS, write)

    @cached_property
    def _tree(self) -> Tree:
        """What lies below the virtual environment."""
        return self._foundation.tree_below(self._lock.stack.python)

    @cached_property
    def _below(self) -> Tree:
        """What lies below the wheels."""
        with self.open(self._venv) as stream:
            return self._tree.with_tar(stream, VENV_HOLDS)

    @cached_property
    def _runtime(self) -> Layer:
        return runtime_layer(self._lock, self._bundle, self._foundation, self._store, self._progress)

    @cached_property
    def _container(self) -> OpenContainer:
        return self._foundation.container(self._lock.stack.python)

    @cached_property
    def _python_build(self) -> str:
        return python_build(self._tree, self._lock.stack.python, self._foundation.path)

    @cached_property
    def _groups(self) -> tuple[WheelGroup, ...]:
        return wheel_groups(self._lock.wheels)

    @cached_property
    def _keys(self) -> tuple[str, ...]:
        made_by = compiler(self._python_build, self._steps)
        return wheel_recipes(self._groups, self._lock.stack.python, made_by, self._below)

    @cached_property
    def _installed(self) -> tuple[tuple[InstalledWheel, ...], ...]:
        _require_installer(self._lock)
        self._fetching = self._fetching or self._fetcher.submit(self._fetch_wheels)
        self._fetching.result()
        return self._opened(self._below)

    def _opened(self, below: Tree) -> tuple[tuple[InstalledWheel, ...], ...]:
        paths = {wheel.sha256: self._store.path(wheel.sha256) for wheel in self._lock.wheels}
        return open_groups(self._groups, paths, self._lock.stack.python, below)

    def _made_below(self, python: str) -> tuple[Layer, ...]:
        """The layers below the environment; what could not be fetched for them is told together with the wheels that could not."""
        try:
            return self._foundation.below(python)
        except EnvlockError as error:
            other = self._fetching.exception() if self._fetching is not None else None
            if isinstance(other, EnvlockError):
                raise Problems((*error.findings, *other.findings), exit_code_of(error)) from None
            raise

    def _fetch_wheels(self) -> None:
        with self._clock.step("fetch"):
            wanted = [wheel_wanted(wheel) for wheel in self._lock.wheels]
            fetch_all(wanted, self._store, self._progress, stop=self._stop_fetching)

    def _known(self) -> list[Layer | None]:
        """The wheel layers, as far as they were made before."""
        return [recall_layer(self._store, key, group.holds) for key, group in zip(self._keys, self._groups, strict=True)]

    def _held(self, known: Sequence[Layer | None]) -> frozenset[str]:
        """What the engine holds of the layers up to the first that was never made."""
        below = [*self._foundation.below(self._lock.stack.python), self._venv, *takewhile(lambda layer: layer is not None, known)]
        return self._engine.held([layer.diff_id for layer in below if layer is not None])

    def _assembled(self, due: Sequence[int], known: Sequence[Layer | None]) -> Iterator[Layer]:
        """Write the wheel layers of these numbers, several at once, and yield each in order."""
        jobs = [self._job(number, partial(self._plan, number)) for number in due]
        if not jobs:
            return
        _ = self._installed  # fetched while nothing else waits, so that an interrupt can end it
        self._store.require_space(self._weight(due) - sum(job.target.stat().st_size for job in jobs if job.target.exists()))
        written = partial(assemble, jobs) if self._ahead is None else partial(assemble, jobs, self._ahead.written)
        for number, job, layer in zip(due, jobs, written(), strict=True):
            before = known[number]
            if before is not None and before.diff_id != layer.diff_id:
                why = f"{before.diff_id} before, {layer.diff_id} now, of the same inputs"
                hint = "report this as a fault of envlock, with the lock; `envlock store --verify` tells whether the store is damaged"
                raise BuildFailed(f"the layer with {layer.holds} came out differently", where=layer.holds, why=why, hint=hint)
            remember_layer(self._store, self._keys[number], layer)
            self._written[layer.diff_id] = job.target
            yield layer

    def _job(self, number: int, plan: Callable[[], Plan]) -> Job:
        return Job(self._groups[number].holds, plan, self._folder / f"{number}.tar")

    def _weight(self, numbers: Iterable[int]) -> int:
        """Bytes of these wheel layers, at most."""
        return int(UNPACKED * sum(wheel.size for number in numbers for wheel in self._groups[number].wheels))

    def _jobs_ahead(self, date: int) -> Iterator[Job]:
        """The layers that need nothing of the image's own Python, over what will most likely be below them."""
        _require_installer(self._lock)
        assert self._fetching is not None
        self._fetching.result()
        self._store.require_space(self._weight(range(len(self._groups))))
        below = _guessed_below(self._lock.stack.python, date)
        for number, wheels in enumerate(self._opened(below)):
            if not any(modules_of(wheel, self._lock.stack.python).entries for wheel in wheels):
                yield self._job(number, partial(plan_wheels, wheels, {}, below))

    def _plan(self, number: int) -> Plan:
        require_whole(self._groups[number].wheels, self._store)
        with self._mutex:
            installed, build, container = self._installed[number], self._python_build, self._container
        python = self._lock.stack.python
        bytecode = compile_wheels(installed, python, build, self._steps, self._store, container, self._progress)
        return plan_wheels(installed, bytecode, self._below)


def _guessed_below(python: str, date: int) -> Tree:
    """The folders that wheels lie in, as a Debian base of this date and a virtual environment on it have them."""
    site = site_packages(python)
    folders = {path: Node("directory", 0o755, 0, 0, ASSEMBLED) for path in (*ancestors(site), site, f"{VENV}/bin")}
    return Tree({**folders, "opt": Node("directory", 0o755, 0, 0, date)})


def open_foundation(lock: Lock, bundle: Bundle, open_engine: Callable[[], Engine], store: Store, progress: Progress) -> Foundation:
    """The foundation of a lock's image; a context manager."""
    return Foundation(lock.base, lock.apt, lock.stack.platform, bundle.below(STEPS), open_engine, store, progress)


def runtime_layer(lock: Lock, bundle: Bundle, foundation: Foundation, store: Store, progress: Progress) -> Layer:
    """The uppermost layer of a lock's image, in the store.

    Made anew each time: that takes less time than to look up all that it depends on. Its bytecode is kept.
    """
    python, steps, lib = lock.stack.python, bundle.below(STEPS), bundle.below("lib")
    build = python_build(foundation.tree_below(python), python, foundation.path)
    modules = shipped_modules(lock, lib)
    bytecode = compile_modules([modules], python, build, steps, store, lambda: foundation.container(python)(), progress)
    plan = plan_runtime(lock, lib, bytecode.get(modules.identity, ()), dockerfile.render(lock, bundle), store, foundation.tree)
    with store.incoming(what="runtime layer") as blob:
        return plan.write(blob, "self-test, start-up hook, lock")


def _require_installer(lock: Lock) -> None:
    """What is recorded of an installed wheel is the library's to say: raises `HostNotReady` unless it is the locked release."""
    here = version("installer")
    if here != lock.installer.version:
        why = f"the lock was made with {lock.installer.version}; another release may write other records"
        hint = f"pip install installer=={lock.installer.version}, or lock the spec again"
        raise HostNotReady(f"this envlock runs with installer {here}", where="installer", why=why, hint=hint)
