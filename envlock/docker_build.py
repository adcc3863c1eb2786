"""An image of a lock made by Docker itself: the rendered Dockerfile and its context, built with BuildKit through the engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envlock import dockerfile
from envlock.build import require_platform
from envlock.bundle import Bundle, open_bundle
from envlock.clock import Clock
from envlock.context import UNREAD, base_image, write_context
from envlock.errors import BuildFailed
from envlock.lock import ImageBase, Lock
from envlock.makers import open_foundation
from envlock.progress import Progress
from envlock.store import Store

if TYPE_CHECKING:
    from envlock.engine import Engine
    from envlock.locking import ChosenLock

_NOT_SENT = frozenset({*UNREAD, ".dockerignore"})
_WAYS = {"body": "through the engine's API", "loopback": "fetched by the engine over loopback", "client": "sent by the Docker client"}


@dataclass(frozen=True, slots=True)
class DockerBuilt:
    """An image that Docker built. Its id depends on the engine; its file tree does not. `context` says how the context got there."""

    id: str
    lock: Lock
    tags: tuple[str, ...]
    log: Path
    seconds: float
    context: str

    def as_json(self) -> dict[str, Any]:
        """What `build --via dockerfile --json` prints."""
        facts = {"image": self.tags[0], "tags": list(self.tags), "id": self.id, "lock_digest": self.lock.digest}
        return {**facts, "context": self.context, "log": str(self.log), "seconds": {"total": round(self.seconds, 2)}}

    def summary(self) -> str:
        """What people read after `envlock build --via dockerfile`."""
        lines = [f"{self.tags[0]}  built from its Dockerfile, {self.seconds:.1f} s", f"id in this engine {self.id}"]
        lines += [f"lock digest       {self.lock.digest}", f"context           {_WAYS[self.context]}"]
        return "\n".join([*lines, f"log               {self.log}"])


def docker_tag(lock: Lock) -> str:
    """The name of the image that Docker builds, beside the one that envlock assembles."""
    return f"{lock.name}:{lock.short_digest}-dockerfile"


def build_with_docker(
    chosen: ChosenLock, engine: Engine, store: Store, progress: Progress, tags: Sequence[str], log: Path, *, from_cache: bool = True
) -> DockerBuilt:
    """Build the Dockerfile of a lock from its own context, RUN steps without network, and tag the image.

    All that the steps print goes to `log`. Without `from_cache` every step runs, whatever the engine has built before. Raises
    `BuildFailed` with the end of the log, and what writing the context raises.
    """
    from envlock.engine import BuildContext

    lock, clock = chosen.lock, Clock()
    require_platform(lock, engine)
    bundle = open_bundle(lock.shipped, store)
    log.parent.mkdir(parents=True, exist_ok=True)
    with clock.step("total"), store.scratch() as scratch, log.open("wb") as stream:
        folder = scratch / "context"
        write_context(chosen, bundle, store, folder, lambda: engine, progress)
        with _base(lock, bundle, engine, store, progress) as base:
            text = _starting_from(dockerfile.render(lock, bundle), lock, base)
            try:
                built = engine.build(BuildContext(folder, text, _NOT_SENT), tags[0], progress, stream, from_cache=from_cache)
            except BuildFailed as error:
                raise BuildFailed(error.what, where=error.where, why=error.why, hint=f"{log} has all that its steps printed") from None
        for tag in tags[1:]:
            engine.tag(built.id, tag)
    return DockerBuilt(built.id, lock, tuple(tags), log, clock.seconds["total"], built.context)


@contextmanager
def _base(lock: Lock, bundle: Bundle, engine: Engine, store: Store, progress: Progress) -> Iterator[str]:
    """The base in the engine, from the store, under a name of its own for the time of a build; empty where there is none to start from.

    BuildKit looks up no registry without a session, and the registry may no longer have it.
    """
    from envlock.engine import temporary_name

    if not isinstance(lock.base, ImageBase):
        yield ""
        return
    tag = temporary_name()
    with open_foundation(lock, bundle, lambda: engine, store, progress) as foundation:
        engine.load(base_image(lock.base, lock.stack.platform, foundation), (tag,), foundation.open, progress)
        try:
            yield tag
        finally:
            engine.untag(tag)


def _starting_from(text: bytes, lock: Lock, base: str) -> bytes:
    """The Dockerfile with the name that its base has in this engine."""
    if not base:
        return text
    return text.replace(f"\nFROM {dockerfile.base_reference(lock)}\n".encode(), f"\nFROM {base}\n".encode(), 1)
