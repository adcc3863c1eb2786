"""A rootless engine gives the same image as any other, and says what it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import rootless
from tiny import Tiny, envlock, result, said

from envlock.engine import Engine, connect
from envlock.layers.sandbox import stream_of
from envlock.rootfs import read_rootfs

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def rootless_engine() -> Iterator[Engine]:
    reason = rootless.why_not()
    if reason:
        pytest.skip(reason)
    with rootless.rootless_engine() as url, connect(url) as engine:
        yield engine


def test_it_gives_the_same_image_and_the_same_files(tiny_built: tuple[Tiny, Any], engine: Engine, rootless_engine: Engine) -> None:
    tiny, printed = tiny_built
    where = {"DOCKER_HOST": str(rootless_engine.endpoint.url)}
    again = result(envlock("build", tiny.lock_path, "--store", tiny.store.root, "--json", env=where))
    assert again["image_digest"] == printed["image_digest"]
    assert {layer["state"] for layer in again["layers"]} == {"sent"}
    trees = [read_rootfs(stream_of(one.export(tiny.tag)), tiny.tag) for one in (engine, rootless_engine)]
    assert trees[0].digest == trees[1].digest


def test_doctor_says_that_it_is_rootless(rootless_engine: Engine) -> None:
    done = envlock("doctor", "--json", env={"DOCKER_HOST": str(rootless_engine.endpoint.url)})
    said(done, 0)
    assert json.loads(done.stdout)["host"]["runtime"]["rootless"] is True
