"""Configs, manifests and indexes that no honest registry serves: what is refused, and what is passed over."""

from __future__ import annotations

import json
from typing import Any

import pytest
from image_helpers import FakeImage, index_of

from envlock.errors import BaseUnfit, DamagedArchive, EnvlockError
from envlock.lock import ImageBase
from envlock.resolve.manifests import choose, image_base, read_json, read_manifest

IMAGE = FakeImage()
MANIFEST = read_manifest(IMAGE.manifest, "sha256:" + "0" * 64, "base")


def base_of(**changes: Any) -> ImageBase:
    config = {**json.loads(IMAGE.config), **changes}
    raw = json.dumps(config).encode()
    return image_base(raw, MANIFEST, kind="image", reference="x:1", index_digest=None, platform="linux/amd64", facts={})


@pytest.mark.parametrize(
    ("env", "kept"),
    [
        (["A=1", "A.b=2", "É=3", "EMPTY=", "NONE"], {"A": "1", "A.b": "2", "É": "3", "EMPTY": "", "NONE": ""}),
        (["A=1", 5, None, ["B=2"]], {"A": "1"}),
        ("A=1", {}),
        (None, {}),
        (["BIG=" + "x" * 3_000_000], {"BIG": "x" * 3_000_000}),
    ],
    ids=["odd but honest", "of other types", "no list", "none", "megabytes"],
)
def test_variables_are_taken_where_they_are_some(env: Any, kept: dict[str, str]) -> None:
    assert base_of(config={"Env": env}).environment == kept


@pytest.mark.parametrize("line", ["A=1\nRUN id", "A B=1", "=1", 'A"=1', "A\0=1", "$A=1", "A=1\0"])
def test_variables_that_no_dockerfile_can_write_are_refused(line: str) -> None:
    with pytest.raises(BaseUnfit) as caught:
        base_of(config={"Env": [line]})
    assert "what no lock can hold" in caught.value.what


@pytest.mark.parametrize(
    "rootfs", [None, 5, [], {"diff_ids": None}, {"diff_ids": "ab"}, {"diff_ids": ["sha256:x", "y"]}, {"diff_ids": [1, 2]}]
)
def test_layers_that_are_none_are_damage(rootfs: Any) -> None:
    with pytest.raises(DamagedArchive):
        base_of(rootfs=rootfs)


@pytest.mark.parametrize(
    "change",
    [
        {"config": None},
        {"config": {"digest": "sha256:../../x", "size": 1}},
        {"layers": [5]},
        {"layers": [{"digest": "sha512:" + "0" * 128, "size": 1}]},
        {"layers": [{"digest": "sha256:" + "0" * 64, "size": -1}]},
        {"layers": [{"digest": "sha256:" + "0" * 64, "size": 10**30}]},
        {"layers": [{"digest": "sha256:" + "0" * 64, "size": "5"}]},
    ],
)
def test_manifests_that_are_none_are_damage(change: dict[str, Any]) -> None:
    with pytest.raises(DamagedArchive, match="cannot be read"):
        read_manifest(json.dumps({**json.loads(IMAGE.manifest), **change}).encode(), "sha256:0", "base")


@pytest.mark.parametrize("raw", [b"[" * 100_000, b'{"a": ' * 100_000, b"9" * 10_000, b"null", b"\xff", b""])
def test_documents_that_are_none_are_damage(raw: bytes) -> None:
    with pytest.raises(DamagedArchive):
        read_json(raw, "a manifest")


def test_entries_of_an_index_that_are_none_are_passed_over() -> None:
    index = json.loads(index_of(IMAGE))
    index["manifests"] = [5, None, {"annotations": 7}, {"platform": "linux/amd64"}, *index["manifests"]]
    assert choose(index, "linux/amd64", "base") == json.loads(index_of(IMAGE))["manifests"][1]["digest"]
    index["manifests"] = [{"platform": {"os": "linux", "architecture": "amd64"}, "digest": "../x"}]
    with pytest.raises(EnvlockError):
        choose(index, "linux/amd64", "base")
