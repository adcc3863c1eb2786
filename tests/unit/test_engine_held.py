"""Which layers need not be sent, and what an engine's answers say about an image."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from envlock.engine.images import EngineImage, read_image
from envlock.engine.loading import held_layers
from envlock.image import Image, Settings, digest_of, make_image
from envlock.layers import Layer

LAYERS = [Layer(digest_of(name.encode()), len(name), name) for name in ("base", "venv", "torch")]
SETTINGS = Settings("linux/amd64", 1_700_000_000, {"PATH": "/bin"}, {"title": "sample"}, user="1000", workdir="/data", command=("sh",))
IMAGE = make_image(LAYERS, SETTINGS)
A, B, C = (layer.diff_id for layer in LAYERS)


def answer(image: Image, identity: str, **more: Any) -> dict[str, Any]:
    """An image as an engine's inspect tells it."""
    config = json.loads(image.config)
    told = {"Os": config["os"], "Architecture": config["architecture"], "Created": config["created"], "Config": config["config"]}
    return {
        **told,
        "Id": identity,
        "RootFS": {"Type": "layers", "Layers": config["rootfs"]["diff_ids"]},
        "RepoTags": ["a:1"],
        "Size": 9,
        **more,
    }


@pytest.mark.parametrize(("by_config", "identity"), [(True, IMAGE.digest), (False, IMAGE.manifest_digest)], ids=["graph", "containerd"])
def test_the_same_image_in_two_stores(by_config: bool, identity: str) -> None:
    found = read_image(answer(IMAGE, identity), named_by_config=by_config)
    assert found.made == IMAGE
    assert (found.digest, found.manifest_digest) == (IMAGE.digest, IMAGE.manifest_digest)


@pytest.mark.parametrize("created", ["2023-11-14T22:13:20Z", "2023-11-14T22:13:20.000000000Z", "2023-11-15T00:13:20+02:00"])
def test_forms_of_a_time(created: str) -> None:
    assert read_image(answer(IMAGE, IMAGE.digest, Created=created), named_by_config=True).created == 1_700_000_000


def test_an_image_that_only_claims_to_be_ours() -> None:
    """The labels are there, the digest is another's: nothing is concluded from them."""
    found = read_image(answer(IMAGE, "sha256:" + 64 * "0"), named_by_config=False)
    assert (found.made, found.digest, found.manifest_digest) == (None, None, "sha256:" + 64 * "0")


def test_an_image_of_others() -> None:
    bare = {"Id": "sha256:1", "Os": "linux", "Architecture": "arm64", "Variant": "v8", "Created": "0001-01-01T00:00:00Z", "RootFS": {}}
    found = read_image(bare, named_by_config=True)
    assert (found.platform, found.created, found.made, found.digest, found.diff_ids) == ("linux/arm64/v8", 0, None, "sha256:1", ())


def there(*layers: Layer, ours: bool = True) -> EngineImage:
    image = make_image(layers, SETTINGS)
    found = read_image(answer(image, image.digest), named_by_config=True)
    return found if ours else replace(found, made=None)


def test_a_graph_driver_knows_a_layer_by_those_below() -> None:
    assert held_layers("graph", [], [A, B, C]) == set()
    assert held_layers("graph", [there(LAYERS[0])], [A, B, C]) == {A}
    assert held_layers("graph", [there(LAYERS[0]), there(*LAYERS[:2], ours=False)], [A, B, C]) == {A, B}
    assert held_layers("graph", [there(LAYERS[1], LAYERS[0])], [A, B, C]) == set()


def test_a_containerd_store_has_the_blobs_of_our_images_alone() -> None:
    assert held_layers("containerd", [there(LAYERS[1])], [A, B, C]) == {B}
    assert held_layers("containerd", [there(*LAYERS, ours=False)], [A, B, C]) == set()
