"""What the spec's `apt` takes is chosen by the base's own apt and installed to the same bytes every time, or refused by name."""

from __future__ import annotations

import io
import os
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from debian_archive import BUILT, Package, archive_routes, signing_key
from loopback import serving

from envlock.engine import Container, Engine
from envlock.environment import SYSTEM_PATH
from envlock.errors import EnvlockError, Exit, exit_code_of
from envlock.layers import Layer
from envlock.layers.apt import install_apt, require_repeatable
from envlock.layers.base import bootstrap
from envlock.layers.canonical import Entry, Tree, write_layer
from envlock.lock import Apt, DebianBase, ImageBase
from envlock.progress import Silent
from envlock.resolve import aptget
from envlock.resolve.apt import resolve_apt, urls_of_base
from envlock.resolve.debian import resolve_base
from envlock.store import Store
from envlock.workshop import open_workshop

pytestmark = [
    pytest.mark.engine,
    pytest.mark.network,
    pytest.mark.skipif(not all(map(shutil.which, ("mmdebstrap", "gpg", "dpkg-deb"))), reason="needs mmdebstrap, gpg and dpkg-deb"),
]

STEPS = {path.name: path.read_bytes() for path in (Path(__file__).parents[2] / "templates/image/steps").iterdir() if path.is_file()}
PLATFORM = "linux/amd64" if os.uname().machine == "x86_64" else "linux/arm64"

PACKAGES = (
    Package("steady", "2.0", fields={"Depends": "steady-data (>= 1)"}, files={"usr/bin/steady": "#!/bin/sh\ncat /usr/share/steady/word\n"}),
    Package(
        "steady-data",
        "1:1.5~rc1",
        fields={"Recommends": "unwanted"},
        files={"usr/share/steady/word": "steady\n"},
        script=(
            "mkdir -p /var/log/apt /var/lib/dbus; date +%N > /var/log/apt/when; date +%N > /var/lib/dbus/machine-id\n"
            "echo $SOURCE_DATE_EPOCH > /etc/made"
        ),
    ),
    Package(
        "random",
        files={"usr/share/random/a": "a"},
        script="date +%s%N > /usr/share/random/id; mkdir /var/lib/random; : > /var/lib/random/ok",
    ),
    Package("cuda-tool", fields={"Depends": "libcuda1"}),
    Package("libcuda1"),
    Package("unwanted"),
)


@dataclass(frozen=True)
class Ground:
    """A base in the engine: as the lock has it, its tree, and what starts a container of it."""

    locked: DebianBase | ImageBase
    tree: Tree
    open: Callable[[], AbstractContextManager[Container]]

    @property
    def newest(self) -> int:
        return max(node.mtime for node in self.tree.nodes.values())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def debian(store: Store, tmp_path_factory: pytest.TempPathFactory) -> tuple[DebianBase, Layer, Path]:
    """A bootstrapped base and its tar."""
    path = tmp_path_factory.mktemp("base") / "base.tar"
    locked = resolve_base("bookworm", PLATFORM, (), store, Silent())
    with path.open("wb") as target:
        return locked, bootstrap(locked, store, Silent(), target), path


@contextmanager
def ground(engine: Engine, locked: DebianBase | ImageBase, layers: dict[Layer, Path]) -> Iterator[Ground]:
    tree = Tree()
    for layer, path in layers.items():
        with path.open("rb") as stream:
            tree = tree.with_tar(stream, layer.holds)
    with open_workshop(engine, list(layers), lambda layer: layers[layer].open("rb"), PLATFORM, SYSTEM_PATH) as sandbox:
        yield Ground(locked, tree, sandbox)


@pytest.fixture(scope="module")
def ours(engine: Engine, debian: tuple[DebianBase, Layer, Path]) -> Iterator[Ground]:
    """The base that envlock made: it names no archive."""
    locked, layer, path = debian
    with ground(engine, locked, {layer: path}) as found:
        yield found


@pytest.fixture(scope="module")
def theirs(engine: Engine, debian: tuple[DebianBase, Layer, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """A base from elsewhere, which names an archive of its own and the key that this is held to."""
    folder = tmp_path_factory.mktemp("archive")
    _, layer, path = debian
    with signing_key() as key, serving(dict(archive_routes(key, folder, "own", PACKAGES, root="/own"))) as server:
        deb822 = f"Types: deb\nURIs: {server.url}/own\nSuites: own\nComponents: main\nSigned-By: /etc/apt/keyrings/own.gpg\n"
        files = {"etc/apt/sources.list.d/own.sources": deb822.encode(), "etc/apt/keyrings/own.gpg": key.public.read_bytes()}
        extra = folder / "extra.tar"
        with path.open("rb") as stream, extra.open("wb") as target:
            below = Tree().with_tar(stream, "base")
            entries = [Entry(name, "file", size=len(content), open=partial(io.BytesIO, content)) for name, content in files.items()]
            top = write_layer(entries, target, "an archive's name and key", below)
        digest = f"sha256:{'0' * 64}"
        locked = ImageBase(kind="archive", reference="base.tar", manifest_digest=digest, config_digest=digest, config_size=1, layers=())
        with pytest.MonkeyPatch.context() as patch, ground(engine, locked, {layer: path, top: extra}) as found:
            patch.setattr(aptget, "host_transport", aptget.Transport)
            yield found


def resolved(base: Ground, store: Store, *asked: str, keep: Apt | None = None) -> Apt:
    return resolve_apt(asked, base.locked, PLATFORM, base.open, base.newest, store, Silent(), keep)


def refused(base: Ground, store: Store, *asked: str) -> EnvlockError:
    with pytest.raises(EnvlockError) as caught:
        resolved(base, store, *asked)
    return caught.value


def made(base: Ground, store: Store, apt: Apt) -> bytes:
    target = io.BytesIO()
    layer = install_apt(apt, STEPS, base.open, base.tree, store, target)
    assert layer.size == len(target.getvalue())
    return target.getvalue()


def contents(layer: bytes) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        return {member.name: (member, (tar.extractfile(member).read() if member.isreg() else b"")) for member in tar}


def test_a_bases_own_archive_gives_the_closure_by_hash(theirs: Ground, store: Store) -> None:
    apt = resolved(theirs, store, "steady")
    assert [(deb.name, deb.version, deb.archive) for deb in apt.debs] == [("steady", "2.0", "base"), ("steady-data", "1:1.5~rc1", "base")]
    assert all(store.has(deb.sha256, deb.size) for deb in apt.debs)
    assert (apt.asked, apt.date) == (("steady",), max(theirs.newest, BUILT))
    assert "127.0.0.1" not in apt.model_dump_json()
    assert resolved(theirs, store, "steady", keep=apt) is apt
    with theirs.open() as sandbox:
        (url,) = urls_of_base(sandbox)
    assert url.endswith("/own/")


def test_the_layer_is_what_the_installation_changed_and_the_same_every_time(theirs: Ground, store: Store) -> None:
    apt = resolved(theirs, store, "steady")
    require_repeatable(apt, STEPS, theirs.open, theirs.tree, store)
    layer = made(theirs, store, apt)
    assert made(theirs, store, apt) == layer
    files = contents(layer)
    assert files["usr/share/steady/word"][1] == b"steady\n"
    assert files["etc/made"][1] == f"{apt.date}\n".encode()
    assert max(member.mtime for member, _ in files.values()) == apt.date
    assert not [name for name in files if "machine-id" in name or "envlock" in name or name.startswith(("var/log/apt/", "usr/sbin"))]
    assert "Package: steady-data" in files["var/lib/dpkg/status"][1].decode()


def test_a_package_that_writes_randomness_is_named_with_the_file(theirs: Ground, store: Store) -> None:
    apt = resolved(theirs, store, "random")
    with pytest.raises(EnvlockError) as caught:
        require_repeatable(apt, STEPS, theirs.open, theirs.tree, store)
    assert exit_code_of(caught.value) == Exit.NO_STACK
    assert [(found.id, found.what, found.where) for found in caught.value.findings] == [
        ("apt-varies", "/usr/share/random/id differs from run to run", "random"),
    ]


def test_packages_that_bring_the_hosts_driver_are_refused(theirs: Ground, store: Store) -> None:
    error = refused(theirs, store, "cuda-tool")
    assert exit_code_of(error) == Exit.NO_STACK
    assert [found.what for found in error.findings] == ["libcuda1 would bring NVIDIA's driver into the image"]
    assert "cuda-tool" in error.hint


def test_every_unknown_package_is_named(theirs: Ground, store: Store) -> None:
    error = refused(theirs, store, "nope", "nope-too")
    assert [found.what for found in error.findings] == ["there is no package nope", "there is no package nope-too"]


def test_a_base_of_ours_takes_debians_packages(ours: Ground, store: Store) -> None:
    apt = resolved(ours, store, "hello", "bc")
    assert {deb.archive for deb in apt.debs} == {"debian"}
    assert {"hello", "bc"} <= {deb.name for deb in apt.debs}
    assert ours.locked.date <= apt.date  # type: ignore[union-attr]
    layer = made(ours, store, apt)
    assert made(ours, store, apt) == layer
    with ours.open() as sandbox:
        sandbox.put("/", [layer])
        assert said(sandbox, "sh", "-c", "hello; echo 6*7 | bc; dpkg --audit; ls /etc/apt/sources.list.d") == "Hello, world!\n42\n"


def said(sandbox: Any, *command: str) -> str:
    return str(sandbox.exec(command).output.decode())
