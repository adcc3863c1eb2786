"""The base layer is the same bytes wherever and by whomever it is made, and nothing is left when it cannot be."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest
from child import Child, Surroundings, run

from envlock.errors import DiskFull, HostNotReady, ToolMissing
from envlock.layers import Layer, base
from envlock.layers.base import bootstrap
from envlock.layers.volatile import action_on
from envlock.lock import Deb, DebianBase
from envlock.progress import Silent
from envlock.resolve.debian import resolve_base
from envlock.store import Store

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user too"),
    pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="needs mmdebstrap"),
]

T = TypeVar("T")
USER = "envlock-test"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("a store"))


@pytest.fixture(scope="module")
def locked(store: Store) -> DebianBase:
    return resolve_base("bookworm", "linux/amd64", (), store, Silent())


@pytest.fixture(scope="module")
def reference(locked: DebianBase, store: Store, tmp_path_factory: pytest.TempPathFactory) -> tuple[Layer, Path]:
    """The layer made by root, and its tar."""
    path = tmp_path_factory.mktemp("reference") / "base.tar"
    return made(locked, store, path)(), path


@pytest.fixture
def user() -> Iterator[pwd.struct_passwd]:
    """An ordinary user with a private home, for the time of the test."""
    home = Path(tempfile.mkdtemp(prefix="envlock-home-", dir="/var/tmp"))
    subprocess.run(["useradd", "--home-dir", home, "--shell", "/bin/sh", USER], check=True)
    try:
        found = pwd.getpwnam(USER)
        os.chown(home, found.pw_uid, found.pw_gid)
        yield found
    finally:
        subprocess.run(["userdel", USER], check=True, capture_output=True)
        shutil.rmtree(home)


def made(locked: DebianBase, store: Store, target: Path) -> Callable[[], Layer]:
    """What makes the layer."""

    def make() -> Layer:
        with target.open("wb") as stream:
            return bootstrap(locked, store, Silent(), stream)

    return make


def copied(store: Store, root: Path, owner: int | None = None) -> Store:
    """A store with the same blobs elsewhere."""
    shutil.copytree(store.root / "blobs", root / "blobs")
    if owner is not None:
        for path in (root, *root.rglob("*")):
            os.chown(path, owner, owner)
    return Store(root)


def left_in(store: Store) -> list[Path]:
    return [path for path in (store.root / "work").iterdir() if path.name != ".gate"]


def rooms() -> list[Path]:
    return list(Path("/var/tmp").glob("envlock-[0-9]*"))


def mounted_below(path: Path) -> list[str]:
    return [line for line in Path("/proc/mounts").read_text().splitlines() if str(path).replace(" ", "\\040") in line]


def test_the_layer_is_what_it_says(reference: tuple[Layer, Path]) -> None:
    layer, path = reference
    content = path.read_bytes()
    assert layer.diff_id == f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert layer.size == len(content)


def test_an_ordinary_user_makes_the_same_bytes_with_other_settings_and_host_name(
    locked: DebianBase, store: Store, reference: tuple[Layer, Path], user: pwd.struct_passwd
) -> None:
    home = Path(user.pw_dir)
    own = copied(store, home / "store", user.pw_uid)
    settings = {"TZ": "Asia/Tokyo", "LC_ALL": "de_DE.UTF-8", "HOME": str(home), "APT_CONFIG": "/dev/null", "DEBIAN_FRONTEND": "dialog"}
    elsewhere = Surroundings(user.pw_uid, "another-host", 0o077, settings)
    assert run(made(locked, own, home / "base.tar"), elsewhere) == reference[0]
    assert left_in(own) == []
    assert rooms() == []


def test_no_file_is_dated_after_the_newest_package_or_belongs_to_the_builder(
    locked: DebianBase, reference: tuple[Layer, Path], store: Store
) -> None:
    with tarfile.open(reference[1]) as tar:
        members = tar.getmembers()
        assert all(member.mtime <= locked.date for member in members)
        assert {member.mtime for member in members if member.isdir()} == {locked.date}
        assert all(member.uid < 1000 or member.uid == 65534 for member in members)
        assert all(member.uname == member.gname == "" for member in members)
        assert [member.name for member in members if action_on(member.name) == "remove"] == []
        sources = [member for member in members if member.name.startswith("etc/apt/sources") and member.isfile()]
        assert [(member.name, tar.extractfile(member).read().decode()) for member in sources] == [("etc/apt/sources.list", base.NO_SOURCES)]
        for member in members:
            if member.isfile():
                content = tar.extractfile(member).read()
                assert str(store.root).encode() not in content, member.name
                assert b"mmdebstrap." not in content, member.name
                assert b"envlock-packages" not in content, member.name


def test_every_locked_package_is_installed(locked: DebianBase, reference: tuple[Layer, Path]) -> None:
    with tarfile.open(reference[1]) as tar:
        status = tar.extractfile("var/lib/dpkg/status").read().decode()
    blocks = [dict(line.split(": ", 1) for line in block.splitlines() if ": " in line) for block in status.split("\n\n") if block]
    assert {block["Status"] for block in blocks} == {"install ok installed"}
    assert sorted((block["Package"], block["Version"]) for block in blocks) == [(deb.name, deb.version) for deb in locked.debs]


@pytest.mark.parametrize("as_user", [False, True], ids=["root", "ordinary-user"])
def test_a_killed_build_leaves_nothing_mounted_and_the_next_goes_on(
    as_user: bool, locked: DebianBase, store: Store, reference: tuple[Layer, Path], user: pwd.struct_passwd
) -> None:
    home = Path(user.pw_dir)
    owner = user.pw_uid if as_user else 0
    own = copied(store, home / "store", owner)
    surroundings = Surroundings(owner)
    work = made(locked, own, home / "base.tar")
    child = Child(work, surroundings)
    chroot = wait_for(lambda: next((root for root in chroots() if root.is_relative_to("/var/tmp" if as_user else own.root)), None))
    child.kill(signal.SIGKILL)
    wait_for(lambda: not running_in(chroot))
    assert mounted_below(home) == mounted_below(chroot) == []
    assert run(work, surroundings) == reference[0]
    assert left_in(own) == []
    assert rooms() == []


def wait_for(found: Callable[[], T | None]) -> T:
    for _ in range(600):
        if result := found():
            return result
        time.sleep(0.1)
    raise AssertionError("it took more than a minute")


def chroots() -> Iterator[Path]:
    """The new systems in which processes run; in memory they are seen from nowhere else."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            root = process.joinpath("root").readlink()
            if root.parent.name == "system":
                yield root


def running_in(chroot: Path) -> list[str]:
    """Processes that work on a new system: in it, or with its folder's parent for their temporary files."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            settings, root = process.joinpath("environ").read_bytes(), process.joinpath("root").readlink()
        except OSError:
            continue
        if f"TMPDIR={chroot.parent}\0".encode() in settings or root == chroot:
            found.append(process.name)
    return found


@pytest.mark.parametrize("memory", [0, 10**12], ids=["system on disk", "system in memory"])
def test_a_full_disk_is_said_to_be_full(
    memory: int, locked: DebianBase, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=150m", "tmpfs", disk], check=True)
    try:
        small = copied(store, disk / "store")
        with pytest.raises(DiskFull, match="full"):
            made(locked, small, tmp_path / "base.tar")()
        monkeypatch.setattr(base, "_NEEDED_BYTES", 0)
        monkeypatch.setattr(base, "spare_memory", lambda: memory)
        with pytest.raises(DiskFull, match="full"):
            made(locked, small, tmp_path / "base.tar")()
        assert left_in(small) == []
    finally:
        wait_for(lambda: subprocess.run(["umount", disk], capture_output=True, check=False).returncode == 0)


def test_a_user_without_subordinate_ids_is_told_how_to_get_them(locked: DebianBase, store: Store, tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    with pytest.raises(HostNotReady) as caught:
        run(lambda: said(made(locked, store, Path(os.devnull))), Surroundings(nobody))
    assert "usermod --add-subuids" in str(caught.value)


def said(work: Callable[[], object]) -> object:
    """The work, with all that an error says in its message: an error that crosses processes keeps nothing else."""
    try:
        return work()
    except HostNotReady as error:
        raise HostNotReady(f"{error.what}: {error.why}: {error.hint}") from None


def test_a_host_without_mmdebstrap(locked: DebianBase, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(base._ENVIRONMENT, "PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match="mmdebstrap"):
        made(locked, store, tmp_path / "base.tar")()


def test_a_base_for_another_kind_of_machine(store: Store, tmp_path: Path) -> None:
    deb = Deb(name="x", version="1", architecture="sparc64", archive="debian", path="pool/x", sha256="0" * 64, size=1)
    foreign = DebianBase(suite="bookworm", snapshot="20261128T201100Z", date=0, debs=(deb,))
    with pytest.raises(HostNotReady, match="sparc64"):
        made(foreign, store, tmp_path / "base.tar")()


def test_a_clock_that_is_behind_is_refused(locked: DebianBase, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: locked.date - 1.0)
    with pytest.raises(HostNotReady, match="clock"):
        made(locked, store, tmp_path / "base.tar")()
