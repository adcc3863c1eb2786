"""What a rebuild would need from outside: there, delisted but still served, or gone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from image_helpers import FakeImage
from loopback import Answer, Server, serving
from package_index import content_path, make_wheel, package_index
from sample_locks import cpu_lock, deb

from envlock.lock import Blob, DebianBase, ImageBase, Lock, Wheel
from envlock.outside import Outside, sources_of
from envlock.progress import Silent
from envlock.store import Store
from envlock.transport import Patience, Transport

FILE = "torch-1.0-py3-none-any.whl"
BODY = make_wheel(FILE)
OTHER = "installer-1.0-py3-none-any.whl"
SUITE = "bookworm"


def wheel(file: str, body: bytes) -> Wheel:
    name = file.partition("-")[0]
    sha256 = hashlib.sha256(body).hexdigest()
    return Wheel(name=name, version="1.0", file=file, sha256=sha256, size=len(body), index="default", path=content_path(body, file))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    """An index and a mirror of Debian at one address, and a user whose settings name nothing else."""
    with package_index(
        {FILE: BODY, OTHER: make_wheel(OTHER), "pip-1.0-py3-none-any.whl": make_wheel("pip-1.0-py3-none-any.whl")}
    ) as running:
        for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "UV_INDEX", "UV_FIND_LINKS", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("UV_NO_CONFIG", "1")
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("PIP_INDEX_URL", f"{running.url}/simple")
        monkeypatch.setenv("ENVLOCK_DEBIAN_MIRROR", f"{running.url}/debian")
        monkeypatch.setenv("ENVLOCK_DEBIAN_SECURITY_MIRROR", f"{running.url}/security")
        for path, answer in list(running.routes.items()):
            if path.startswith("/packages/"):
                running.routes[path] = b"a wheel" if callable(answer) else answer
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def lock(debs: tuple[str, ...] = ()) -> Lock:
    base = DebianBase(suite=SUITE, snapshot="20261128T201100Z", date=1, debs=tuple(deb(name) for name in debs))
    return cpu_lock(base=base, wheels=(wheel(FILE, BODY),), installer=wheel(OTHER, make_wheel(OTHER)))


def asked(lock: Lock, store: Store) -> dict[str, Outside]:
    quick = Transport(Patience(attempts=1, pause=0.01, connect=2, read=2))
    return {found.what: found for found in sources_of(lock, store, Silent(), quick)}


def told(found: Outside) -> tuple[str, str]:
    assert found.finding is not None
    return found.finding.id, found.finding.severity


def test_a_wheel_that_its_index_names(server: Server, store: Store) -> None:
    found = asked(lock(), store)
    assert {name: row.state for name, row in found.items()} == {FILE: "there", OTHER: "there"}
    assert [row.finding for row in found.values()] == [None, None]


def test_a_wheel_that_no_page_names_any_more(server: Server, store: Store) -> None:
    server.routes["/simple/torch/"] = b"<!DOCTYPE html><html></html>"
    found = asked(lock(), store)[FILE]
    assert (found.state, told(found)) == ("delisted", ("source-delisted", "warning"))


def test_a_wheel_that_is_gone(server: Server, store: Store) -> None:
    server.routes["/simple/torch/"] = Answer(status=404)
    server.routes["/" + content_path(BODY, FILE)] = Answer(status=404)
    found = asked(lock(), store)[FILE]
    assert (found.state, told(found)) == ("gone", ("source-gone", "error"))


def test_what_is_gone_and_stored_is_a_warning(server: Server, store: Store, tmp_path: Path) -> None:
    server.routes["/simple/torch/"] = Answer(status=404)
    server.routes["/" + content_path(BODY, FILE)] = Answer(status=404)
    (tmp_path / FILE).write_bytes(BODY)
    store.add(tmp_path / FILE, hashlib.sha256(BODY).hexdigest())
    assert told(asked(lock(), store)[FILE]) == ("source-gone", "warning")


def test_an_index_that_does_not_answer_is_not_taken_for_empty(server: Server, store: Store) -> None:
    server.routes["/simple/torch/"] = Answer(status=503)
    server.routes["/" + content_path(BODY, FILE)] = Answer(status=503)
    assert told(asked(lock(), store)[FILE]) == ("source-unknown", "warning")


def test_debian_packages(server: Server, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    here, dropped, lost = deb("adduser"), deb("bash"), deb("curl")
    server.routes[f"/debian/{here.path}"] = b"a package"
    server.routes[f"/snapshot/debian/20261128T201100Z/{dropped.path}"] = b"a package"
    monkeypatch.setenv("ENVLOCK_DEBIAN_SNAPSHOT", f"{server.url}/snapshot/{{archive}}/{{snapshot}}")
    found = asked(lock(("adduser", "bash", "curl")), store)
    states = [found[f"{row.name} {row.version}"].state for row in (here, dropped, lost)]
    assert states == ["there", "delisted", "gone"]


@pytest.mark.parametrize(
    ("tag", "digest", "state"), [(200, 200, "there"), (404, 200, "delisted"), (404, 404, "gone"), (503, 503, "unknown")]
)
def test_base_images(store: Store, tag: int, digest: int, state: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    image = FakeImage()
    manifest = "sha256:" + hashlib.sha256(image.manifest).hexdigest()
    with serving({"/v2/": b"{}"}) as server:
        for reference, status in (("1", tag), (manifest, digest)):
            server.routes[f"/v2/team/base/manifests/{reference}"] = Answer(image.manifest if status == 200 else b"", status)
        blob = Blob(digest=f"sha256:{'b' * 64}", size=1, media_type="tar", diff_id=f"sha256:{'b' * 64}")
        name = f"{server.url.partition('://')[2]}/team/base:1"
        base = ImageBase(kind="image", reference=name, manifest_digest=manifest, config_digest=manifest, config_size=1, layers=(blob,))
        assert asked(lock().model_copy(update={"base": base}), store)[name].state == state
