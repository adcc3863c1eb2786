"""The artifact of an image, from one engine to another: checked, loaded, rebuilt without network, pushed; taken by other tools."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import registry
from tiny import Tiny, copied_store, envlock, launched, remove_images, result, said

from envlock.artifact import layout, seal
from envlock.artifact.check import check
from envlock.artifact.targets import UNFINISHED
from envlock.engine import BuildContext, Engine
from envlock.layers.sandbox import stream_of
from envlock.progress import Silent
from envlock.rootfs import read_rootfs
from envlock.verify import find_image, read_lock

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def built(tiny_built: tuple[Tiny, Any]) -> Tiny:
    return tiny_built[0]


@pytest.fixture(scope="module")
def artifact(built: Tiny, engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifact of a built image, with all inputs in it."""
    folder = tmp_path_factory.mktemp("pin") / "artifact"
    result(envlock("pin", built.tag, "-o", folder, "--vendor", "all", "--store", built.store.root, "--json", "--quiet"))
    return folder


def record_of(folder: Path) -> dict[str, object]:
    record: dict[str, object] = json.loads((folder / layout.IMAGE).read_text())
    return record


def archive_of(folder: Path) -> Path:
    (path,) = folder.glob("image/*.tar")
    return path


def copy_of(folder: Path, target: Path) -> Path:
    """An artifact as it comes out of an upload: files of its own, no links to a store."""
    shutil.copytree(folder, target)
    return target


def test_it_says_what_the_engine_has(artifact: Path, built: Tiny, engine: Engine) -> None:
    image = engine.image(built.tag)
    record = record_of(artifact)
    assert (record["image_digest"], record["manifest_digest"]) == (image.digest, image.manifest_digest)
    assert [row["diff_id"] for row in record["layers"]] == list(image.diff_ids)
    assert record["lock_digest"] == built.lock.digest


def test_its_rootfs_digest_is_that_of_the_exported_tree(artifact: Path, built: Tiny, engine: Engine) -> None:
    assert rootfs_in(engine, built.tag) == record_of(artifact)["rootfs_digest"]


def rootfs_in(engine: Engine, tag: str) -> str:
    return read_rootfs(stream_of(engine.export(tag)), "export").digest


def test_a_lock_gives_the_same_artifact_as_its_image(artifact: Path, built: Tiny, tmp_path: Path) -> None:
    lock = built.written()
    said(envlock("pin", lock, "-o", tmp_path / "a", "--vendor", "all", "--store", built.store.root), 0)
    assert (tmp_path / "a" / layout.SUMS).read_text() == (artifact / layout.SUMS).read_text()


def test_an_image_that_only_the_engine_has(artifact: Path, built: Tiny, tmp_path: Path, any_engine: Engine) -> None:
    """With a store that knows nothing of it, the layers come out of `docker save`: the same archive, byte for byte."""
    load(any_engine, artifact)
    try:
        words = ("pin", built.tag, "-o", tmp_path / "a", "--vendor", "none", "-H", any_engine.endpoint.url)
        done = envlock(*words, "--store", copied_store(built.store, tmp_path / "store", facts=False).root)
        assert "the engine saves the image" in said(done, 0)
        assert archive_of(tmp_path / "a").read_bytes() == archive_of(artifact).read_bytes()
        assert check(tmp_path / "a", Silent()).findings == ()
    finally:
        if any_engine.endpoint.url != os.environ.get("DOCKER_HOST", any_engine.endpoint.url):
            remove_images(any_engine, built.lock.name)


def load(engine: Engine, folder: Path) -> None:
    with archive_of(folder).open("rb") as stream:
        engine.load_archive(iter(lambda: stream.read(2**20), b""))


def test_checked_and_rebuilt_on_another_engine_without_network(artifact: Path, newer_containerd: Engine, tmp_path: Path) -> None:
    """The other engine has a containerd store; the process sees no network at all, and the store starts empty."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("taking the network away needs root and unshare")
    folder = copy_of(artifact, tmp_path / "copy")
    words = ("pin", "--check", "--rebuild", folder, "-H", newer_containerd.endpoint.url, "--store", tmp_path / "store", "--json")
    printed = result(envlock(*words, before=("unshare", "--net")))
    assert printed["holds"]
    assert printed["findings"] == []
    assert printed["rebuilt"] == record_of(artifact)["manifest_digest"]
    assert printed["fetched"] == 0
    assert not list((tmp_path / "store").glob("blobs/sha256/*/*")), "the rebuild's own store is gone"


def test_loaded_on_another_engine_it_is_the_same_image(artifact: Path, built: Tiny, newer_engine: Engine) -> None:
    """The self-test has no torch to run in this small stack: the report says so, and the digests are what this is about."""
    done = envlock("pin", "--check", "--load", artifact, "-H", newer_engine.endpoint.url, "--json")
    printed = json.loads(done.stdout)
    assert printed["holds"]
    assert printed["report"]["image"]["image_digest"] == record_of(artifact)["image_digest"]
    assert "image-differs" not in done.stderr
    image = newer_engine.image(built.tag)
    try:
        assert image.manifest_digest == record_of(artifact)["manifest_digest"]
    finally:
        newer_engine.remove(built.tag)


def test_the_dockerfile_in_it_builds_the_same_tree(artifact: Path, engine: Engine, tmp_path: Path) -> None:
    """Its own context is all that BuildKit gets."""
    tag = "envlock-test-pin:rebuilt"
    folder = artifact / layout.CONTEXT
    with (tmp_path / "log").open("wb") as log:
        engine.build(BuildContext(folder, (folder / "Dockerfile").read_bytes()), tag, Silent(), log)
    try:
        assert rootfs_in(engine, tag) == record_of(artifact)["rootfs_digest"]
    finally:
        engine.remove(tag)


def test_killed_and_run_again(built: Tiny, artifact: Path, tmp_path: Path) -> None:
    words = ("pin", built.tag, "-o", tmp_path / "a", "--vendor", "all", "--store", built.store.root)
    process = launched(*words)
    deadline = time.monotonic() + 300
    while not list((tmp_path / "a").glob(f"image/*{UNFINISHED}")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    said(envlock(*words), 0)
    assert (tmp_path / "a" / layout.SUMS).read_text() == (artifact / layout.SUMS).read_text()
    assert not list((tmp_path / "a").rglob(f"*{UNFINISHED}"))


# other tools


@pytest.fixture
def podman(tmp_path: Path) -> Iterator[list[str]]:
    """Podman with a storage of its own; its run folder may have 50 characters at most."""
    if shutil.which("podman") is None:
        pytest.skip("needs podman")
    with tempfile.TemporaryDirectory(prefix="envlock-") as run:
        yield ["podman", "--root", str(tmp_path / "root"), "--runroot", run, "--storage-driver", "vfs"]


def test_podman_loads_it_under_its_name_and_digests(artifact: Path, podman: list[str]) -> None:
    done = subprocess.run([*podman, "load", "--input", str(archive_of(artifact))], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    form = "{{.Repository}}:{{.Tag}} {{.Digest}} sha256:{{.ID}}"
    shown = subprocess.run([*podman, "images", "--no-trunc", "--format", form], capture_output=True, text=True, check=True).stdout
    record = record_of(artifact)
    name, digest, identity = shown.split()
    assert name == f"docker.io/library/{record['tag']}"
    assert digest == record["shown_by"]["podman (`podman images --digests`)"]
    assert identity.removeprefix("sha256:") == record["shown_by"]["podman (`podman images --no-trunc`)"]


def test_skopeo_sees_its_manifest_digest(artifact: Path) -> None:
    if shutil.which("skopeo") is None:
        pytest.skip("needs skopeo")
    command = ["skopeo", "inspect", "--format", "{{.Digest}}", f"oci-archive:{archive_of(artifact)}"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == record_of(artifact)["manifest_digest"]


# a registry


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    if registry.why_not():
        pytest.skip(str(registry.why_not()))
    with registry.running_registry() as address:
        yield address


def test_pushed_it_keeps_its_digest_and_its_lock(artifact: Path, built: Tiny, engine: Engine, host: str, tmp_path: Path) -> None:
    """What the engine pulls by that digest carries the lock, where `envlock verify NAME@sha256:…` finds it."""
    folder = copy_of(artifact, tmp_path / "copy")
    printed = result(envlock("pin", folder, "--push", f"{host}/team/tiny", "--json"))
    reference = printed["pushed"]["reference"]
    assert reference == f"{host}/team/tiny@{record_of(artifact)['manifest_digest']}"
    assert check(folder, Silent()).findings == ()
    inspect = ["skopeo", "inspect", "--tls-verify=false", "--format={{.Digest}}"]
    command = [*inspect, f"docker://{host}/team/tiny:{built.lock.short_digest}"]
    seen = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert seen == record_of(artifact)["manifest_digest"]
    engine.pull(reference)
    try:
        assert read_lock(engine, find_image(engine, reference)).lock == built.lock
    finally:
        engine.untag(reference)


def test_what_was_attached_is_found_by_the_fallback_tag(artifact: Path, host: str, tmp_path: Path) -> None:
    """Debian's registry has no referrers API; readers then look under the tag that the specification names."""
    folder = copy_of(artifact, tmp_path / "copy")
    printed = result(envlock("pin", folder, "--push", f"{host}/team/attached", "--json"))
    tag = str(record_of(artifact)["manifest_digest"]).replace(":", "-")
    assert printed["pushed"]["listed_by"] == f"tag {tag}"
    command = ["skopeo", "inspect", "--raw", "--tls-verify=false", f"docker://{host}/team/attached:{tag}"]
    index = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert {row["digest"] for row in index["manifests"]} == set(printed["pushed"]["attached"].values())


def test_a_registry_with_a_password(artifact: Path, tmp_path: Path) -> None:
    if registry.why_not():
        pytest.skip(str(registry.why_not()))
    # `envlock:secret` as `htpasswd -nbB` writes it
    user = "envlock:$2b$05$Z3XfRswpHrxnZxBw0IDH3.7l4I.wqSLOiprSmK.GcROuecnkCH8kG"
    folder = copy_of(artifact, tmp_path / "copy")
    with registry.running_registry(user) as address:
        own = {"DOCKER_CONFIG": str(tmp_path / "docker")}
        assert "refuses" in said(envlock("pin", folder, "--push", f"{address}/team/tiny", env=own), 6)
        (tmp_path / "docker").mkdir()
        auth = base64.b64encode(b"envlock:secret").decode()
        (tmp_path / "docker" / "config.json").write_text(json.dumps({"auths": {address: {"auth": auth}}}))
        result(envlock("pin", folder, "--push", f"{address}/team/tiny", "--json", env=own))


# the command


def test_what_the_command_does_not_take(tmp_path: Path, built: Tiny) -> None:
    assert "where is the artifact to go?" in said(envlock("pin", built.tag), 2)
    for words in (("--vendor", "some"), ("--compress", "gzip"), ("--split", "0G"), ("--split", "lots")):
        assert "is not known" in said(envlock("pin", built.tag, "-o", tmp_path / "a", *words), 2)
    assert "has no image" in said(envlock("pin", "envlock-there-is-none:1", "-o", tmp_path / "a"), 2)


def test_editing_and_sealing(artifact: Path, tmp_path: Path) -> None:
    folder = copy_of(artifact, tmp_path / "copy")
    (folder / layout.APPENDIX_MD).write_text("# Ours\n")
    assert "appendix.md is damaged" in said(envlock("pin", "--check", folder), 1)
    said(envlock("pin", "--seal", folder), 0)
    said(envlock("pin", "--check", folder), 0)
    assert set(seal.read_sums(folder)) == set(seal.read_sums(artifact))
