"""Layers that were written on a guess count where the guess was right, and nowhere else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from layer_helpers import file

from envlock.layers.ahead import Ahead
from envlock.layers.assembly import Job, assemble
from envlock.layers.canonical import Entry, Plan, plan_layer
from envlock.layers.tree import Node, Tree


def plan(content: bytes = b"content", mtime: int = 5) -> Plan:
    return plan_layer([file("opt/a", content)], Tree({"opt": Node("directory", 0o755, 0, 0, mtime)}))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "0.tar"


def wait_for(target: Path) -> None:
    """Until the layer is begun."""
    for _ in range(3000):
        if target.exists():
            return
        time.sleep(0.01)
    raise AssertionError("nothing was written")


def test_a_right_guess_is_used_and_the_layer_is_what_it_would_be(target: Path) -> None:
    ahead = Ahead(lambda: [Job("a", plan, target)])
    wait_for(target)
    before = target.stat().st_ino
    (layer,) = assemble([Job("a", plan, target)], ahead.written)
    ahead.stop()
    (made,) = assemble([Job("a", plan, target.with_name("other"))])
    assert layer == made
    assert target.stat().st_ino == before
    assert target.read_bytes() == target.with_name("other").read_bytes()


@pytest.mark.parametrize("guess", [plan(mtime=6), plan(b"other length")], ids=["folder below", "size"])
def test_a_wrong_guess_is_written_anew(guess: Plan, target: Path) -> None:
    ahead = Ahead(lambda: [Job("a", lambda: guess, target)])
    wait_for(target)
    (layer,) = assemble([Job("a", plan, target)], ahead.written)
    ahead.stop()
    (made,) = assemble([Job("a", plan, target.with_name("other"))])
    assert layer == made
    assert target.read_bytes() == target.with_name("other").read_bytes()


def test_a_guess_that_fails_is_nobodys_fault(target: Path) -> None:
    broken = plan_layer([Entry("opt/a", "file", size=9, open=file("x", b"short").open)])
    ahead = Ahead(lambda: [Job("a", lambda: broken, target)])
    wait_for(target)
    (layer,) = assemble([Job("a", plan, target)], ahead.written)
    ahead.stop()
    assert layer.size == target.stat().st_size == plan().size


def test_what_was_not_begun_is_left_to_who_needs_it(target: Path) -> None:
    """And is not begun afterwards, when the file is another's."""
    opened, asked = threading.Event(), threading.Event()

    def late() -> Iterator[Job]:
        opened.set()
        assert asked.wait(30)
        yield Job("a", lambda: plan(b"another layer"), target)

    ahead = Ahead(late)
    assert opened.wait(30)
    (layer,) = assemble([Job("a", plan, target)], ahead.written)
    asked.set()
    ahead._pool.shutdown()
    assert target.stat().st_size == layer.size == plan().size


def test_stopped_it_ends_soon(target: Path) -> None:
    started = threading.Event()

    class Endless:
        def __enter__(self) -> Endless:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def read(self, size: int) -> bytes:
            started.set()
            return bytes(size)

    endless = plan_layer([Entry("a", "file", size=1 << 50, open=Endless)])  # type: ignore[arg-type]
    ahead = Ahead(lambda: [Job("a", lambda: endless, target)])
    assert started.wait(30)
    ahead.stop()
