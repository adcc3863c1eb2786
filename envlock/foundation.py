"""Foundation: what an image stands on, the layers of its base and the Debian packages on top of them, and containers of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

from envlock.environment import SYSTEM_PATH
from envlock.layers import Layer
from envlock.layers.apt import apt_recipe, install_apt
from envlock.layers.apt import holds as apt_holds
from envlock.layers.base import bootstrap
from envlock.layers.blobs import open_blob, plain_layers
from envlock.layers.canonical import Tree
from envlock.layers.recipes import kept_layer, recall_layer, recipe_key
from envlock.lock import Apt, DebianBase, ImageBase
from envlock.progress import Progress
from envlock.resolve.apt import fetch_apt, urls_of_base
from envlock.resolve.baseimage import fetch_base
from envlock.spec import canonical_digest
from envlock.store import Store
from envlock.workshop import open_workshop

if TYPE_CHECKING:
    from envlock.engine import Container, Engine

OpenContainer = Callable[[], AbstractContextManager["Container"]]


class Foundation:
    """Makes base and apt layers on demand, kept in the store; a context manager, since its containers need an image in the engine.

    `steps` are the bundle's programs by name. The engine is asked for only where something must run in a container.
    """

    def __init__(
        self,
        base: DebianBase | ImageBase,
        apt: Apt | None,
        platform: str,
        steps: Mapping[str, bytes],
        open_engine: Callable[[], Engine],
        store: Store,
        progress: Progress,
    ) -> None:
        self._base = base
        self._apt = apt
        self._platform = platform
        self._steps = steps
        self._open_engine = open_engine
        self._store = store
        self._progress = progress
        self._started = ExitStack()

    def __enter__(self) -> Foundation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._started.close()

    @cached_property
    def base_layers(self) -> tuple[Layer, ...]:
        """The layers of the base, lowest first: bootstrapped from locked packages, or those of the image that it is."""
        base = self._base
        if isinstance(base, ImageBase):
            fetch_base(base, self._store, self._progress)
            return plain_layers(base.layers, base.reference, self._store, self._progress)
        return (debian_layer(base, self._store, self._progress),)

    @property
    def is_at_hand(self) -> bool:
        """Whether the base's layers are in the store already."""
        base = self._base
        if isinstance(base, ImageBase):
            return all(self._store.has(blob.digest.removeprefix("sha256:"), blob.size) for blob in base.layers)
        known = recall_layer(self._store, _recipe(base), "")
        return known is not None and self._store.has(known.diff_id.removeprefix("sha256:"), known.size)

    @cached_property
    def base_tree(self) -> Tree:
        """The file tree of the base."""
        tree = Tree()
        for layer in self.base_layers:
            with self.open(layer) as stream:
                tree = tree.with_tar(stream, layer.holds)
        return tree

    @cached_property
    def apt_layer(self) -> Layer | None:
        """The layer of the packages that the spec asks for; None where it asks for none."""
        apt = self._apt
        if apt is None:
            return None
        below = canonical_digest([layer.diff_id for layer in self.base_layers])

        def write(target: BinaryIO) -> Layer:
            self.fetch_apt(apt)
            with self._progress.track(f"installed {', '.join(apt.asked)}"):
                return install_apt(apt, self._steps, self.base_container, self.base_tree, self._store, target)

        return kept_layer(self._store, apt_recipe(apt, self._steps, below), apt_holds(apt), write)

    @cached_property
    def tree(self) -> Tree:
        """The file tree of base and packages."""
        if self.apt_layer is None:
            return self.base_tree
        with self.open(self.apt_layer) as stream:
            return self.base_tree.with_tar(stream, self.apt_layer.holds)

    def below(self, python: str) -> tuple[Layer, ...]:
        """The layers that go below the virtual environment: the base's, and the packages where Python comes with them."""
        if self.apt_layer is None or self._apt is None or not self._apt.brings_python(python):
            return self.base_layers
        return (*self.base_layers, self.apt_layer)

    def tree_below(self, python: str) -> Tree:
        """The file tree of those layers."""
        return self.base_tree if len(self.below(python)) == len(self.base_layers) else self.tree

    @property
    def path(self) -> str:
        """The PATH of the base."""
        environment = self._base.environment if isinstance(self._base, ImageBase) else {}
        return environment.get("PATH") or SYSTEM_PATH

    def open(self, layer: Layer) -> BinaryIO:
        """The tar of one of these layers."""
        if isinstance(self._base, ImageBase):
            for blob in self._base.layers:
                if blob.diff_id == layer.diff_id:
                    return open_blob(blob, self._store)
        return self._store.path(layer.diff_id.removeprefix("sha256:")).open("rb")

    @cached_property
    def base_container(self) -> OpenContainer:
        """Starts a container of the base, with no network."""
        return self._workshop(self.base_layers)

    def container(self, python: str) -> OpenContainer:
        """Starts a container that has Python, with no network."""
        return self.base_container if self.below(python) == self.base_layers else self._apt_container

    @cached_property
    def _apt_container(self) -> OpenContainer:
        assert self.apt_layer is not None
        return self._workshop((*self.base_layers, self.apt_layer))

    def fetch_apt(self, apt: Apt) -> None:
        """Bring the packages into the store."""
        urls: tuple[str, ...] = ()
        if isinstance(self._base, ImageBase) and not all(self._store.has(deb.sha256, deb.size) for deb in apt.debs):
            with self.base_container() as container:
                urls = urls_of_base(container)
        fetch_apt(apt.debs, self._base, self._platform, urls, self._store, self._progress)

    def _workshop(self, layers: tuple[Layer, ...]) -> OpenContainer:
        return self._started.enter_context(open_workshop(self._open_engine(), layers, self.open, self._platform, self.path))


def debian_layer(base: DebianBase, store: Store, progress: Progress) -> Layer:
    """The layer of a Debian base, in the store; bootstrapped from its locked packages unless it is there."""
    holds = f"Debian {base.suite}, {len(base.debs)} packages"
    return kept_layer(store, _recipe(base), holds, lambda target: bootstrap(base, store, progress, target))


def _recipe(base: DebianBase) -> str:
    return recipe_key("debian", suite=base.suite, date=base.date, debs=sorted(deb.sha256 for deb in base.debs))
