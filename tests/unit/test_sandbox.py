"""Pieces to streams and back, steps that fail, contents that wait on disk."""

from __future__ import annotations

import io
from dataclasses import dataclass

import pytest
from layer_helpers import file, folder, symlink, tree

from envlock.errors import BuildFailed
from envlock.layers import Layer
from envlock.layers.canonical import write_layer
from envlock.layers.parts import spooled, stored_files
from envlock.layers.recipes import folders_below, recall_layer, recipe_key, remember_layer
from envlock.layers.sandbox import pieces_of, run_step, stream_of
from envlock.store import Store


@dataclass
class Ended:
    status: int
    output: bytes


class Container:
    def __init__(self, ended: Ended) -> None:
        self.ended = ended

    def exec(self, command, *, environment=None):
        return self.ended


def test_pieces_make_one_stream():
    assert stream_of([b"ab", b"", b"c" * 3_000_000, b"d"]).read() == b"ab" + b"c" * 3_000_000 + b"d"
    assert stream_of([]).read() == b""
    assert b"".join(pieces_of(io.BytesIO(b"x" * 3_000_000))) == b"x" * 3_000_000


def test_a_step_that_fails_says_what_it_printed_last():
    run_step(Container(Ended(0, b"fine")), ["true"], "a step", "hint")
    with pytest.raises(BuildFailed) as refused:
        run_step(Container(Ended(3, b"".join(b"line %d\n" % n for n in range(50)))), ["x"], "a step", "try this")
    assert refused.value.what == "a step failed in the container"
    assert refused.value.why.splitlines() == [f"line {n}" for n in range(30, 50)]
    assert refused.value.hint == "try this"
    with pytest.raises(BuildFailed) as refused:
        run_step(Container(Ended(137, b"")), ["x"], "a step", "try this")
    assert refused.value.why == "exit status 137"


def test_contents_can_wait_on_disk(tmp_path):
    with (tmp_path / "content").open("w+b") as content:
        entries = [spooled(file(name, name.encode() * 1000), content) for name in ("a", "b")]
        assert [entry.open().read() for entry in reversed(entries)] == [b"b" * 1000, b"a" * 1000]


def test_files_of_a_stored_layer_can_be_read_in_any_order(tmp_path):
    with (tmp_path / "layer.tar").open("wb") as target:
        write_layer([file("d/a", b"a" * 600), file("d/ü" + "x" * 150, b"b", mode=0o755), symlink("l", "d")], target, "test")
    first, second = stored_files(tmp_path / "layer.tar")
    assert (first.path, first.size, second.path, second.mode) == ("d/a", 600, "d/ü" + "x" * 150, 0o755)
    with second.open() as later, first.open() as earlier:
        assert (later.read(), earlier.read()) == (b"b", b"a" * 600)


def test_what_a_recipe_gave_is_remembered(tmp_path):
    store = Store(tmp_path)
    layer = Layer("sha256:" + "a" * 64, 10, "some wheels")
    key = recipe_key("wheels", wheels=["1"])
    assert recall_layer(store, key, "some wheels") is None
    remember_layer(store, key, layer)
    assert recall_layer(store, key, "some wheels") == layer
    assert recall_layer(store, recipe_key("wheels", wheels=["2"]), "x") is None
    assert recipe_key("venv", wheels=["1"]) != key


def test_a_recipe_sees_the_folders_above_and_no_more():
    below = tree(folder("opt", mtime=7), folder("opt/venv"), file("opt/other"), symlink("lib", "usr/lib"))
    assert [row[0] for row in folders_below(["opt/venv/bin", "lib/x"], below)] == ["lib", "opt", "opt/venv"]
