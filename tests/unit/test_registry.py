"""Base images out of a registry: what is locked, how one logs in, and what is said when the registry does not give."""

from __future__ import annotations

import base64
import json
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from image_helpers import FakeImage, digest, index_of, layer_tars, tar_of
from loopback import Answer, Request, Server, serving

from envlock.errors import (
    BaseGone,
    BaseUnfit,
    DamagedArchive,
    DownloadDamaged,
    Exit,
    Problems,
    RegistryAuth,
    RegistryRateLimited,
    Unreachable,
    UsageError,
    exit_code_of,
)
from envlock.layers.blobs import open_blob, plain_layers
from envlock.lock import ImageBase
from envlock.progress import Silent
from envlock.resolve.baseimage import fetch_base, moved_base, resolve_image
from envlock.resolve.credentials import Credentials, find_credentials
from envlock.resolve.manifests import DOCKER_LIST, OCI_INDEX
from envlock.resolve.reference import parse_reference
from envlock.resolve.registry import Repository
from envlock.store import Store
from envlock.transport import Patience, Transport

IMAGE = FakeImage()
QUICK = Transport(Patience(attempts=2, pause=0.01))


class Narrating(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, message: str) -> None:
        self.lines.append(message)


@dataclass
class Registry:
    """A registry on loopback; `user` is who may read it (None: everybody), `basic` its way to log in."""

    server: Server
    user: str | None = None
    basic: bool = False
    refuse: int | None = None
    tokens: list[dict[str, list[str]]] = field(default_factory=list)

    @property
    def host(self) -> str:
        return urlsplit(self.server.url).netloc

    def put(self, repository: str, tag: str, image: FakeImage, index: bytes | None = None, index_type: str = OCI_INDEX) -> str:
        """Publish an image, alone or in an index; its reference."""
        self.add(f"/v2/{repository}/manifests/{digest(image.manifest)}", image.manifest, image.manifest_type)
        top, kind = (image.manifest, image.manifest_type) if index is None else (index, index_type)
        for name in (tag, digest(top)):
            self.add(f"/v2/{repository}/manifests/{name}", top, kind)
        for name, blob in image.blobs.items():
            self.add(f"/v2/{repository}/blobs/{name}", blob, "application/octet-stream")
        return f"{self.host}/{repository}:{tag}"

    def add(self, path: str, body: bytes, media_type: str) -> None:
        def answer(request: Request) -> Answer:
            refused = self._refused(request)
            return refused or Answer(body, headers={"Content-Type": media_type, "Docker-Content-Digest": digest(body)})

        self.server.routes[path] = answer

    def _refused(self, request: Request) -> Answer | None:
        if self.refuse is not None:
            return Answer(b"", self.refuse)
        if self.user is None:
            return None
        given = request.headers.get("authorization", "")
        if self.basic:
            return None if given == f"Basic {base64.b64encode(self.user.encode()).decode()}" else self.challenge()
        return None if given == "Bearer a-token" else self.challenge()

    def challenge(self) -> Answer:
        bearer = f'Bearer realm="{self.server.url}/token",service="here",scope="ignored"'
        return Answer(b"", 401, {"WWW-Authenticate": 'Basic realm="here"' if self.basic else bearer})

    def root(self, request: Request) -> Answer:
        return self._refused(request) or Answer(b"{}")

    def token(self, request: Request) -> Answer:
        self.tokens.append(parse_qs(urlsplit(request.path).query))
        given = request.headers.get("authorization", "")
        expected = f"Basic {base64.b64encode((self.user or '').encode()).decode()}"
        if self.user == "anonymous" or given == expected:
            return Answer(json.dumps({"access_token": "a-token"}).encode())
        return Answer(b'{"errors": [{"code": "DENIED"}]}', 401)


@contextmanager
def a_registry(**how: object) -> Iterator[Registry]:
    with serving({}) as server:
        registry = Registry(server, **how)  # type: ignore[arg-type]
        server.routes["/v2/"] = registry.root
        query = "?service=here&scope=repository%3Ateam%2Fbase%3Apull"
        server.routes["/token"] = server.routes["/token" + query] = registry.token
        yield registry


@pytest.fixture
def registry() -> Iterator[Registry]:
    with a_registry() as made:
        yield made


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture(autouse=True)
def docker_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    (tmp_path / "docker").mkdir()
    return tmp_path / "docker" / "config.json"


def resolve(reference: str, store: Store, platform: str = "linux/amd64") -> ImageBase:
    return resolve_image(reference, platform, store, Silent(), QUICK)


# what is locked --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("docker", [False, True], ids=["oci", "docker"])
def test_a_base_is_locked_by_every_digest(registry: Registry, store: Store, docker: bool) -> None:
    image = replace(IMAGE, docker=docker)
    index = index_of(FakeImage(platform="linux/arm64/v8"), image, docker=docker)
    base = resolve(registry.put("team/base", "1", image, index, DOCKER_LIST if docker else OCI_INDEX), store)
    assert base.index_digest == digest(index)
    assert base.manifest_digest == digest(image.manifest)
    assert (base.config_digest, base.config_size) == (digest(image.config), len(image.config))
    assert [(layer.digest, layer.size) for layer in base.layers] == [(digest(blob), len(blob)) for blob in image.packed]
    assert [layer.diff_id for layer in base.layers] == [digest(layer) for layer in image.layers]
    assert base.environment == {"PATH": "/usr/bin", "CUDA_VERSION": "12.4.1", "NVIDIA_REQUIRE_CUDA": "cuda>=12.4"}
    assert base.facts == {"ID": "ubuntu", "PRETTY_NAME": "Ubuntu 22.04.5 LTS", "VERSION_ID": "22.04"}


def test_an_image_without_an_index(registry: Registry, store: Store) -> None:
    base = resolve(registry.put("team/base", "1", IMAGE), store)
    assert (base.index_digest, base.manifest_digest) == (None, digest(IMAGE.manifest))


def test_a_reference_by_digest(registry: Registry, store: Store) -> None:
    index = index_of(IMAGE)
    registry.put("team/base", "1", IMAGE, index)
    assert resolve(f"{registry.host}/team/base@{digest(index)}", store).index_digest == digest(index)


def test_a_manifest_that_omits_its_media_type(registry: Registry, store: Store) -> None:
    document = json.loads(IMAGE.manifest)
    del document["mediaType"]
    raw = json.dumps(document).encode()
    reference = registry.put("team/base", "1", IMAGE)
    registry.add("/v2/team/base/manifests/1", raw, "application/json")
    assert resolve(reference, store).manifest_digest == digest(raw)


def test_layers_are_plain_tars_in_the_end(registry: Registry, store: Store) -> None:
    base = resolve(registry.put("team/base", "1", IMAGE), store)
    layers = plain_layers(base.layers, "the base", store, Silent())
    assert [(layer.diff_id, layer.size) for layer in layers] == [(digest(tar), len(tar)) for tar in IMAGE.layers]
    for blob, tar in zip(base.layers, IMAGE.layers, strict=True):
        with open_blob(blob, store) as stream:
            assert stream.read() == tar


def test_the_uppermost_os_release_counts(registry: Registry, store: Store) -> None:
    image = FakeImage(layers=(*layer_tars(), tar_of({"etc/os-release": b"ID=debian\n"})))
    assert resolve(registry.put("team/base", "1", image), store).facts == {"ID": "debian"}


def test_what_a_dockerfile_would_pass_on_is_named(registry: Registry, store: Store) -> None:
    settings = {"OnBuild": ["RUN x"], "Volumes": {"/data": {}}, "Shell": None, "Healthcheck": {}, "User": "x", "Entrypoint": ["x"]}
    base = resolve(registry.put("team/base", "1", FakeImage(settings=settings)), store)
    assert base.facts["lasting"] == "ONBUILD, VOLUME"
    assert base.starts_as_archive
    assert not resolve(registry.put("team/base", "2", IMAGE), store).starts_as_archive


def test_a_deleted_base_builds_from_the_store(registry: Registry, store: Store) -> None:
    base = resolve(registry.put("team/base", "1", IMAGE), store)
    registry.server.routes.clear()
    asked = len(registry.server.requests)
    fetch_base(base, store, Silent(), QUICK)
    assert len(registry.server.requests) == asked


def test_a_base_that_is_locked_and_not_fetched(registry: Registry, store: Store, tmp_path: Path) -> None:
    base = resolve(registry.put("team/base", "1", IMAGE), store)
    other = Store(tmp_path / "other")
    fetch_base(base, other, Silent(), QUICK)
    assert all(other.has(layer.digest.removeprefix("sha256:")) for layer in base.layers)


def test_layers_that_are_gone_are_named(registry: Registry, store: Store, tmp_path: Path) -> None:
    base = resolve(registry.put("team/base", "1", IMAGE), store)
    for layer in base.layers:
        del registry.server.routes[f"/v2/team/base/blobs/{layer.digest}"]
    with pytest.raises(Problems) as caught:
        fetch_base(base, Store(tmp_path / "other"), Silent(), QUICK)
    assert [finding.id for finding in caught.value.findings] == ["base-gone", "base-gone"]
    assert exit_code_of(caught.value) == Exit.FILE


# what does not fit -----------------------------------------------------------------------------------------------------


def test_an_index_without_the_platform(registry: Registry, store: Store) -> None:
    image = FakeImage(platform="linux/arm64")
    with pytest.raises(BaseUnfit, match="is not there for linux/amd64") as caught:
        resolve(registry.put("team/base", "1", image, index_of(image)), store)
    assert caught.value.why == "it is there for linux/arm64"


def test_an_image_for_another_platform(registry: Registry, store: Store) -> None:
    with pytest.raises(BaseUnfit, match="is not there for linux/amd64"):
        resolve(registry.put("team/base", "1", FakeImage(platform="linux/arm64")), store)


def test_a_variant_serves_its_architecture(registry: Registry, store: Store) -> None:
    image = FakeImage(platform="linux/arm64/v8")
    base = resolve(registry.put("team/base", "1", image, index_of(image)), store, "linux/arm64")
    assert base.manifest_digest == digest(image.manifest)


def test_a_manifest_from_before_2017(registry: Registry, store: Store) -> None:
    registry.add("/v2/team/base/manifests/1", b'{"schemaVersion": 1, "fsLayers": []}', "application/json")
    with pytest.raises(BaseUnfit, match="is not an image that can be built on"):
        resolve(f"{registry.host}/team/base:1", store)


def test_a_manifest_that_was_changed_on_the_way(registry: Registry, store: Store) -> None:
    changed = Answer(IMAGE.manifest + b" ", headers={"Docker-Content-Digest": digest(IMAGE.manifest)})
    registry.server.routes["/v2/team/base/manifests/1"] = changed
    with pytest.raises(DownloadDamaged, match="arrived damaged"):
        resolve(f"{registry.host}/team/base:1", store)


def test_a_layer_that_is_not_what_its_config_says(registry: Registry, store: Store) -> None:
    class Lying(FakeImage):
        @property
        def config(self) -> bytes:
            return super().config.replace(digest(self.layers[1])[7:].encode(), b"0" * 64)

    with pytest.raises(DamagedArchive, match="is not what its image says"):
        resolve(registry.put("team/base", "1", Lying()), store)


def test_a_config_with_other_layers(registry: Registry, store: Store) -> None:
    class Short(FakeImage):
        @property
        def config(self) -> bytes:
            return FakeImage(layers=self.layers[:1]).config

    with pytest.raises(DamagedArchive, match="contradicts itself"):
        resolve(registry.put("team/base", "1", Short()), store)


# a registry that does not give -----------------------------------------------------------------------------------------


def test_a_base_that_is_gone(registry: Registry, store: Store) -> None:
    with pytest.raises(BaseGone, match="does not have") as caught:
        resolve(f"{registry.host}/team/base:11.3", store)
    assert caught.value.why == "the server answers 404"
    assert "mirror or an archive" in caught.value.hint


def test_too_many_questions(store: Store) -> None:
    with a_registry(refuse=429) as registry, pytest.raises(RegistryRateLimited) as caught:
        resolve(registry.put("team/base", "1", IMAGE), store)
    assert caught.value.id == "registry-rate-limit"
    assert "docker login" in caught.value.hint


def test_a_registry_that_is_ill(store: Store) -> None:
    with a_registry(refuse=503) as registry, pytest.raises(Unreachable):
        resolve(registry.put("team/base", "1", IMAGE), store)


def test_a_registry_that_is_not_there(store: Store) -> None:
    with a_registry() as registry:
        host = registry.host
    with pytest.raises(Unreachable):
        resolve(f"{host}/team/base:1", store)


def test_plain_http_is_for_loopback_only(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    repository = Repository(parse_reference("registry.invalid/team/base:1"), Silent(), QUICK)
    monkeypatch.setattr(repository, "_knock", lambda scheme: asked.append(scheme) or (_ for _ in ()).throw(Unreachable("no TLS")))
    with pytest.raises(Unreachable):
        repository.manifest("1")
    assert asked == ["https"]


# logging in ------------------------------------------------------------------------------------------------------------


def log_in(config: Path, registry: Registry, user: str = "me:secret") -> None:
    config.write_text(json.dumps({"auths": {registry.host: {"auth": base64.b64encode(user.encode()).decode()}}}))


def test_anonymous_with_a_token(store: Store) -> None:
    with a_registry(user="anonymous") as registry:
        assert resolve(registry.put("team/base", "1", IMAGE, index_of(IMAGE)), store).index_digest
        assert registry.tokens == [{"service": ["here"], "scope": ["repository:team/base:pull"]}]


@pytest.mark.parametrize("basic", [False, True], ids=["token", "basic"])
def test_with_a_password(store: Store, docker_config: Path, basic: bool) -> None:
    with a_registry(user="me:secret", basic=basic) as registry:
        log_in(docker_config, registry)
        assert resolve(registry.put("team/base", "1", IMAGE), store)


@pytest.mark.parametrize("basic", [False, True], ids=["token", "basic"])
def test_with_a_wrong_password(store: Store, docker_config: Path, basic: bool) -> None:
    with a_registry(user="me:secret", basic=basic) as registry:
        log_in(docker_config, registry, "me:wrong")
        with pytest.raises(RegistryAuth) as caught:
            resolve(registry.put("team/base", "1", IMAGE), store)
    assert "docker login" in caught.value.hint
    assert "wrong" not in f"{caught.value.finding}"


def test_a_token_that_runs_out_is_replaced(store: Store) -> None:
    with a_registry(user="anonymous") as registry:
        reference = registry.put("team/base", "1", IMAGE)
        repository = Repository(parse_reference(reference), Silent(), QUICK)
        repository._reached()
        repository._authorization = {"Authorization": "Bearer yesterdays"}
        assert repository.manifest("1").digest == digest(IMAGE.manifest)


def test_a_login_without_tls_elsewhere_is_refused(store: Store) -> None:
    repository = Repository(parse_reference("registry.example.org/team/base"), Silent(), QUICK)
    repository._origin, repository._challenge = "https://registry.example.org", 'Bearer realm="http://evil.example/token"'
    with pytest.raises(RegistryAuth, match="refuses") as caught:
        repository.manifest("1")
    assert "without TLS" in caught.value.why


def helper(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / f"docker-credential-{name}"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize("config", [{"credsStore": "mine"}, {"credHelpers": {"reg.example.org": "mine"}}])
def test_a_credential_helper(tmp_path: Path, docker_config: Path, config: dict[str, object]) -> None:
    helper(tmp_path / "bin", "mine", 'read server; echo "{\\"Username\\": \\"me\\", \\"Secret\\": \\"for $server\\"}"')
    docker_config.write_text(json.dumps(config))
    environ = {"DOCKER_CONFIG": str(docker_config.parent), "PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    assert find_credentials("reg.example.org", pytest.fail, environ) == Credentials("me", "for reg.example.org")


def test_a_helpers_identity_token(tmp_path: Path, docker_config: Path) -> None:
    helper(tmp_path / "bin", "mine", 'echo "{\\"Username\\": \\"<token>\\", \\"Secret\\": \\"t\\"}"')
    docker_config.write_text(json.dumps({"credsStore": "mine"}))
    environ = {"DOCKER_CONFIG": str(docker_config.parent), "PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    assert find_credentials("reg.example.org", pytest.fail, environ) == Credentials(identity_token="t")


@pytest.mark.parametrize(
    ("script", "told"),
    [(None, "docker-credential-mine, which is not installed"), ("echo not json", "docker-credential-mine does not work"), ("exit 1", None)],
)
def test_a_helper_that_does_not_help(tmp_path: Path, docker_config: Path, script: str | None, told: str | None) -> None:
    if script:
        helper(tmp_path / "bin", "mine", script)
    docker_config.write_text(json.dumps({"credsStore": "mine"}))
    said: list[str] = []
    environ = {"DOCKER_CONFIG": str(docker_config.parent), "PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    assert find_credentials("reg.example.org", said.append, environ) is None
    assert len(said) == (told is not None)
    assert not told or told in said[0]


def test_a_missing_helper_is_told_once_and_the_image_is_had(store: Store, docker_config: Path) -> None:
    docker_config.write_text(json.dumps({"credsStore": "gone"}))
    progress = Narrating()
    with a_registry(user="anonymous") as registry:
        resolve_image(registry.put("team/base", "1", IMAGE), "linux/amd64", store, progress, QUICK)
    assert [line for line in progress.lines if "docker-credential-gone" in line] == progress.lines[:1]


@pytest.mark.parametrize("key", ["https://index.docker.io/v1/", "docker.io"])
def test_docker_hub_has_names_of_its_own(docker_config: Path, key: str) -> None:
    docker_config.write_text(json.dumps({"auths": {key: {"auth": base64.b64encode(b"me:pass:word").decode()}}}))
    assert find_credentials("docker.io", pytest.fail) == Credentials("me", "pass:word")


@pytest.mark.parametrize("text", ["not json", "[]", '{"auths": []}', '{"auths": {"r.example.org": {"auth": "%%%"}}}'])
def test_a_strange_configuration_is_no_credentials(docker_config: Path, text: str) -> None:
    docker_config.write_text(text)
    assert find_credentials("r.example.org", lambda _: None) is None


def test_credentials_do_not_show_themselves() -> None:
    assert "secret" not in repr(Credentials("me", "secret", "secret"))


# a tag that moves ------------------------------------------------------------------------------------------------------


def test_a_tag_that_stayed(registry: Registry, store: Store) -> None:
    base = resolve(registry.put("team/base", "1", IMAGE, index_of(IMAGE)), store)
    assert moved_base(base, "linux/amd64", store, Silent(), QUICK) is None


def test_a_tag_that_moved(registry: Registry, store: Store) -> None:
    before, now = index_of(IMAGE), FakeImage(layer_tars("12.4.2"), ("CUDA_VERSION=12.4.2", "NV_CUDNN_VERSION=9.1.0"))
    base = resolve(registry.put("team/base", "1", IMAGE, before), store)
    registry.put("team/base", "1", now, index_of(now))
    finding = moved_base(base, "linux/amd64", store, Silent(), QUICK)
    assert finding is not None
    assert finding.id == "base-moved"
    assert digest(before) in finding.why
    assert digest(index_of(now)) in finding.why
    assert "CUDA_VERSION 12.4.1 → 12.4.2" in finding.why
    assert "NV_CUDNN_VERSION none → 9.1.0" in finding.why
    assert "NVIDIA_REQUIRE_CUDA cuda>=12.4 → none" in finding.why


def test_an_index_that_moved_around_the_same_image(registry: Registry, store: Store) -> None:
    base = resolve(registry.put("team/base", "1", IMAGE, index_of(IMAGE)), store)
    registry.put("team/base", "1", IMAGE, index_of(IMAGE, FakeImage(platform="linux/arm64")))
    finding = moved_base(base, "linux/amd64", store, Silent(), QUICK)
    assert finding is not None
    assert "the image for linux/amd64 is the same" in finding.why


# references ------------------------------------------------------------------------------------------------------------

SHA = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("text", "host", "repository", "wanted"),
    [
        ("ubuntu", "registry-1.docker.io", "library/ubuntu", "latest"),
        ("nvidia/cuda:12.4.1-base-ubuntu22.04", "registry-1.docker.io", "nvidia/cuda", "12.4.1-base-ubuntu22.04"),
        ("nvcr.io/nvidia/pytorch:24.05-py3", "nvcr.io", "nvidia/pytorch", "24.05-py3"),
        ("localhost:5000/base", "localhost:5000", "base", "latest"),
        ("docker.io/library/debian:12", "registry-1.docker.io", "library/debian", "12"),
        (f"nvidia/cuda@{SHA}", "registry-1.docker.io", "nvidia/cuda", SHA),
        (f"nvidia/cuda:1@{SHA}", "registry-1.docker.io", "nvidia/cuda", SHA),
    ],
)
def test_references(text: str, host: str, repository: str, wanted: str) -> None:
    reference = parse_reference(text)
    assert (reference.host, reference.repository, reference.wanted) == (host, repository, wanted)


@pytest.mark.parametrize("text", ["", "UPPER/case", "a//b", "name:", "name:-x", "name@sha256:0", "../up", "reg.example.org/", "a b"])
def test_what_is_no_reference(text: str) -> None:
    with pytest.raises(UsageError, match="is not an image reference"):
        parse_reference(text)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("localhost:5000", True),
        ("127.0.0.1:80", True),
        ("[::1]:5000", True),
        ("10.0.0.1:5000", False),
        ("localhost.example.org", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert parse_reference(f"{host}/base").is_loopback is loopback
