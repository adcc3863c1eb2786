"""An image pushed from its artifact: what arrives in a registry, with and without the referrers API, and when the way is bad."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from artifact_helpers import Small, make_small

from envlock.artifact import layout
from envlock.artifact.check import check
from envlock.artifact.push import LOCK_TYPE, SBOM_TYPE, push
from envlock.errors import DamagedArchive, RegistryAuth, UsageError
from envlock.image import digest_of
from envlock.progress import Silent

BIG = 100_000  # bytes; of the sample's layers only the wheels weigh more


@dataclass
class Registry:
    """A registry on loopback: just what the specification's push workflow asks of one."""

    referrers: bool = False
    faults: list[int] = field(default_factory=list)
    refuses: bool = False
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    uploads: int = 0
    host: str = ""

    def handle(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        if path == "/v2/":
            return 200, {}, b""
        if self.refuses:
            return 403, {}, b""
        if blob := re.fullmatch(r"/v2/team/x/blobs/(sha256:\w+)", path):
            return (200 if blob[1] in self.blobs else 404), {}, b""
        if path == "/v2/team/x/blobs/uploads/":
            self.uploads += 1
            return 202, {"Location": "/v2/team/x/uploads/1?state=a"}, b""
        if upload := re.fullmatch(r"/v2/team/x/uploads/1\?state=a&digest=(sha256:\w+)", path):
            if self.faults and len(body) > BIG:
                return self.faults.pop(0), {}, b""
            if digest_of(body) != upload[1]:
                return 400, {}, b""
            self.blobs[upload[1]] = body
            return 201, {}, b""
        if manifest := re.fullmatch(r"/v2/team/x/manifests/(.+)", path):
            if method == "PUT":
                self.manifests |= {manifest[1]: body, digest_of(body): body}
                subject = json.loads(body).get("subject")
                return 201, {"OCI-Subject": subject["digest"]} if subject and self.referrers else {}, b""
            found = self.manifests.get(manifest[1])
            return (200, {"Docker-Content-Digest": digest_of(found)}, found) if found else (404, {}, b"")
        return 400, {}, b""


@contextmanager
def serving(registry: Registry) -> Iterator[Registry]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, headers, content = registry.handle(self.command, self.path, body)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_HEAD = do_POST = do_PUT = answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        registry.host = f"127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield registry
        finally:
            server.shutdown()


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving(Registry()) as running:
        yield running


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Small:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return make_small(tmp_path, monkeypatch)


def test_every_blob_and_the_very_manifest_arrive(small: Small, registry: Registry, tmp_path: Path) -> None:
    record = small.pinned(tmp_path / "a").record
    pushed = push(tmp_path / "a", f"{registry.host}/team/x", Silent())
    assert pushed.reference == f"{registry.host}/team/x@{record.manifest_digest}"
    assert registry.manifests[small.lock.short_digest] == small.image.manifest
    assert {layer.diff_id for layer in small.image.layers} | {small.image.digest} <= registry.blobs.keys()


def test_a_tag_that_was_given_is_set(small: Small, registry: Registry, tmp_path: Path) -> None:
    small.pinned(tmp_path / "a")
    push(tmp_path / "a", f"{registry.host}/team/x:latest", Silent())
    assert registry.manifests["latest"] == small.image.manifest


@pytest.mark.parametrize("choices", [{"compression": "zstd"}, {"split": 100_000}])
def test_the_form_of_the_archive_does_not_show(small: Small, registry: Registry, tmp_path: Path, choices: dict[str, object]) -> None:
    small.pinned(tmp_path / "a", **choices)
    push(tmp_path / "a", f"{registry.host}/team/x", Silent())
    assert registry.manifests[small.lock.short_digest] == small.image.manifest


def test_where_it_is_stands_in_the_artifact(small: Small, registry: Registry, tmp_path: Path) -> None:
    small.pinned(tmp_path / "a")
    pushed = push(tmp_path / "a", f"{registry.host}/team/x", Silent())
    (row,) = json.loads((tmp_path / "a" / layout.REGISTRY).read_text())
    assert row["reference"] == pushed.reference
    push(tmp_path / "a", f"{registry.host}/team/x", Silent())
    assert len(json.loads((tmp_path / "a" / layout.REGISTRY).read_text())) == 1
    assert check(tmp_path / "a", Silent()).findings == ()


def attached(registry: Registry, digest: str) -> dict[str, bytes]:
    """What refers to a manifest, by its type, with the file that it carries."""
    found = {}
    for raw in registry.manifests.values():
        document = json.loads(raw)
        if document.get("subject", {}).get("digest") == digest:
            found[document["artifactType"]] = registry.blobs[document["layers"][0]["digest"]]
    return found


@pytest.mark.parametrize("referrers", [True, False])
def test_lock_and_bill_of_materials_refer_to_it(small: Small, tmp_path: Path, referrers: bool) -> None:
    record = small.pinned(tmp_path / "a").record
    with serving(Registry(referrers=referrers)) as registry:
        pushed = push(tmp_path / "a", f"{registry.host}/team/x", Silent())
        push(tmp_path / "a", f"{registry.host}/team/x", Silent())
    files = attached(registry, record.manifest_digest)
    assert files[LOCK_TYPE] == (tmp_path / "a" / layout.LOCK).read_bytes()
    assert files[SBOM_TYPE] == (tmp_path / "a" / layout.SBOM).read_bytes()
    tag = record.manifest_digest.replace(":", "-")
    if referrers:
        assert pushed.listed_by == "referrers API"
        assert tag not in registry.manifests
    else:
        rows = json.loads(registry.manifests[tag])["manifests"]
        assert {row["artifactType"] for row in rows} == {LOCK_TYPE, SBOM_TYPE}
        assert [row["digest"] for row in rows] == list(pushed.attached.values()), "each once"


def test_what_is_there_is_not_sent_again(small: Small, registry: Registry, tmp_path: Path) -> None:
    small.pinned(tmp_path / "a")
    push(tmp_path / "a", f"{registry.host}/team/x", Silent())
    before = registry.uploads
    push(tmp_path / "a", f"{registry.host}/team/x:other", Silent())
    assert registry.uploads == before


@pytest.mark.parametrize("most_kept", [BIG, 2**22], ids=["read again from the archive", "kept in memory"])
def test_a_fault_on_the_way_is_tried_again(
    small: Small, registry: Registry, tmp_path: Path, most_kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envlock.artifact.push.LARGEST", most_kept)
    small.pinned(tmp_path / "a")
    registry.faults = [503, 503]
    push(tmp_path / "a", f"{registry.host}/team/x", Silent())
    assert registry.faults == []
    assert registry.manifests[small.lock.short_digest] == small.image.manifest


def test_a_registry_that_refuses(small: Small, registry: Registry, tmp_path: Path) -> None:
    small.pinned(tmp_path / "a")
    registry.refuses = True
    with pytest.raises(RegistryAuth, match="refuses"):
        push(tmp_path / "a", f"{registry.host}/team/x", Silent())
    assert not (tmp_path / "a" / layout.REGISTRY).exists()


def test_a_digest_is_no_place_to_push_to(small: Small, registry: Registry, tmp_path: Path) -> None:
    small.pinned(tmp_path / "a")
    with pytest.raises(UsageError, match="names a digest"):
        push(tmp_path / "a", f"{registry.host}/team/x@sha256:{'0' * 64}", Silent())


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_damaged_archive_is_told(small: Small, registry: Registry, tmp_path: Path, compression: str) -> None:
    small.pinned(tmp_path / "a", compression=compression)
    (archive,) = (tmp_path / "a" / layout.IMAGE_FOLDER).iterdir()
    archive.write_bytes(b"\1" * 10_000)
    with pytest.raises(DamagedArchive, match="archive is damaged"):
        push(tmp_path / "a", f"{registry.host}/team/x", Silent())
