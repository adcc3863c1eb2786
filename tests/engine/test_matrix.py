"""The same lock on every engine and by either route: one image digest, one file tree.

Each engine starts from a store with the lock's inputs and the base alone, so that whatever is made in a container is made there.
"""

from __future__ import annotations

import io
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import pytest
import registry
from test_routes import docker_build
from tiny import PYTHON, Tiny, copied_store, remove_images, renamed, temporaries

from envlock.build import build_image
from envlock.bundle import open_bundle
from envlock.context import write_context
from envlock.docker_build import build_with_docker, docker_tag
from envlock.engine import Engine, dockercli, loading
from envlock.errors import EnvlockError, Exit, ImageDiffers, Problems, exit_code_of
from envlock.foundation import debian_layer
from envlock.image import Settings, archive, make_image
from envlock.layers import Layer
from envlock.layers.canonical import Entry, Tree, write_layer
from envlock.layers.sandbox import stream_of
from envlock.lock import Built, Deb, ImageBase, Lock
from envlock.locking import ChosenLock, find_lock
from envlock.makers import open_foundation
from envlock.progress import Silent
from envlock.resolve import aptget
from envlock.resolve.apt import resolve_apt
from envlock.resolve.baseimage import resolve_archive, resolve_image
from envlock.resolve.python import PythonWish, resolve_wheels
from envlock.rootfs import read_rootfs

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from debian_archive import Package, archive_routes, signing_key
from loopback import serving
from test_runtime_layer import stored

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(not all(map(shutil.which, ("mmdebstrap", "gpg", "dpkg-deb"))), reason="needs mmdebstrap, gpg and dpkg-deb"),
]

PACKAGES = (
    Package("lab-tool", "2.0", fields={"Depends": "lab-data"}, files={"usr/bin/lab-tool": "#!/bin/sh\ncat /usr/share/lab/word\n"}),
    Package("lab-data", files={"usr/share/lab/word": "word\n"}, script="echo $SOURCE_DATE_EPOCH > /etc/made; date > /var/log/dpkg.log"),
)
# What a base from elsewhere may say, all of it in the way of what is built on it.
ODD = {
    "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "LD_LIBRARY_PATH=/usr/local/odd"],
    "User": "nobody",
    "WorkingDir": "/srv",
    "Entrypoint": ["/usr/bin/false"],
    "Cmd": ["odd"],
    "OnBuild": ["RUN exit 42", "COPY . /onbuild"],
    "Volumes": {"/opt/venv": {}, "/var/odd": {}},
    "Healthcheck": {"Test": ["CMD", "false"], "Interval": 10**9},
    "Shell": ["/usr/bin/false"],
    "StopSignal": "SIGKILL",
}
TAKEN_BACK = {name: ODD[name] for name in ("Env", "User", "WorkingDir", "Entrypoint", "Cmd")}


@dataclass(frozen=True)
class BaseImage:
    """A base's layers as tars, and the platform that it is for."""

    layers: tuple[Layer, ...]
    tars: tuple[Path, ...]
    platform: str

    def pushed(self, target: str, settings: dict[str, object], tiny: Tiny) -> ImageBase:
        """The base as locked out of a registry."""
        registry.push(target, self.tars, settings, self.platform)
        return resolve_image(target, self.platform, tiny.store, Silent())

    def archived(self, path: Path, tiny: Tiny) -> ImageBase:
        """The base as locked out of an archive."""
        files = dict(zip(self.layers, self.tars, strict=True))
        image = make_image(self.layers, Settings(self.platform, 0, {"PATH": "/usr/bin:/bin"}, {}))
        with path.open("wb") as stream:
            stream.writelines(archive(image, ("lab/base:1",), lambda layer: files[layer].open("rb")))
        return resolve_archive(path, path.name, self.platform, tiny.store, Silent())


@contextmanager
def base_image(tiny: Tiny, folder: Path) -> Iterator[BaseImage]:
    """A Debian that names an archive of its own, which is there for the time of the block."""
    layer = debian_layer(tiny.lock.base, tiny.store, Silent())
    tar = tiny.store.path(layer.diff_id.removeprefix("sha256:"))
    with signing_key() as key, serving(dict(archive_routes(key, folder, "lab", PACKAGES, root="/lab"))) as server:
        sources = f"Types: deb\nURIs: {server.url}/lab\nSuites: lab\nComponents: main\nSigned-By: /etc/apt/keyrings/lab.gpg\n"
        files = {"etc/apt/sources.list.d/lab.sources": sources.encode(), "etc/apt/keyrings/lab.gpg": key.public.read_bytes()}
        entries = [Entry(name, "file", size=len(content), open=partial(io.BytesIO, content)) for name, content in files.items()]
        with tar.open("rb") as stream, (folder / "top.tar").open("wb") as target:
            top = write_layer(entries, target, "an archive's name and key", Tree().with_tar(stream, "base"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(aptget, "host_transport", aptget.Transport)
            yield BaseImage((layer, top), (tar, folder / "top.tar"), tiny.lock.stack.platform)


def with_apt(tiny: Tiny, engine: Engine, *asked: str) -> Tiny:
    """The same with Debian packages, as the base's own apt chooses them."""
    lock, store = tiny.lock, tiny.store
    with open_foundation(lock, open_bundle(lock.shipped, store), lambda: engine, store, Silent()) as ground:
        newest = max(node.mtime for node in ground.base_tree.nodes.values())
        return tiny.with_lock(apt=resolve_apt(asked, lock.base, lock.stack.platform, ground.base_container, newest, store, Silent()))


@pytest.fixture(scope="module")
def locked(tiny_session: Tiny, engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tiny]:
    """Three locks with their inputs in a store. The registry, the archive and the packages' server are gone by the time of a build."""
    if registry.why_not():
        pytest.skip(str(registry.why_not()))
    folder = tmp_path_factory.mktemp("matrix")
    tiny = replace(tiny_session, store=copied_store(tiny_session.store, folder / "store"), lock_path=folder / "lock.yaml")
    tiny = tiny.with_lock(name=f"envlock-tiny-{secrets.token_hex(4)}")
    (wheel,) = [wheel for wheel in tiny.lock.wheels if wheel.name == "tiny"]
    wish = PythonWish(("markupsafe", "pyyaml"), python=PYTHON, platform=tiny.lock.stack.platform)
    wheels = (*tiny.lock.wheels, *resolve_wheels(wish, tiny.store, Silent()))
    found = {"Debian, git, wheels": with_apt(tiny.with_lock(wheels=wheels), engine, "git")}
    with base_image(tiny, folder) as base, registry.running_registry() as host:
        source = stored(tiny.store, "/workspace/train.py", b"print(1)\n")
        odd = tiny.with_lock(base=base.pushed(f"{host}/lab/odd:1", ODD, tiny), wheels=(wheel,), files=(source,))
        found["registry, two packages, a wheel"] = with_apt(odd, engine, "lab-tool")
        found["archive"] = tiny.with_lock(base=base.archived(folder / "base.tar", tiny), wheels=(wheel,))
    (folder / "base.tar").unlink()
    return found


@dataclass(frozen=True)
class Made:
    """What one engine made of a lock by both routes."""

    image_digest: str
    assembled: str
    by_docker: str


def made(tiny: Tiny, engine: Engine, folder: Path) -> Made:
    if engine.store == "containerd" and dockercli.find_client() is None:
        pytest.skip("needs a Docker client with BuildKit: Debian 12's docker.io, or a newer one with docker-buildx")
    own = replace(tiny, store=copied_store(tiny.store, folder / "store"), lock_path=folder / "lock.yaml")
    chosen = ChosenLock(own.written(), own.lock, None)
    try:
        image = build_image(chosen, engine, own.store, Silent()).image
        by_docker = docker_tag(own.lock)
        build_with_docker(chosen, engine, own.store, Silent(), (by_docker,), folder / "log", from_cache=False)
        assert effective(engine, by_docker) == effective(engine, own.tag)
        return Made(image.digest, rootfs(engine, own.tag), rootfs(engine, by_docker))
    finally:
        remove_images(engine, own.lock.name)
        shutil.rmtree(folder)


def rootfs(engine: Engine, tag: str) -> str:
    return read_rootfs(stream_of(engine.export(tag)), tag).digest


def effective(engine: Engine, tag: str) -> dict[str, object]:
    """What the config of an image does to its containers and to what is built on it. A variable that is empty counts as none."""
    config = engine._api.inspect_image(tag)["Config"]
    found = {name: config.get(name) for name in ODD if config.get(name)}
    defaults = {"User": "0", "WorkingDir": "/"}
    return {**defaults, **found, "Env": sorted(line for line in config["Env"] if not line.endswith("="))}


@pytest.fixture(scope="module")
def first(locked: dict[str, Tiny], engine: Engine, tmp_path_factory: pytest.TempPathFactory):
    """What the host's own engine makes of each lock, made once."""
    return cache(lambda name: made(locked[name], engine, tmp_path_factory.mktemp("first")))


@pytest.mark.parametrize("name", ["Debian, git, wheels", "registry, two packages, a wheel", "archive"])
def test_one_lock_is_one_image_on_every_engine_by_either_route(
    name: str, any_engine: Engine, engine: Engine, locked: dict[str, Tiny], first, tmp_path: Path
) -> None:
    found = first(name) if any_engine is engine else made(locked[name], any_engine, tmp_path / "there")
    assert found.by_docker == found.assembled
    assert (found.image_digest, found.assembled) == (first(name).image_digest, first(name).assembled)


def test_a_build_that_is_refused_half_way_changes_nothing(
    any_engine: Engine, locked: dict[str, Tiny], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers of it are in the engine already when its digest turns out to be another than the recorded one."""
    tiny = locked["archive"].with_lock(name=f"{locked['archive'].lock.name}-refused")
    store = copied_store(tiny.store, tmp_path / "store")
    chosen = ChosenLock(replace(tiny, lock_path=tmp_path / "lock.yaml").written(), tiny.lock, None)
    monkeypatch.setattr(loading, "BATCH", 1)
    try:
        build_image(chosen, any_engine, store, Silent())
        before = any_engine.image(f"{tiny.lock.name}:latest")
        other = tiny.lock.model_copy(update={"wheels": locked["Debian, git, wheels"].lock.wheels[:2]})
        wrong = f"sha256:{'0' * 64}"
        built = Built(lock=other.digest, image_digest=wrong, manifest_digest=wrong, diff_ids=())
        with pytest.raises(ImageDiffers):
            build_image(ChosenLock(tmp_path / "other.lock.yaml", other, built), any_engine, store, Silent())
        assert any_engine.image(f"{tiny.lock.name}:latest") == before
        assert any_engine.image(f"{tiny.lock.name}:{other.short_digest}") is None
        assert temporaries(any_engine, [os.getpid()]) == []
    finally:
        remove_images(any_engine, tiny.lock.name)


@pytest.mark.parametrize(
    ("settings", "starts_from"),
    [(TAKEN_BACK, "FROM 127.0.0.1:"), (ODD, "FROM envlock-base:")],
    ids=["what-instructions-take-back", "what-none-takes-back"],
)
def test_nothing_of_a_base_config_gets_into_an_image_that_the_client_builds(
    settings: dict[str, object], starts_from: str, tiny_session: Tiny, engine: Engine, tmp_path: Path
) -> None:
    """The written instructions alone, out of a registry where they may start from it."""
    if registry.why_not():
        pytest.skip(str(registry.why_not()))
    for own in renamed(tiny_session, engine, tmp_path):
        with base_image(own, tmp_path) as base, registry.running_registry() as host:
            tiny = own.with_lock(base=base.pushed(f"{host}/lab/base:1", settings, own), wheels=own.lock.wheels[:1])
            chosen = ChosenLock(tiny.written(), tiny.lock, None)
            build_image(chosen, engine, tiny.store, Silent())
            context = tmp_path / "context"
            write_context(chosen, open_bundle(tiny.lock.shipped, tiny.store), tiny.store, context, lambda: engine, Silent())
            (start,) = [line for line in (context / "Dockerfile").read_text().splitlines() if line.startswith("FROM")]
            assert start.startswith(starts_from)
            archived = context / "base-image.tar"
            try:
                if archived.exists():
                    engine.load_archive([archived.read_bytes()])
                done = docker_build(engine, context, f"{tiny.lock.name}:client")
                assert done.returncode == 0, done.stderr
                assert effective(engine, f"{tiny.lock.name}:client") == effective(engine, tiny.tag)
                assert rootfs(engine, f"{tiny.lock.name}:client") == rootfs(engine, tiny.tag)
            finally:
                engine.remove(start.removeprefix("FROM "))


def named(debs: tuple[Deb, ...], name: str) -> str:
    return next(deb.sha256 for deb in debs if deb.name == name)


# By kind of input: the lock that has one, its sha256 there, and what it is called. `build` reads all but the last three: what it does
# without cannot get into an image.
INPUTS: dict[str, tuple[str, Callable[[Lock], str], str]] = {
    "a wheel": ("archive", lambda lock: lock.wheels[0].sha256, "tiny-1-py3-none-any.whl"),
    "a package of the base": ("Debian, git, wheels", lambda lock: named(lock.base.debs, "coreutils"), "coreutils "),
    "a package of the spec": ("registry, two packages, a wheel", lambda lock: named(lock.apt.debs, "lab-data"), "lab-data 1.0"),
    "a layer of the base": ("archive", lambda lock: lock.base.layers[-1].digest[7:], "a layer of base.tar"),
    "a file of the spec": ("registry, two packages, a wheel", lambda lock: lock.files[0].sha256, "src/train.py"),
    "the config of the base": ("archive", lambda lock: lock.base.config_digest[7:], "the config of base.tar"),
    "the installer": ("archive", lambda lock: lock.installer.sha256, "installer-"),
    "the bundle": ("archive", lambda lock: lock.shipped.sha256, "the bundle of envlock"),
}
ROUTES = [("assemble", kind) for kind in list(INPUTS)[:5]] + [("dockerfile", kind) for kind in INPUTS]


@pytest.mark.parametrize(("route", "kind"), ROUTES)
def test_a_flipped_byte_in_any_input_is_named(route: str, kind: str, engine: Engine, locked: dict[str, Tiny], tmp_path: Path) -> None:
    lock, digest_of, name = INPUTS[kind]
    tiny = replace(locked[lock].with_lock(name=f"{locked[lock].lock.name}-flipped"), lock_path=tmp_path / "lock.yaml")
    store = copied_store(tiny.store, tmp_path / "store", facts="of the base" not in kind)
    path = store.path(digest_of(tiny.lock))
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.unlink()
    path.write_bytes(raw)
    chosen = ChosenLock(tiny.written(), tiny.lock, None)
    builds = {
        "assemble": lambda: build_image(chosen, engine, store, Silent()),
        "dockerfile": lambda: build_with_docker(chosen, engine, store, Silent(), (docker_tag(tiny.lock),), tmp_path / "log"),
    }
    try:
        with pytest.raises(Problems) as caught:
            builds[route]()
        assert engine.image(tiny.tag) is None
    finally:
        remove_images(engine, tiny.lock.name)
    (finding,) = caught.value.findings
    assert exit_code_of(caught.value) == Exit.FILE
    assert finding.what.startswith(name)
    assert finding.what.endswith(" in the store is damaged")
    assert finding.where == str(path)


def test_a_flipped_bit_in_the_mode_of_a_wheels_script_is_named(engine: Engine, locked: dict[str, Tiny], tmp_path: Path) -> None:
    """No checksum in a wheel covers it."""
    tiny = locked["Debian, git, wheels"]
    (wheel,) = [wheel for wheel in tiny.lock.wheels if wheel.name == "other"]
    store = copied_store(tiny.store, tmp_path / "store")
    tiny = replace(tiny.with_lock(name=f"{tiny.lock.name}-flipped", apt=None, wheels=(wheel,)), lock_path=tmp_path / "lock.yaml")
    path = store.path(wheel.sha256)
    raw = bytearray(path.read_bytes())
    row = raw.rindex(b"other-1.data/scripts/other-script") - 46  # its row in the central directory (APPNOTE.TXT 4.3.12)
    raw[row + 40] ^= 0b1000000  # of its external attributes, the owner's right to execute
    path.unlink()
    path.write_bytes(raw)
    with pytest.raises(Problems, match=wheel.file):
        build_image(ChosenLock(tiny.written(), tiny.lock, None), engine, store, Silent())


@pytest.mark.parametrize("kind", ["a wheel", "a package of the base", "a layer of the base"])
def test_a_flipped_digit_in_a_lock_is_named(
    kind: str, engine: Engine, locked: dict[str, Tiny], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No source has a file with that sha256."""
    lock, digest_of, name = INPUTS[kind]
    sha256 = digest_of(locked[lock].lock)
    path = tmp_path / "lock.yaml"
    path.write_text(locked[lock].written().read_text().replace(sha256, sha256[:-1] + ("1" if sha256[-1] == "0" else "0")))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(EnvlockError) as caught:
        build_image(find_lock(path), engine, copied_store(locked[lock].store, tmp_path / "store", facts=False), Silent())
    assert exit_code_of(caught.value) == Exit.FILE
    assert name.removeprefix("a layer of ") in " ".join(finding.what for finding in caught.value.findings)
