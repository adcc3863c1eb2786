"""Engines, for real: images in and out, containers, and what happens when something goes wrong."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator

import pytest
from conftest import SETTINGS, Sample

from envlock.engine import Engine
from envlock.errors import BuildFailed, EnvlockError, ImageMissing
from envlock.progress import Silent

TAG = "envlock-test-engine:sample"


@pytest.fixture
def loaded(any_engine: Engine, sample: Sample) -> Iterator[Engine]:
    any_engine.load(sample.image, [TAG], sample.open_layer, Silent())
    yield any_engine
    any_engine.untag(TAG)


def test_an_image_is_the_same_on_every_engine(loaded: Engine, sample: Sample) -> None:
    image = loaded.image(TAG)
    assert image is not None
    assert image.ours
    assert image.digest == sample.image.digest
    assert image.manifest_digest == sample.image.manifest_digest
    assert image.diff_ids == tuple(layer.diff_id for layer in sample.image.layers)
    assert TAG in image.tags
    assert image.environment == SETTINGS.environment
    assert image.labels == SETTINGS.labels
    assert image.created == SETTINGS.created
    assert image.platform == SETTINGS.platform
    assert (image.workdir, image.command, image.user) == ("/data", ("cat", "one"), "")


def test_an_image_is_sent_once(loaded: Engine, sample: Sample) -> None:
    again = loaded.load(sample.image, [TAG], sample.open_layer, Silent())
    assert (again.sent, again.bytes_sent) == ((), 0)
    assert again.reused == tuple(layer.diff_id for layer in sample.image.layers)


def test_it_runs(loaded: Engine) -> None:
    with loaded.container(TAG, ["sh", "-c", "cat one; echo no >&2; exit 3"]) as container:
        container.start()
        printed = list(container.output(timeout=60))
        assert container.wait() == 3
    assert b"".join(piece.data for piece in printed if piece.stream == "stdout") == b"1"
    assert b"".join(piece.data for piece in printed if piece.stream == "stderr") == b"no\n"
