"""Workshop: a base in an engine, and containers of it with no network, where its own Python makes what only it can make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING

from envlock.errors import HostNotReady
from envlock.image import OpenLayer, Settings, make_image
from envlock.progress import Silent

if TYPE_CHECKING:
    from envlock.engine import Container, Engine
    from envlock.layers import Layer

WAIT = ("sleep", "infinity")


@contextmanager
def open_workshop(
    engine: Engine, layers: Iterable[Layer], open_layer: OpenLayer, platform: str, path: str
) -> Iterator[Callable[[], AbstractContextManager[Container]]]:
    """Load the base's layers as an image for the time of a `with` block; the value starts a fresh container of it on each call.

    `path` is the PATH of the base. The image has a name of its own, so that builds at the same time do not take it from each other.
    Raises what the engine's `load` and `container` raise.
    """
    from envlock.engine import temporary_name

    image = make_image(tuple(layers), Settings(platform, 0, {"PATH": path}, {}, command=WAIT))
    tag = temporary_name()

    @contextmanager
    def container() -> Iterator[Container]:
        with engine.container(tag, WAIT) as made:
            made.start()
            yield made

    try:
        engine.load(image, (tag,), open_layer, Silent())
        yield container
    finally:
        with suppress(HostNotReady):  # a later load sweeps what cannot be removed now
            engine.untag(tag)
