"""What a build prints, records and holds against; and that all that is missing is fetched or told at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_locks import DEBIAN, built_of, cpu_lock, hex_of, wheel

from envlock import build
from envlock.build import BuildResult, check_digest, fetch_inputs, recall_image, remember_image
from envlock.config import image_settings
from envlock.errors import Exit, FileGone, ImageDiffers, Problems, exit_code_of
from envlock.image import make_image
from envlock.layers import Layer
from envlock.locking import ChosenLock
from envlock.progress import Silent
from envlock.store import Store

LOCK = cpu_lock()
SIZES = {"base": 5_000_000, "venv": 20, "torch 2.13.0": 7_000_000}
LAYERS = tuple(Layer(f"sha256:{hex_of(holds)}", size, holds) for holds, size in SIZES.items())
SAME = tuple(layer.diff_id for layer in LAYERS)
IMAGE = make_image(LAYERS, image_settings(LOCK))


def outcome(sent: frozenset[str]) -> BuildResult:
    return BuildResult(IMAGE, LOCK, ("x:1", "x:latest"), sent, {"load": 1.239, "total": 2.0})


def test_json_tells_layers_and_what_was_sent() -> None:
    printed = outcome(frozenset({LAYERS[2].diff_id})).as_json()
    assert list(printed) == ["image", "tags", "image_digest", "manifest_digest", "lock_digest", "layers", "seconds"]
    assert (printed["image"], printed["tags"]) == ("x:1", ["x:1", "x:latest"])
    assert (printed["image_digest"], printed["manifest_digest"]) == (IMAGE.digest, IMAGE.manifest_digest)
    assert printed["lock_digest"] == LOCK.digest
    assert printed["layers"][2] == {"digest": LAYERS[2].diff_id, "size": 7_000_000, "holds": "torch 2.13.0", "state": "sent"}
    assert [layer["state"] for layer in printed["layers"]] == ["reused", "reused", "sent"]
    assert printed["seconds"] == {"load": 1.24, "total": 2.0}


def test_people_read_what_was_sent() -> None:
    assert outcome(frozenset({LAYERS[2].diff_id})).summary().splitlines()[0] == "x:1  1 of 3 layers sent (7.0 MB), 2.0 s"
    assert outcome(frozenset()).summary().splitlines()[0] == "x:1  unchanged, 2.0 s"
    assert IMAGE.digest in outcome(frozenset()).summary()


def test_what_was_built_is_remembered_by_the_locks_digest(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert recall_image(LOCK, store) is None
    remember_image(LOCK, IMAGE, store)
    assert recall_image(LOCK, store) == IMAGE
    assert recall_image(cpu_lock(epoch=1), store) is None


def held_against(diff_ids: tuple[str, ...], **other: str) -> None:
    built = built_of(LOCK).model_copy(update={"diff_ids": diff_ids, **other})
    check_digest(ChosenLock(Path("x.lock.yaml"), LOCK, built), IMAGE)


@pytest.mark.parametrize(
    ("diff_ids", "why"),
    [
        ((SAME[0], hex_of("other"), SAME[2]), "layer 2 is the first that differs: venv"),
        (SAME[:2], "it had 2 layers and has 3"),
        (SAME, "the settings differ"),
    ],
)
def test_another_digest_than_the_recorded_one_is_refused_with_what_differs(diff_ids: tuple[str, ...], why: str) -> None:
    with pytest.raises(ImageDiffers) as caught:
        held_against(diff_ids)
    assert why in caught.value.why
    assert caught.value.where == "x.lock.yaml"
    assert exit_code_of(caught.value) is Exit.DOES_NOT_HOLD


def test_the_recorded_digest_holds() -> None:
    held_against(SAME, image_digest=IMAGE.digest)


def test_what_other_inputs_came_out_as_does_not_count() -> None:
    held_against((), lock=f"sha256:{'2' * 64}")
    check_digest(ChosenLock(Path("x"), LOCK, None), IMAGE)


def test_everything_that_cannot_be_had_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = cpu_lock(wheels=(wheel("one", index="local"), wheel("two", index="local")), installer=wheel("installer", index="local"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(build, "fetch_debs", gone)
    with pytest.raises(Problems) as caught:
        fetch_inputs(lock, no_engine, Store(tmp_path / "store"), Silent())
    assert exit_code_of(caught.value) is Exit.FILE
    assert [finding.what for finding in caught.value.findings] == [
        "one-1.0-py3-none-any.whl is gone",
        "two-1.0-py3-none-any.whl is gone",
        "installer-1.0-py3-none-any.whl is gone",
        "base-files 1 is gone",
    ]


def test_what_the_store_has_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    with store.incoming() as blob:
        blob.write(b"wheel")
    here = wheel("here").model_copy(update={"sha256": blob.sha256, "size": 5})
    lock = cpu_lock(wheels=(here,), installer=here, base=DEBIAN.model_copy(update={"debs": ()}))
    monkeypatch.setattr(build, "fetch_debs", lambda *_: None)
    assert fetch_inputs(lock, no_engine, store, Silent()) == 0


def gone(*_: object) -> None:
    raise FileGone("base-files 1 is gone")


def no_engine() -> None:
    pytest.fail("nothing here needs an engine")
