"""Images as bytes: config, manifest and archive are functions of layers and settings alone."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, BinaryIO

import pytest

from envlock.errors import BuildFailed
from envlock.image import (
    LAYERS_LABEL,
    MAX_LAYERS,
    Image,
    Settings,
    archive,
    digest_of,
    full_name,
    growing_archive,
    make_image,
    remade,
)
from envlock.layers import Layer

SETTINGS = Settings(
    platform="linux/amd64",
    created=1_700_000_000,
    environment={"PATH": "/opt/venv/bin:/usr/bin:/bin", "LANG": "C.UTF-8"},
    labels={"org.opencontainers.image.title": "sample"},
    user="1000:1000",
    workdir="/workspace",
    command=("python",),
)
CONTENT = {"base": b"the base layer", "wheels": b"some wheels" * 100, "files": b""}
LAYERS = [Layer(digest_of(content), len(content), holds) for holds, content in CONTENT.items()]


def open_layer(layer: Layer) -> BinaryIO:
    return io.BytesIO(CONTENT[layer.holds])


def read(pieces: Iterator[bytes]) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
        return {entry.name: stream.read() for entry in tar if (stream := tar.extractfile(entry)) is not None}


def config_of(image: Image) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(image.config)
    return config


def test_the_config_says_what_was_asked_for() -> None:
    config = config_of(make_image(LAYERS, SETTINGS))
    assert config["created"] == "2023-11-14T22:13:20Z"
    assert (config["os"], config["architecture"]) == ("linux", "amd64")
    assert config["rootfs"] == {"type": "layers", "diff_ids": [layer.diff_id for layer in LAYERS]}
    assert [line["created_by"] for line in config["history"]] == ["base", "wheels", "files"]
    run = config["config"]
    assert run["Env"] == ["LANG=C.UTF-8", "PATH=/opt/venv/bin:/usr/bin:/bin"]
    assert (run["User"], run["WorkingDir"], run["Cmd"]) == ("1000:1000", "/workspace", ["python"])
    assert run["Labels"]["org.opencontainers.image.title"] == "sample"
    assert "Entrypoint" not in run


def test_a_variant_of_a_platform() -> None:
    config = config_of(make_image(LAYERS, replace(SETTINGS, platform="linux/arm64/v8")))
    assert (config["architecture"], config["variant"]) == ("arm64", "v8")


def test_digests_are_pinned() -> None:
    """These digests change only with the rules: an image that was built stays what it was."""
    image = make_image(LAYERS, SETTINGS)
    assert image.digest == "sha256:c247f2a4fe0752b7091f364a40a7f1ca8c187a23e18840c1640aab39004c5fe1"
    assert image.manifest_digest == "sha256:ce50826ef62c5b6c19beebfdc557fd99900b16c3d896408b21899b5ceb7e3767"
    assert (
        digest_of(b"".join(archive(image, ["sample:latest"], open_layer)))
        == "sha256:95cb6b891adacd4eb25c699a3262dd4353c571a11e5b4308ffa89fc87b6568db"
    )


def test_the_order_of_variables_and_labels_is_no_part_of_the_digest() -> None:
    other = replace(SETTINGS, environment=dict(reversed(list(SETTINGS.environment.items()))))
    assert make_image(LAYERS, other).digest == make_image(LAYERS, SETTINGS).digest


@pytest.mark.parametrize(
    "other",
    [
        replace(SETTINGS, created=1_700_000_001),
        replace(SETTINGS, environment={"PATH": "/bin"}),
        replace(SETTINGS, labels={}),
        replace(SETTINGS, user="0"),
        replace(SETTINGS, platform="linux/arm64"),
        replace(SETTINGS, entrypoint=("sh",)),
    ],
)
def test_every_setting_is_part_of_the_digest(other: Settings) -> None:
    assert make_image(LAYERS, other).digest != make_image(LAYERS, SETTINGS).digest


def test_an_image_is_made_again_from_what_an_engine_says() -> None:
    image = make_image(LAYERS, SETTINGS)
    labels = config_of(image)["config"]["Labels"]
    assert remade([layer.diff_id for layer in LAYERS], replace(SETTINGS, labels=labels)) == image


@pytest.mark.parametrize("label", ["", "[]", "{}", "null", '[{"size": 1}]', "not json", "[1, 2, 3]"])
def test_an_image_of_others_is_not_made_again(label: str) -> None:
    assert remade([layer.diff_id for layer in LAYERS], replace(SETTINGS, labels={LAYERS_LABEL: label})) is None


def test_an_archive_is_an_oci_layout_and_a_docker_archive() -> None:
    image = make_image(LAYERS, SETTINGS)
    files = read(archive(image, ["sample:latest", "sample:0123"], open_layer))
    for name, content in files.items():
        if name.startswith("blobs/sha256/"):
            assert hashlib.sha256(content).hexdigest() == name.removeprefix("blobs/sha256/")
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}

    entries = json.loads(files["index.json"])["manifests"]
    assert {entry["digest"] for entry in entries} == {image.manifest_digest}
    assert [entry["annotations"]["io.containerd.image.name"] for entry in entries] == [
        "docker.io/library/sample:latest",
        "docker.io/library/sample:0123",
    ]
    manifest = json.loads(files[blob(image.manifest_digest)])
    assert manifest["config"] == {
        "digest": image.digest,
        "mediaType": "application/vnd.oci.image.config.v1+json",
        "size": len(image.config),
    }
    assert [(row["digest"], row["size"]) for row in manifest["layers"]] == [(layer.diff_id, layer.size) for layer in LAYERS]

    (listed,) = json.loads(files["manifest.json"])
    assert listed["RepoTags"] == ["sample:latest", "sample:0123"]
    assert files[listed["Config"]] == image.config
    assert [files[name] for name in listed["Layers"]] == list(CONTENT.values())


def blob(digest: str) -> str:
    return "blobs/sha256/" + digest.removeprefix("sha256:")


def test_an_archive_without_a_tag() -> None:
    files = read(archive(make_image(LAYERS, SETTINGS), [], open_layer))
    assert len(json.loads(files["index.json"])["manifests"]) == 1
    assert json.loads(files["manifest.json"])[0]["RepoTags"] == []


def test_layers_that_an_engine_has_are_named_and_absent() -> None:
    image = make_image(LAYERS, SETTINGS)
    files = read(archive(image, ["sample:latest"], open_layer, frozenset({LAYERS[0].diff_id})))
    assert blob(LAYERS[0].diff_id) not in files
    assert blob(LAYERS[1].diff_id) in files
    assert len(json.loads(files["manifest.json"])[0]["Layers"]) == 3


def test_the_same_layer_twice_is_written_once() -> None:
    image = make_image([LAYERS[0], LAYERS[1], LAYERS[0]], SETTINGS)
    with tarfile.open(fileobj=io.BytesIO(b"".join(archive(image, [], open_layer)))) as tar:
        assert tar.getnames().count(blob(LAYERS[0].diff_id)) == 1
    assert len(config_of(image)["rootfs"]["diff_ids"]) == 3


def test_an_archive_grows_with_its_layers() -> None:
    done: list[str] = []

    def making() -> Iterator[Layer]:
        for layer in LAYERS:
            done.append(layer.holds)
            yield layer

    pieces = growing_archive(making(), lambda layers: make_image(layers, SETTINGS), ["sample:latest"], open_layer)
    head = b""
    while CONTENT["base"] not in head:
        head += next(pieces)
    assert done == ["base"]
    image = make_image(LAYERS, SETTINGS)
    assert head + b"".join(pieces) == b"".join(archive(image, ["sample:latest"], open_layer))


@pytest.mark.parametrize("change", [1, -1])
def test_a_layer_whose_size_changed_is_not_sent(change: int) -> None:
    layer = Layer(LAYERS[0].diff_id, LAYERS[0].size + change, "base")
    with pytest.raises(BuildFailed, match="another size"):
        list(archive(make_image([layer], SETTINGS), [], open_layer))


def test_a_layer_is_read_in_pieces() -> None:
    class Endless(io.RawIOBase):
        largest = 0

        def read(self, size: int = -1) -> bytes:
            self.largest = max(self.largest, size)
            return b"x" * size

    stream = Endless()
    layer = Layer("sha256:" + 64 * "0", 10 * 2**30, "ten gigabytes")
    pieces = archive(make_image([layer], SETTINGS), [], lambda _: stream)  # type: ignore[arg-type, return-value]
    assert sum(len(next(pieces)) for _ in range(20)) > 10 * 2**20
    assert 0 < stream.largest <= 2**20


def test_more_layers_than_an_engine_allows() -> None:
    with pytest.raises(BuildFailed, match="layers"):
        make_image([LAYERS[0]] * (MAX_LAYERS + 1), SETTINGS)


@pytest.mark.parametrize(
    ("tag", "full"),
    [
        ("name:1", "docker.io/library/name:1"),
        ("team/name:1", "docker.io/team/name:1"),
        ("localhost/name:1", "localhost/name:1"),
        ("localhost:5000/name:1", "localhost:5000/name:1"),
        ("registry.example.org/team/name:1", "registry.example.org/team/name:1"),
    ],
)
def test_full_names(tag: str, full: str) -> None:
    assert full_name(tag) == full
