"""Plans in, files out: in order, on several threads, nothing half-written left."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from layer_helpers import file

from envlock.errors import BuildFailed
from envlock.layers.assembly import Job, assemble
from envlock.layers.canonical import Entry, plan_layer


def jobs(folder: Path, *entries: Entry) -> list[Job]:
    return [Job(entry.path, lambda entry=entry: plan_layer([entry]), folder / entry.path) for entry in entries]


@pytest.mark.parametrize("workers", [1, 2, 5, None])
def test_layers_come_in_order_and_do_not_depend_on_the_workers(tmp_path, workers):
    work = jobs(tmp_path, *(file(f"f{n}", b"x" * (3_000_000 // (n + 1))) for n in range(6)))
    layers = list(assemble(work, workers=workers))
    assert [layer.holds for layer in layers] == [f"f{n}" for n in range(6)]
    assert [layer.diff_id for layer in layers] == [layer.diff_id for layer in assemble(work, workers=1)]
    assert [layer.size for layer in layers] == [job.target.stat().st_size for job in work]


def test_a_layer_is_given_out_before_the_next_is_done(tmp_path):
    gate = threading.Event()

    def slow() -> object:
        assert gate.wait(30)
        return file("slow").open()

    work = jobs(tmp_path, file("quick"), Entry("slow", "file", size=1, open=slow))
    layers = assemble(work, workers=2)
    assert next(layers).holds == "quick"
    gate.set()
    with pytest.raises(BuildFailed):
        next(layers)


def test_a_failure_stops_the_rest_and_leaves_no_half_file(tmp_path):
    broken = Entry("broken", "file", size=5, open=file("x", b"abc").open)
    work = jobs(tmp_path, file("good", b"x"), broken, *(file(f"later{n}", b"x" * 1000) for n in range(20)))
    made = []
    with pytest.raises(BuildFailed, match="changed while it was read"):
        made += assemble(work, workers=2)
    assert [path.name for path in tmp_path.iterdir()] == ["good"]


def test_a_caller_who_stops_leaves_only_what_was_given_out(tmp_path):
    work = jobs(tmp_path, *(file(f"f{n}", b"x" * 2_000_000) for n in range(8)))
    layers = assemble(work, workers=2)
    next(layers)
    layers.close()
    assert [path.name for path in tmp_path.iterdir()] == ["f0"]


def test_a_layer_that_is_being_written_stops_when_the_caller_stops(tmp_path):
    started, reads = threading.Event(), []

    class Slow:
        def __enter__(self) -> Slow:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def read(self, size: int) -> bytes:
            started.set()
            time.sleep(0.02)
            reads.append(size)
            return bytes(size) if len(reads) < 200 else b""

    work = jobs(tmp_path, file("quick"), Entry("slow", "file", size=200 << 20, open=Slow))
    layers = assemble(work, workers=2)
    next(layers)
    assert started.wait(30)
    layers.close()
    assert len(reads) < 100
