"""Images into an engine through `docker load`, without the layers that it holds; all of an image or nothing of it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envlock.engine.images import EngineImage
from envlock.engine.owner import LABEL, stamp
from envlock.errors import BuildFailed, EngineRefused, EnvlockError, ImageMissing, NoEngine
from envlock.image import Finish, Image, OpenLayer, Settings, archive, make_image
from envlock.progress import Advance, Progress

if TYPE_CHECKING:
    from envlock.engine.client import Engine
    from envlock.layers import Layer

INCOMING = "envlock-incoming"
# Pauses before each try to send everything. A containerd store clears up in the background after an image is removed, and can take away
# what it has just been sent again.
_AGAIN = {"graph": (0.0,), "containerd": (0.0, 1.0)}
BATCH = 128 * 10**6  # bytes; below this a load's own cost (0.1 s) outweighs what overlapping gains
LATE = 60  # seconds that an interrupted run waits for the engine to finish an archive that it has whole


@dataclass(frozen=True, slots=True)
class Loaded:
    """An image in the engine: its id there, which layers were sent and which the engine had (diffIDs), and the bytes sent."""

    image: Image
    id: str
    sent: tuple[str, ...]
    reused: tuple[str, ...]
    bytes_sent: int


def temporary_name() -> str:
    """A name for an image that is needed for a while: no other process has it, and a later load sweeps what a killed one left."""
    return f"{INCOMING}:{stamp()}-{secrets.token_hex(4)}"


def held_layers(store: str, images: Iterable[EngineImage], diff_ids: Sequence[str]) -> frozenset[str]:
    """Which of an image's layers need not be sent.

    On a graph driver a layer is known by the chain below it: the longest common beginning with an image that is there. A containerd
    store needs every blob that the manifest names: those of an image that is there exactly as envlock makes it, uncompressed. (A
    store that unpacked a compressed twin of a layer would take an archive without it, and then hold an image that cannot be saved.)
    """
    if store == "containerd":
        held = {diff_id for image in images if image.made for diff_id in image.diff_ids}
        return frozenset(diff_ids) & held
    return frozenset(diff_ids[: max((_common(diff_ids, image.diff_ids) for image in images), default=0)])


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def load(engine: Engine, layers: Iterable[Layer], finish: Finish, tags: Sequence[str], open_layer: OpenLayer, progress: Progress) -> Loaded:
    """Load and tag the image that `finish` makes of the layers, while they are still being made.

    Layers go in as they come, each batch as a temporary image of all layers so far: the engine unpacks one batch while the next is
    assembled, and unpacks it from memory, where an archive of the whole image has gone to disk and back by then. Measured with
    2.6 GB in six layers on two cores: 20 s in batches and 30 s in one archive on Docker 20.10, 17 s and 24 s on 26.1, 33 s and 34 s
    on 26.1 with a containerd store (on a host busy with other things the difference goes down to nothing). Where the engine
    turns out not to have what it seemed to have, everything is sent.
    """
    arrival = _Arrival(engine, open_layer)
    size = sum(layer.size for layer in layers if not arrival.holds(layer, layers)) if isinstance(layers, Sequence) else None
    try:
        with progress.track("load into the engine", size) as advance:
            for layer in layers:
                arrival.take(layer, advance)
            image = finish(tuple(arrival.layers))
            identity = arrival.settle(image, advance)
        _tag_all(engine, identity, tags)
    finally:
        arrival.clear()
    reused = [layer.diff_id for layer in image.layers if layer.diff_id not in arrival.sent]
    return Loaded(image, identity, tuple(arrival.sent), tuple(reused), arrival.bytes_sent)


class _Arrival:
    """One image on its way in: what was taken so far, what of it was sent, and the temporary tags that hold it."""

    def __init__(self, engine: Engine, open_layer: OpenLayer) -> None:
        self.layers: list[Layer] = []
        self.sent: dict[str, None] = {}
        self.bytes_sent = 0
        self._engine = engine
        self._open_layer = open_layer
        self._there = engine.images()
        self._pending: list[Layer] = []
        self._refused = False
        self._name = temporary_name()
        self._tags: list[str] = []
        self._unanswered: str | None = None

    def holds(self, layer: Layer, among: Sequence[Layer]) -> bool:
        """Whether the engine had this layer of an image when the load began."""
        return layer.diff_id in held_layers(self._engine.store, self._there, [one.diff_id for one in among])

    def take(self, layer: Layer, advance: Advance) -> None:
        """Take the next layer; a full batch is sent at once.

        A containerd store gets the newest layer with the next batch, or with the image itself: it unpacks only what is new, and does
        not note for an image without new layers that the unpacked files are needed, so that they would go with the temporary image.
        """
        if self._engine.store == "containerd":
            self._flush(advance)
        self.layers.append(layer)
        if layer.diff_id not in self.sent and not self.holds(layer, self.layers):
            self._pending.append(layer)
        if self._engine.store == "graph":
            self._flush(advance)

    def _flush(self, advance: Advance) -> None:
        if self._refused or sum(layer.size for layer in self._pending) < BATCH:
            return
        beginning = make_image(self.layers, Settings(self._engine.platform, 0, {}, {LABEL: self._name}))
        try:
            self._send(beginning, advance)
        except EngineRefused:
            self._refused = True  # what the engine seemed to hold is not all there; the whole image goes in at the end

    def settle(self, image: Image, advance: Advance) -> str:
        """See to it that the engine holds the image, whole; gives its id there."""
        identity = image.manifest_digest if self._engine.store == "containerd" else image.digest
        if any(there.id == identity for there in self._there) and self._stands(identity):
            return identity
        if not self._refused and len(self._pending) < len(image.layers):
            try:
                self._send(image, advance)
                if self._stands(identity):
                    return identity
            except EngineRefused:
                pass  # as in `_flush`
        why = ""
        for pause in _AGAIN[self._engine.store]:
            time.sleep(pause)
            self.clear()
            self.sent.clear()
            self._pending = list(image.layers)
            try:
                self._send(image, advance)
                if self._stands(identity):
                    return identity
                why = "what it made of the image cannot be started"
            except EngineRefused as error:
                why = error.why
        hint = "nothing of the image was left in the engine; its own log says more"
        raise BuildFailed("the engine does not take the image", where=str(self._engine.endpoint), why=why, hint=hint)

    def clear(self) -> None:
        """Take the temporary tags away, and with them what nothing else holds.

        An engine that has an archive whole loads and tags it, whether or not anybody still listens: after an interrupt that tag is
        waited for, or the image would appear when all is cleared.
        """
        with suppress(NoEngine, ImageMissing, EngineRefused):  # a later run sweeps what cannot be removed now
            if self._unanswered is not None:
                _wait_for(self._engine, self._unanswered)
        while self._tags:
            with suppress(NoEngine, ImageMissing, EngineRefused):
                self._engine.untag(self._tags.pop())

    def _send(self, image: Image, advance: Advance) -> None:
        """Send an image under a temporary tag, of its layers only those that are pending."""
        sent = {layer.diff_id: None for layer in self._pending}
        leave_out = frozenset(layer.diff_id for layer in image.layers) - sent.keys()
        tag = f"{self._name}-{len(self._tags)}"
        self._tags.append(tag)
        try:
            self._engine.load_archive(self._counted(archive(image, [tag], self._open_layer, leave_out), advance, tag))
        except EnvlockError:
            self._unanswered = None  # it answered that it will not, or is gone
            raise
        self._unanswered = None
        self.sent |= sent
        self._pending = []

    def _counted(self, pieces: Iterable[bytes], advance: Advance, tag: str) -> Iterator[bytes]:
        for piece in pieces:
            self.bytes_sent += len(piece)
            advance(len(piece))
            yield piece
        self._unanswered = tag

    def _stands(self, identity: str) -> bool:
        """Whether a container can be made of the image, which needs every layer, and what lent its layers to it is still there."""
        try:
            with self._engine.container(identity, ["none"]):
                pass
        except (EngineRefused, ImageMissing):
            return False
        if self._engine.store != "containerd":
            return True
        present = self._engine.image_ids()
        lent = {diff_id for image in self._there if image.made and image.id in present for diff_id in image.diff_ids}
        return all(layer.diff_id in lent or layer.diff_id in self.sent for layer in self.layers)


def _wait_for(engine: Engine, tag: str) -> None:
    deadline = time.monotonic() + LATE
    while engine.image(tag) is None and time.monotonic() < deadline:
        time.sleep(0.1)


def _tag_all(engine: Engine, identity: str, tags: Sequence[str]) -> None:
    """Set all tags, or leave all as they were."""
    before = [(tag, engine.image(tag)) for tag in tags]
    done: list[tuple[str, EngineImage | None]] = []
    try:
        for tag, old in before:
            engine.tag(identity, tag)
            done.append((tag, old))
    except EnvlockError:
        for tag, old in done:
            with suppress(EnvlockError):
                engine.untag(tag) if old is None else engine.tag(old.id, tag)
        raise
