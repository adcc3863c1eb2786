"""Base images out of archives: of `docker save`, old and new, and OCI layouts."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from image_helpers import FakeImage, blob_path, digest, index_of, layer_tars, raw_tar

from envlock.errors import BaseUnfit, DamagedArchive, Exit, FileUnreadable, Problems, exit_code_of
from envlock.layers.blobs import open_blob
from envlock.lock import ImageBase
from envlock.progress import Silent
from envlock.resolve.baseimage import fetch_base, moved_base, resolve_archive
from envlock.store import Store

IMAGE = FakeImage()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def read(raw: bytes, store: Store, platform: str = "linux/amd64") -> ImageBase:
    store.root.parent.mkdir(exist_ok=True)
    path = store.root.parent / "base.tar"
    path.write_bytes(raw)
    return resolve_archive(path, "base.tar", platform, store, Silent())


def layout(image: FakeImage, top: bytes, top_type: str = "", **files: bytes) -> dict[str, bytes]:
    """An OCI layout whose index.json names one document."""
    index = {"schemaVersion": 2, "manifests": [{"mediaType": top_type, "digest": digest(top), "size": len(top)}]}
    blobs = {blob_path(name): blob for name, blob in image.blobs.items()}
    documents = {blob_path(digest(document)): document for document in (top, image.manifest)}
    return {"oci-layout": b"{}", "index.json": json.dumps(index).encode(), **blobs, **documents, **files}


def saved(image: FakeImage, *tags: str) -> dict[str, bytes]:
    """What `docker save` wrote before Docker 25."""
    names = [f"{number}/layer.tar" for number, _ in enumerate(image.layers)]
    listed = [{"Config": f"{digest(image.config)[7:]}.json", "RepoTags": list(tags), "Layers": names}]
    files = dict(zip(names, image.layers, strict=True))
    return files | {f"{digest(image.config)[7:]}.json": image.config, "manifest.json": json.dumps(listed).encode()}


def contents(base: ImageBase, store: Store) -> list[bytes]:
    found = []
    for blob in base.layers:
        with open_blob(blob, store) as stream:
            found.append(stream.read())
    return found


def test_an_oci_layout(store: Store) -> None:
    base = read(raw_tar(layout(IMAGE, IMAGE.manifest)), store)
    assert (base.kind, base.reference, base.index_digest) == ("archive", "base.tar", None)
    assert (base.manifest_digest, base.config_digest) == (digest(IMAGE.manifest), digest(IMAGE.config))
    assert base.environment["CUDA_VERSION"] == "12.4.1"
    assert base.facts["ID"] == "ubuntu"
    assert contents(base, store) == list(IMAGE.layers)


def test_an_oci_layout_with_platforms(store: Store) -> None:
    index = index_of(FakeImage(platform="linux/arm64"), IMAGE)
    base = read(raw_tar(layout(IMAGE, index)), store)
    assert (base.index_digest, base.manifest_digest) == (digest(index), digest(IMAGE.manifest))


def test_a_layout_whose_index_is_the_image_s(store: Store) -> None:
    files = layout(IMAGE, IMAGE.manifest) | {"index.json": index_of(FakeImage(platform="linux/arm64"), IMAGE)}
    assert read(raw_tar(files), store).manifest_digest == digest(IMAGE.manifest)


@pytest.mark.parametrize("pack", [lambda raw: raw, gzip.compress], ids=["plain", "gzip"])
def test_what_docker_saved_before_25(store: Store, pack) -> None:
    base = read(pack(raw_tar(saved(IMAGE, "base:1"))), store)
    assert base.config_digest == digest(IMAGE.config)
    assert [layer.digest for layer in base.layers] == [layer.diff_id for layer in base.layers] == [digest(tar) for tar in IMAGE.layers]
    assert contents(base, store) == list(IMAGE.layers)


def test_a_layer_that_stands_twice_is_a_link(store: Store) -> None:
    one, two = layer_tars()
    image = FakeImage(layers=(one, two, one))
    files = saved(image, "base:1")
    del files["2/layer.tar"]
    base = read(raw_tar(files, {"2/layer.tar": "../0/layer.tar"}), store)
    assert contents(base, store) == [one, two, one]


def test_both_forms_in_one_are_read_as_oci(store: Store) -> None:
    files = layout(IMAGE, IMAGE.manifest, **{"manifest.json": b"[]"})
    assert read(raw_tar(files), store).manifest_digest == digest(IMAGE.manifest)


def test_names_with_a_dot_in_front(store: Store) -> None:
    files = {f"./{name}": content for name, content in layout(IMAGE, IMAGE.manifest).items()}
    assert read(raw_tar(files), store).config_digest == digest(IMAGE.config)


def test_several_images(store: Store) -> None:
    other = FakeImage(layers=layer_tars("12.1.0"))
    one, two = saved(IMAGE, "base:1"), saved(other, "base:2")
    both = json.loads(one["manifest.json"]) + json.loads(two["manifest.json"])
    with pytest.raises(BaseUnfit, match="must hold one image") as caught:
        read(raw_tar(one | two | {"manifest.json": json.dumps(both).encode()}), store)
    assert caught.value.why == "it holds 2: base:1, base:2"


def test_another_platform(store: Store) -> None:
    with pytest.raises(BaseUnfit, match="is not there for linux/arm64"):
        read(raw_tar(saved(IMAGE, "base:1")), store, "linux/arm64")


def test_a_tar_of_something_else(store: Store) -> None:
    with pytest.raises(BaseUnfit, match="no image archive") as caught:
        read(raw_tar({"README": b"hello"}), store)
    assert "docker save" in caught.value.hint


@pytest.mark.parametrize("raw", [b"", b"not a tar at all", raw_tar(saved(IMAGE, "base:1"))[:3000]], ids=["empty", "text", "cut"])
def test_a_damaged_archive(store: Store, raw: bytes) -> None:
    with pytest.raises(DamagedArchive):
        read(raw, store)


@pytest.mark.parametrize("blob", [IMAGE.packed[0], IMAGE.config, IMAGE.manifest], ids=["layer", "config", "manifest"])
def test_one_flipped_byte_is_named(store: Store, blob: bytes) -> None:
    files = layout(IMAGE, IMAGE.manifest)
    files[blob_path(digest(blob))] = bytes([blob[0] ^ 1]) + blob[1:]
    with pytest.raises(DamagedArchive) as caught:
        read(raw_tar(files), store)
    assert digest(blob)[7:] in caught.value.where


def test_one_flipped_byte_in_a_saved_layer_is_named(store: Store) -> None:
    files = saved(IMAGE, "base:1")
    files["1/layer.tar"] = files["1/layer.tar"].replace(b"12.4.1", b"12.4.2")
    with pytest.raises(DamagedArchive, match="is not what its image says"):
        read(raw_tar(files), store)


@pytest.mark.parametrize("missing", ["0/layer.tar", "config"])
def test_a_part_that_is_missing(store: Store, missing: str) -> None:
    files = saved(IMAGE, "base:1")
    del files[missing if missing in files else f"{digest(IMAGE.config)[7:]}.json"]
    with pytest.raises(DamagedArchive, match="is damaged"):
        read(raw_tar(files), store)


def test_links_lead_nowhere_else(store: Store, tmp_path: Path) -> None:
    files = saved(IMAGE, "base:1")
    del files["0/layer.tar"]
    with pytest.raises(DamagedArchive, match="is damaged"):
        read(raw_tar(files, {"0/layer.tar": "/etc/passwd"}), store)


def test_a_file_that_is_not_there(store: Store, tmp_path: Path) -> None:
    with pytest.raises(FileUnreadable):
        resolve_archive(tmp_path / "none.tar", "none.tar", "linux/amd64", store, Silent())


def test_a_locked_archive_that_was_never_read(store: Store, tmp_path: Path) -> None:
    base = read(raw_tar(saved(IMAGE, "base:1")), store)
    fetch_base(base, store, Silent())
    with pytest.raises(Problems) as caught:
        fetch_base(base, Store(tmp_path / "other"), Silent())
    assert exit_code_of(caught.value) == Exit.FILE
    assert "lock the spec again" in caught.value.findings[0].hint
    assert moved_base(base, "linux/amd64", store, Silent()) is None
