"""What the layer maker refuses before it makes anything, and how it keeps and gives away what it made."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_locks import cpu_lock, wheel

from envlock.bundle import own_bundle, read_bundle
from envlock.clock import Clock
from envlock.errors import HostNotReady
from envlock.layers import Layer
from envlock.layers.assembly import Disposable
from envlock.makers import LayerMaker
from envlock.progress import Silent
from envlock.store import Store


def maker(folder: Path, lock) -> LayerMaker:
    return LayerMaker(lock, read_bundle(own_bundle()), None, Store(folder / "store"), Silent(), folder, Clock())  # type: ignore[arg-type]


def test_another_release_of_the_library_that_installs_is_refused(tmp_path: Path) -> None:
    """It decides what is recorded of an installed wheel, so that another one could make other bytes."""
    with maker(tmp_path, cpu_lock(installer=wheel("installer", "0.0.1"))) as made, pytest.raises(HostNotReady) as caught:
        _ = made._installed
    assert "installer==0.0.1" in caught.value.hint
    assert "lock" in caught.value.hint


def test_a_layer_that_was_written_goes_with_its_reader(tmp_path: Path) -> None:
    path = tmp_path / "0.tar"
    path.write_bytes(b"layer")
    with Disposable(path) as stream:
        assert stream.read() == b"layer"
        assert path.exists()
    assert not path.exists()
    stream.close()


def test_a_layer_in_the_store_is_read_from_there_and_stays(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    with store.incoming() as blob:
        blob.write(b"layer")
    with maker(tmp_path, cpu_lock()) as made:
        made._foundation.__dict__["base_layers"] = ()
        with made.open(Layer(f"sha256:{blob.sha256}", 5, "venv")) as stream:
            assert stream.read() == b"layer"
    assert store.has(blob.sha256)


def test_seconds_of_a_step_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.5, 10.0, 10.25])
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    clock = Clock()
    with clock.step("fetch"):
        pass
    with pytest.raises(KeyError), clock.step("fetch"):
        raise KeyError
    assert clock.seconds == {"fetch": 1.75}
