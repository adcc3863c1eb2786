"""A base in a real registry, put there by other tools: what is locked is what they see, and what the engine runs."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
import registry
from conftest import SETTINGS, Sample

from envlock.engine import Engine
from envlock.errors import BaseGone, RegistryAuth
from envlock.image import archive, make_image
from envlock.layers.blobs import open_blob, plain_layers
from envlock.progress import Silent
from envlock.resolve.baseimage import fetch_base, moved_base, resolve_archive, resolve_image
from envlock.store import Store

PLATFORM = SETTINGS.platform
# `envlock:secret` as `htpasswd -nbB` writes it.
USER = "envlock:$2b$05$Z3XfRswpHrxnZxBw0IDH3.7l4I.wqSLOiprSmK.GcROuecnkCH8kG"


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    if registry.why_not():
        pytest.skip(str(registry.why_not()))
    with registry.running_registry() as address:
        yield address


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def skopeo(*words: str) -> str:
    return subprocess.run(["skopeo", *words], check=True, capture_output=True, text=True).stdout


def write_archive(sample: Sample, folder: Path) -> Path:
    path = folder / "sample.tar"
    path.write_bytes(b"".join(archive(sample.image, ["sample:1"], sample.open_layer)))
    return path


def push(sample: Sample, folder: Path, target: str, *options: str) -> None:
    skopeo("copy", "--quiet", "--dest-tls-verify=false", *options, f"docker-archive:{write_archive(sample, folder)}", f"docker://{target}")


@pytest.mark.parametrize("form", ["oci", "v2s2"])
def test_what_another_tool_pushed(host: str, sample: Sample, store: Store, tmp_path: Path, form: str) -> None:
    push(sample, tmp_path, f"{host}/team/{form}:1", f"--format={form}")
    seen = skopeo("inspect", "--tls-verify=false", "--format={{.Digest}}", f"docker://{host}/team/{form}:1").strip()
    base = resolve_image(f"{host}/team/{form}:1", PLATFORM, store, Silent())
    assert base.manifest_digest == seen
    assert [layer.diff_id for layer in base.layers] == [layer.diff_id for layer in sample.image.layers]
    assert base.environment == SETTINGS.environment
    layers = plain_layers(base.layers, "the base", store, Silent())
    assert [layer.size for layer in layers] == [layer.size for layer in sample.image.layers]


def test_what_an_engine_pushed_is_what_it_runs(engine: Engine, host: str, sample: Sample, store: Store, tmp_path: Path) -> None:
    """Out of a registry into an engine, under our own config: compressed there, plain here, the same files."""
    push(sample, tmp_path, f"{host}/team/base:1")
    base = resolve_image(f"{host}/team/base:1", PLATFORM, store, Silent())
    layers = plain_layers(base.layers, "the base", store, Silent())
    blobs = {blob.diff_id: blob for blob in base.layers}
    image = make_image(layers, SETTINGS)
    tag = "envlock-test-registry:base"
    engine.load(image, [tag], lambda layer: open_blob(blobs[layer.diff_id], store), Silent())
    try:
        with engine.container(tag, ["cat", "two"]) as container:
            container.start()
            assert b"".join(piece.data for piece in container.output(60)) == b"22"
    finally:
        engine.untag(tag)


def test_an_engine_pulls_what_was_locked(engine: Engine, host: str, sample: Sample, store: Store, tmp_path: Path) -> None:
    push(sample, tmp_path, f"{host}/team/pulled:1")
    base = resolve_image(f"{host}/team/pulled:1", PLATFORM, store, Silent())
    reference = f"{host}/team/pulled@{base.manifest_digest}"
    engine.pull(reference)
    try:
        image = engine.image(reference)
        assert image is not None
        assert image.diff_ids == tuple(layer.diff_id for layer in base.layers)
        assert engine.digest_of(image) == base.config_digest
    finally:
        engine.remove(reference)


def test_a_tag_that_is_deleted(host: str, sample: Sample, store: Store, tmp_path: Path) -> None:
    push(sample, tmp_path, f"{host}/team/short:1")
    base = resolve_image(f"{host}/team/short:1", PLATFORM, store, Silent())
    skopeo("delete", "--tls-verify=false", f"docker://{host}/team/short:1")
    fetch_base(base, store, Silent())
    assert plain_layers(base.layers, "the base", store, Silent())
    with pytest.raises(BaseGone):
        moved_base(base, PLATFORM, store, Silent())
    with pytest.raises(BaseGone):
        resolve_image(f"{host}/team/short:1", PLATFORM, store, Silent())


def test_a_tag_that_moved(host: str, sample: Sample, store: Store, tmp_path: Path) -> None:
    push(sample, tmp_path, f"{host}/team/moving:1")
    base = resolve_image(f"{host}/team/moving:1", PLATFORM, store, Silent())
    assert moved_base(base, PLATFORM, store, Silent()) is None
    push(sample.with_layer("new", {"data/three": b"3"}), tmp_path, f"{host}/team/moving:1")
    finding = moved_base(base, PLATFORM, store, Silent())
    assert finding is not None
    assert base.manifest_digest in finding.why


def test_a_registry_with_a_password(sample: Sample, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if registry.why_not():
        pytest.skip(str(registry.why_not()))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with registry.running_registry(USER) as host:
        push(sample, tmp_path, f"{host}/team/base:1", "--dest-creds=envlock:secret")
        with pytest.raises(RegistryAuth):
            resolve_image(f"{host}/team/base:1", PLATFORM, store, Silent())
        auth = base64.b64encode(b"envlock:secret").decode()
        (tmp_path / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))
        assert resolve_image(f"{host}/team/base:1", PLATFORM, store, Silent())


def test_archives_that_engines_and_tools_write(any_engine: Engine, sample: Sample, store: Store, tmp_path: Path) -> None:
    """`docker save` of every kind, and skopeo's OCI archive, are the same base."""
    tag = "envlock-test-registry:saved"
    any_engine.load(sample.image, [tag], sample.open_layer, Silent())
    try:
        with docker.APIClient(base_url=any_engine.endpoint.url, version="auto") as api, (tmp_path / "saved.tar").open("wb") as saved:
            for piece in api.get_image(tag):
                saved.write(piece)
    finally:
        any_engine.untag(tag)
    base = resolve_archive(tmp_path / "saved.tar", "saved.tar", PLATFORM, store, Silent())
    assert base.config_digest == sample.image.digest
    assert [layer.diff_id for layer in base.layers] == [layer.diff_id for layer in sample.image.layers]


def test_an_oci_archive(sample: Sample, store: Store, tmp_path: Path) -> None:
    if registry.why_not():
        pytest.skip(str(registry.why_not()))
    skopeo("copy", "--quiet", f"docker-archive:{write_archive(sample, tmp_path)}", f"oci-archive:{tmp_path}/oci.tar:sample:1")
    base = resolve_archive(tmp_path / "oci.tar", "oci.tar", PLATFORM, store, Silent())
    assert [layer.diff_id for layer in base.layers] == [layer.diff_id for layer in sample.image.layers]
