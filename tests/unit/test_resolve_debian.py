"""A Debian base is locked as its whole closure, out of signed indices, by alias; every way it can fail is said in our words."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from debian_archive import BUILT, SYSTEM, Package, SigningKey, archive_routes, make_deb, signing_key
from loopback import Server, serving

from envlock import debfile
from envlock.errors import DownloadDamaged, EnvlockError, Exit, FetchError, FileGone, Problems, Unreachable, UsageError, exit_code_of
from envlock.lock import DebianBase
from envlock.progress import Silent
from envlock.resolve import aptget, archives
from envlock.resolve.debian import deb_sources, fetch_debs, resolve_base
from envlock.store import Store

AMD64 = "linux/amd64"
needs_apt = pytest.mark.skipif(not all(map(shutil.which, ("apt-get", "gpg", "dpkg-deb"))), reason="needs apt, gpg and dpkg-deb")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "my store")


@pytest.fixture(scope="module")
def key() -> Iterator[SigningKey]:
    with signing_key() as made:
        yield made


@pytest.fixture(scope="module")
def bookworm(key: SigningKey, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return archive_routes(key, tmp_path_factory.mktemp("archive"), "bookworm")


@pytest.fixture
def mirror(key: SigningKey, bookworm: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A mirror that this host trusts as Debian's, and no others."""
    with serving(dict(bookworm)) as server:
        for name in (archives.MIRROR, archives.SECURITY_MIRROR):
            monkeypatch.setenv(name, f"{server.url}/debian")
        monkeypatch.delenv(archives.SNAPSHOT, raising=False)
        monkeypatch.setattr(archives, "keyring", lambda: str(key.public))
        monkeypatch.setattr(aptget, "host_transport", aptget.Transport)
        yield server


def resolve(store: Store, *packages: str, suite: str = "bookworm", keep: DebianBase | None = None) -> DebianBase:
    return resolve_base(suite, AMD64, packages, store, Silent(), keep)


def refused(store: Store, *packages: str, suite: str = "bookworm") -> EnvlockError:
    with pytest.raises(EnvlockError) as caught:
        resolve(store, *packages, suite=suite)
    return caught.value


@needs_apt
def test_a_base_is_its_whole_closure_by_hash_in_the_store(mirror: Server, store: Store) -> None:
    base = resolve(store)
    names = [deb.name for deb in base.debs]
    assert names == ["apt", "base-files", "ca-certificates", "init", "libpython3", "python3", "tzdata"]
    assert all(store.has(deb.sha256, deb.size) for deb in base.debs)
    apt = base.debs[0]
    assert (apt.version, apt.architecture, apt.archive, apt.path) == ("1:2.6.1~a", "all", "debian", "pool/main/a/apt/apt_2.6.1~a_all.deb")


@needs_apt
def test_a_base_is_dated_by_its_newest_package_and_its_newest_release_file(mirror: Server, store: Store) -> None:
    base = resolve(store)
    assert (base.date, base.snapshot) == (BUILT + 500, "20261128T201100Z")


@needs_apt
def test_a_base_names_no_server(mirror: Server, store: Store) -> None:
    assert "127.0.0.1" not in resolve(store).model_dump_json()


@needs_apt
def test_locking_again_keeps_the_lock_as_long_as_the_packages_are_the_same(
    mirror: Server, key: SigningKey, tmp_path: Path, store: Store
) -> None:
    base = resolve(store).model_copy(update={"snapshot": "20200101T000000Z"})
    assert resolve(store, keep=base) is base
    (tmp_path / "newer").mkdir()
    newer = tuple(Package("init", "1.1", BUILT + 900) if package.name == "init" else package for package in SYSTEM)
    mirror.routes.update(archive_routes(key, tmp_path / "newer", "bookworm", newer))
    moved = resolve(store, keep=base)
    assert [deb.version for deb in moved.debs if deb.name == "init"] == ["1.1"]
    assert moved.date == BUILT + 900


@needs_apt
def test_every_unknown_package_is_named(mirror: Server, store: Store) -> None:
    error = refused(store, "libnope", "no-such-thing")
    assert exit_code_of(error) == Exit.NO_STACK
    assert [finding.what for finding in error.findings] == ["there is no package libnope", "there is no package no-such-thing"]


@needs_apt
def test_packages_that_exclude_each_other_are_named(mirror: Server, key: SigningKey, tmp_path: Path, store: Store) -> None:
    (tmp_path / "more").mkdir()
    mirror.routes.update(archive_routes(key, tmp_path / "more", "bookworm", (*SYSTEM, Package("fussy", fields={"Depends": "never"}))))
    error = refused(store, "fussy")
    assert exit_code_of(error) == Exit.NO_STACK
    assert "fussy : Depends: never" in error.why


@needs_apt
def test_lists_that_debian_did_not_sign_are_refused(mirror: Server, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with signing_key() as other:
        monkeypatch.setattr(archives, "keyring", lambda: str(other.public))
        error = refused(store)
    assert isinstance(error, FetchError)
    assert "signature" in error.what
    assert not list((store.root / "blobs").rglob("*"))


@needs_apt
def test_an_archive_of_others_under_the_same_release_name_is_left_out(
    mirror: Server, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "others").mkdir()
    with signing_key() as other:
        routes = archive_routes(other, tmp_path / "others", "bookworm", (Package("python3", "99"),), root="/others")
    mirror.routes.update(routes)
    monkeypatch.setenv(archives.MIRROR, f"{mirror.url}/debian {mirror.url}/others")
    assert [deb.version for deb in resolve(store).debs if deb.name == "python3"] == ["1.0"]


@needs_apt
def test_a_release_that_the_mirror_lacks(mirror: Server, store: Store) -> None:
    error = refused(store, suite="trixie")
    assert isinstance(error, FileGone)
    assert archives.MIRROR in error.hint


@needs_apt
def test_a_mirror_that_does_not_answer(mirror: Server, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(archives.MIRROR, "http://somebody:secret@127.0.0.1:9/debian")
    monkeypatch.setattr(aptget, "host_transport", lambda: aptget.Transport(('Acquire::Retries "0";',)))
    error = refused(store)
    assert isinstance(error, Unreachable)
    assert "secret" not in f"{error.what}{error.why}{error.hint}"


@needs_apt
def test_a_package_that_is_gone_is_named_with_what_to_do(mirror: Server, store: Store, tmp_path: Path) -> None:
    base = resolve(store)
    mirror.routes.clear()
    with pytest.raises(Problems) as caught:
        fetch_debs(base.debs[:2], "bookworm", AMD64, Store(tmp_path / "empty"), Silent(), base.snapshot)
    assert [finding.what for finding in caught.value.findings] == ["apt 1:2.6.1~a is gone", "base-files 1.0 is gone"]
    assert exit_code_of(caught.value) == Exit.FILE
    assert "lock again" in caught.value.hint
    assert archives.SNAPSHOT in caught.value.hint


@needs_apt
def test_a_package_that_is_gone_comes_from_the_users_snapshot_service(
    mirror: Server, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = resolve(store)
    kept = {path.replace("/debian/", "/old/debian/20261128T201100Z/", 1): body for path, body in mirror.routes.items()}
    mirror.routes.clear()
    mirror.routes.update(kept)
    monkeypatch.setenv(archives.SNAPSHOT, f"{mirror.url}/old/{{archive}}/{{snapshot}}/")
    fresh = Store(tmp_path / "fresh")
    fetch_debs(base.debs, "bookworm", AMD64, fresh, Silent(), base.snapshot)
    assert all(fresh.has(deb.sha256) for deb in base.debs)


@needs_apt
def test_apt_itself_fetches_where_its_configuration_matters(mirror: Server, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    deb = resolve(store).debs[0]
    plain = aptget.Transport(('Acquire::http::Proxy::127.0.0.1 "DIRECT";',))
    monkeypatch.setattr("envlock.resolve.debian._transport", lambda: plain)
    (found,) = [Path(source).read_bytes() for source in deb_sources(deb, "bookworm", AMD64) if isinstance(source, Path)][:1]
    assert found == store.path(deb.sha256).read_bytes()


HOST = """\
Debian|main|bookworm|http://a.example/debian/
Debian|main|bookworm-updates|http://a.example/debian/
Debian|main|bookworm-backports|http://a.example/backports/
Debian|contrib|bookworm|http://c.example/debian/
Debian|main|bookworm-security|http://a.example/debian-security
Somebody|main|bookworm|https://b.example/deb/
|main|bookworm|https://b.example/deb/
|main|stable|http://d.example/debian
|main|jammy|http://e.example/ubuntu
""".splitlines()


def test_the_hosts_own_archives_of_debian_are_taken() -> None:
    assert archives.urls_of_host(HOST, {"bookworm", "stable"}) == {
        "debian": ("http://a.example/debian/", "http://d.example/debian/"),
        "debian-security": ("http://a.example/debian-security/",),
    }


def test_the_users_variables_come_first() -> None:
    named = {archives.MIRROR: "http://a.example/debian/", archives.SECURITY_MIRROR: "file:/srv/security http://b.example/s"}
    assert archives.find_archives("trixie", named) == (
        archives.Archive("debian", "http://a.example/debian/", ("trixie", "trixie-updates")),
        archives.Archive("debian-security", "file:/srv/security/", ("trixie-security",)),
        archives.Archive("debian-security", "http://b.example/s/", ("trixie-security",)),
    )


@pytest.mark.parametrize("value", ["a.example/debian", "/srv/debian"])
def test_a_mirror_that_is_no_url(value: str) -> None:
    with pytest.raises(UsageError, match=archives.MIRROR):
        archives.find_archives("trixie", {archives.MIRROR: value, archives.SECURITY_MIRROR: "http://a.example/"})


def test_a_snapshot_template_needs_both_fields() -> None:
    template = "http://a.example/{archive}/{snapshot}"
    assert archives.snapshot_url("debian", "20261128T201100Z", {archives.SNAPSHOT: template}) == "http://a.example/debian/20261128T201100Z/"
    assert archives.snapshot_url("debian", "20261128T201100Z", {}) is None
    with pytest.raises(UsageError, match=archives.SNAPSHOT):
        archives.snapshot_url("debian", "20261128T201100Z", {archives.SNAPSHOT: "http://a.example/debian"})


@pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="needs mmdebstrap")
def test_mmdebstrap_knows_archives_where_the_host_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_of_host", lambda suite: None)
    found = archives.find_archives("trixie", {})
    assert [archive.alias for archive in found] == ["debian", "debian-security"]
    assert all(archive.url.startswith("http") for archive in found)


@pytest.mark.parametrize(
    ("lines", "plain"),
    [
        (('Acquire::Retries "3";', 'Acquire::http::Timeout "20";'), True),
        (('Acquire::http::Proxy "http://proxy.example:3128";',), False),
        (('Acquire::https::mirror.example::CaInfo "/etc/ssl/corp.pem";',), False),
    ],
)
def test_only_settings_that_other_clients_lack_call_for_apt(lines: tuple[str, ...], plain: bool, tmp_path: Path) -> None:
    assert aptget.Transport(lines, str(tmp_path / "none"), str(tmp_path / "none.d")).is_plain is plain


def test_credentials_call_for_apt(tmp_path: Path) -> None:
    (tmp_path / "corp.conf").write_text("machine mirror.example login a password b\n")
    assert not aptget.Transport((), str(tmp_path / "none"), str(tmp_path)).is_plain


@needs_apt
def test_the_host_itself_is_neither_seen_nor_changed(tmp_path: Path) -> None:
    apt = aptget.Apt.set_up(tmp_path, "arm64", ["deb http://a.example/debian bookworm main"], aptget.host_transport())
    dumped = apt.run("apt-config", "dump").stdout
    assert f'Dir "{tmp_path}/";' in dumped
    assert 'APT::Architecture "arm64";' in dumped
    assert "Post-Invoke" not in dumped
    assert "dpkg" not in apt.run("apt-cache", "pkgnames").stdout
    assert apt.run("apt-get", "indextargets", "--no-release-info", "--format", "$(SITE)").stdout.split() == ["http://a.example/debian"] * 2


@needs_apt
def test_the_date_of_a_package_is_in_its_own_bytes(tmp_path: Path) -> None:
    assert debfile.date_of(make_deb(Package("one", built=1_700_000_000), tmp_path)) == 1_700_000_000


def test_what_is_no_package_is_said_to_be_none(tmp_path: Path) -> None:
    file = tmp_path / "page.deb"
    file.write_bytes(b"<html>log in first</html>")
    with pytest.raises(DownloadDamaged, match="no Debian package"):
        debfile.date_of(file)


@pytest.mark.network
@needs_apt
@pytest.mark.parametrize(("suite", "platform"), [("bookworm", AMD64), ("trixie", "linux/arm64")])
def test_real_releases_resolve_from_the_hosts_own_mirrors(
    suite: str, platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []
    monkeypatch.setattr("envlock.resolve.debian.fetch_all", lambda wanted, *_: fetched.extend(file.what for file in wanted))
    monkeypatch.setattr(debfile, "date_of", lambda path: 1)
    base = resolve_base(suite, platform, (), Store(tmp_path), Silent())
    names = {deb.name for deb in base.debs}
    assert {"libc6", "dpkg", "apt", "bash", "libstdc++6", "python3", "ca-certificates", "tzdata"} <= names
    assert not names & {"perl", "usrmerge", "gcc", "systemd"}
    assert {deb.architecture for deb in base.debs} == {"all", platform.removeprefix("linux/")}
    assert len(fetched) == len(base.debs)
