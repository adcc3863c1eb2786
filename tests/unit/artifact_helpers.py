"""A small artifact, made without an engine: a lock, the layers of its image, and the store with its files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from layer_helpers import file, folder, symlink, written
from sample_locks import cpu_lock
from wheel_helpers import make_wheel

from envlock import bundle
from envlock.artifact import Choices, Pinned, Subject, pin
from envlock.config import image_settings
from envlock.engine import Engine
from envlock.image import Image, make_image
from envlock.layers import Layer
from envlock.lock import Lock
from envlock.progress import Silent
from envlock.spec import read_spec
from envlock.store import Store

SITE = "opt/venv/lib/python3.11/site-packages"
METADATA = "Metadata-Version: 2.4\nName: {}\nVersion: 1\n{}\n"
DEP5 = (
    "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\nFiles: *\nLicense: GPL-2+\n\nFiles: b\nLicense: Expat\n"
)
SPEC = """\
name: cpu-sample
stack: {torch: "2.13.0"}
paper:
  title: Bits & pieces_100%
  authors:
    - {given: Ada, family: Lovelace, orcid: 0000-0002-1825-0097, affiliation: Analytical Engines}
    - {given: Łukasz, family: Müller}
  licence: Apache-2.0
  doi: 10.1000/xyz
  artifact_doi: 10.5281/zenodo.1
  venue: Journal of Tests
  year: 2026
  keywords: [bits]
"""


def layer_tars() -> tuple[bytes, ...]:
    """A base with Debian's documentation, a layer of wheels, the runtime."""
    base = written(
        file("etc/os-release", b"ID=debian\n"),
        file("usr/share/doc/base-files/copyright", DEP5.encode()),
        symlink("usr/share/doc/python3", "base-files"),
        folder("usr/share/doc/base-files"),
    )
    wheels = written(
        file(f"{SITE}/torch-1.dist-info/METADATA", METADATA.format("torch", "License-Expression: BSD-3-Clause").encode()),
        file(f"{SITE}/nvidia.dist-info/METADATA", METADATA.format("nvidia-nvtx-cu12", "License: NVIDIA Proprietary Software").encode()),
        file(f"{SITE}/torch/ballast", bytes(range(256)) * 3000),
    )
    return base, wheels, written(file("opt/envlock/lock.json", b"{}"))


@dataclass
class Small:
    """Everything that pinning asks for. `opened` notes the layers that were asked of their maker."""

    lock: Lock
    image: Image
    store: Store
    spec: Path
    tars: dict[str, bytes]
    opened: list[str] = field(default_factory=list)
    fails_at: str = ""

    @property
    def subject(self) -> Subject:
        return Subject(self.lock, self.image, self.spec)

    @contextmanager
    def open_layers(self, *_: Any) -> Iterator[Any]:
        yield self._open

    def _open(self, layer: Layer) -> BinaryIO:
        import io

        if layer.holds == self.fails_at:
            raise KeyboardInterrupt
        self.opened.append(layer.holds)
        return io.BytesIO(self.tars[layer.diff_id])

    def pinned(self, target: Path, **choices: Any) -> Pinned:
        """Write the artifact, with all wheels in it unless it is chosen otherwise."""
        engine: Engine = None  # type: ignore[assignment]  # nothing of it is asked for
        return pin(self.subject, replace(Choices(), **choices), target, engine, self.store, Silent())


def make_small(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Small:
    store = Store(folder / "store")
    bundle.keep_bundle(store)
    wheels = []
    for name in ("torch", "nvidia-nvtx-cu12", "installer"):
        wheel = make_wheel(folder, name.replace("-", "_"), {f"{name.replace('-', '_')}.py": f"NAME = {name!r}\n"})
        store.add(folder / wheel.file, wheel.sha256)
        wheels.append(wheel.model_copy(update={"name": name}))
    spec = folder / "envlock.yaml"
    spec.write_text(SPEC)
    lock = cpu_lock(spec=read_spec(spec).digest, shipped=bundle.own_shipped(), wheels=tuple(wheels[:2]), installer=wheels[2])
    tars = {"sha256:" + hashlib.sha256(tar).hexdigest(): tar for tar in layer_tars()}
    names = ("Debian bookworm, 2 packages", "2 wheels", "self-test, start-up hook, lock")
    layers = [Layer(digest, len(tar), name) for (digest, tar), name in zip(tars.items(), names, strict=True)]
    small = Small(lock, make_image(layers, image_settings(lock)), store, spec, tars)
    monkeypatch.setattr("envlock.artifact.writing.open_layers", small.open_layers)
    return small
