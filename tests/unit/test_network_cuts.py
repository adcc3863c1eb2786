"""A network that breaks in the middle of any answer: another try gets the same; where none helps it is said, and nothing half is kept."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from debian_archive import SigningKey, archive_routes, signing_key
from image_helpers import FakeImage, digest, index_of
from loopback import Answer, Request, Server, ranged, serving
from package_index import html_page

from envlock.errors import EnvlockError, Exit, FetchError, Problems, exit_code_of
from envlock.fetch import Wanted, fetch_all
from envlock.layers.blobs import plain_layers
from envlock.pipconfig import PipSettings
from envlock.progress import Silent
from envlock.resolve import aptget, archives
from envlock.resolve.baseimage import resolve_image
from envlock.resolve.debian import resolve_base
from envlock.resolve.pages import Pages
from envlock.store import Store
from envlock.transport import Patience, Transport

TRANSPORT = Transport(Patience(attempts=4, pause=0.01, connect=5, read=5), {}, PipSettings())
MOMENTS = int(os.environ.get("ENVLOCK_CUTS", "4"))
IMAGE = FakeImage()
WHEEL = b"x" * 300_000
needs_apt = pytest.mark.skipif(not all(map(shutil.which, ("apt-get", "gpg", "dpkg-deb"))), reason="needs apt, gpg and dpkg-deb")


def moments() -> list[float]:
    """Shares of an answer after which it breaks: before its first byte, before its last, and in between."""
    numbers = random.Random(8)
    return [0.0, 0.999, *(numbers.random() for _ in range(MOMENTS - 2))]


@contextmanager
def cutting(routes: dict[str, bytes], share: float, times: int, only: str = "") -> Iterator[Server]:
    """Serve files; the first `times` answers for each path (those that hold `only`) break off after a share of their bytes."""
    cuts: Counter[str] = Counter()
    with serving({}) as server:

        def answer(request: Request, body: bytes) -> Answer:
            whole = ranged(body, request)
            if only in request.path and cuts[request.path] < times:
                cuts[request.path] += 1
                whole.cut = int(len(whole.body) * share)
            return whole

        for path, body in routes.items():
            server.routes[path] = lambda request, body=body: answer(request, body)
        yield server


def clean(store: Store) -> None:
    """Nothing half is in a store, and nothing under way."""
    assert store.verify() == ()
    assert not list((store.root / "work").glob("*/*"))


def assert_told(error: EnvlockError) -> None:
    """It is told as files that could not be had, with what to do."""
    assert exit_code_of(error) == Exit.FILE
    assert all(finding.hint for finding in error.findings)


def refused(error: EnvlockError) -> None:
    """It is told as a file that could not be had, each fault with what to do."""
    assert exit_code_of(error) == Exit.FILE
    assert all(finding.id in ("unreachable", "download-damaged") and finding.why + finding.hint for finding in error.findings)


REGISTRY = {
    "/v2/": b"{}",
    "/v2/t/b/manifests/1": index_of(IMAGE),
    f"/v2/t/b/manifests/{digest(IMAGE.manifest)}": IMAGE.manifest,
    **{f"/v2/t/b/blobs/{name}": raw for name, raw in IMAGE.blobs.items()},
}


@pytest.mark.parametrize("share", moments())
def test_registry(share: float, tmp_path: Path) -> None:
    found = []
    for times in (0, 1):
        store = Store(tmp_path / f"{times}")
        with cutting(REGISTRY, share, times, "/t/b/") as server:
            base = resolve_image(f"{server.url.partition('//')[2]}/t/b:1", "linux/amd64", store, Silent(), TRANSPORT)
        plain_layers(base.layers, "base", store, Silent())
        found.append(base.model_copy(update={"reference": ""}))
        clean(store)
    assert found[0] == found[1]
    for only in ("manifests/1", digest(IMAGE.manifest), *IMAGE.blobs):
        store = Store(tmp_path / only[-20:].replace("/", "-"))
        with cutting(REGISTRY, share, 10**6, only) as server, pytest.raises(EnvlockError) as caught:
            resolve_image(f"{server.url.partition('//')[2]}/t/b:1", "linux/amd64", store, Silent(), TRANSPORT)
        refused(caught.value)
        clean(store)


@pytest.mark.parametrize("share", moments())
def test_wheels_and_their_index(share: float, tmp_path: Path) -> None:
    name = hashlib.sha256(WHEEL).hexdigest()
    page = json.dumps({"files": [{"filename": "x.whl", "url": "/x.whl", "hashes": {"sha256": name}}]}).encode()
    html = html_page([("x.whl", "/x.whl", name)]).body
    for times, only in ((1, ""), (10**6, "/simple"), (10**6, "/x.whl")):
        store = Store(tmp_path / f"{times}{only.replace('/', '-')}")
        with cutting({"/simple/x/": html, "/json/x/": page, "/x.whl": WHEEL}, share, times, only) as server:
            try:
                (offer,) = Pages(TRANSPORT).project(f"{server.url}/simple", "x")
                fetch_all([Wanted("x.whl", name, len(WHEEL), lambda url=offer.url: [url])], store, Silent(), transport=TRANSPORT)
            except (FetchError, Problems) as error:
                assert times > 1
                refused(error)
                assert not store.has(name)
            else:
                assert times == 1
                assert store.path(name).read_bytes() == WHEEL
        if (store.root / "work").exists():
            clean(store)


@pytest.fixture(scope="module")
def key() -> Iterator[SigningKey]:
    with signing_key() as made:
        yield made


@needs_apt
@pytest.mark.parametrize("share", moments()[:2])
def test_debian_s_lists_and_packages(share: float, key: SigningKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "archive").mkdir()
    routes = archive_routes(key, tmp_path / "archive", "bookworm")
    monkeypatch.delenv(archives.SNAPSHOT, raising=False)
    monkeypatch.setattr(archives, "keyring", lambda: str(key.public))
    monkeypatch.setattr(aptget, "host_transport", aptget.Transport)
    found = []
    for times, only in ((0, ""), (1, ".deb"), (10**6, ".deb"), (10**6, "Packages")):
        store = Store(tmp_path / f"{times}{only}")
        with cutting(routes, share, times, only) as server:
            for name in (archives.MIRROR, archives.SECURITY_MIRROR):
                monkeypatch.setenv(name, f"{server.url}/debian")
            try:
                found.append(resolve_base("bookworm", "linux/amd64", (), store, Silent()))
            except EnvlockError as error:
                assert times > 1
                assert_told(error)
            else:
                assert times <= 1
        clean(store)
    assert found[0] == found[1]
