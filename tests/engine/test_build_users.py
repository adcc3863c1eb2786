"""The same image, bit for bit, whoever builds it, wherever and under whatever settings; and nothing of the builder is in it."""

from __future__ import annotations

import io
import os
import pwd
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from child import Surroundings, run
from tiny import CHECKOUT, COMMAND, Tiny, copied_store, left_in, remove_images, result

from envlock.bundle import own_bundle
from envlock.cli import main
from envlock.engine import Engine
from envlock.store import Store

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root"),
]

# Words that are in no package, so that they can be looked for.
NOBODY = 65534
USER, HOST, SECRET = "quokka-builder", "wombat-host", "numbat-secret"


@pytest.fixture
def home(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The home of an ordinary user who exists for the time of a test; with rows in subuid(5) unless the test is for one without."""
    folder = Path(tempfile.mkdtemp(prefix="platypus-home-", dir="/var/tmp"))
    rows = [] if getattr(request, "param", "rows") == "rows" else ["-K", "SUB_UID_COUNT=0", "-K", "SUB_GID_COUNT=0"]
    subprocess.run(["useradd", *rows, "--home-dir", folder, "--shell", "/bin/sh", USER], check=True)
    try:
        user = pwd.getpwnam(USER)
        os.chown(folder, user.pw_uid, user.pw_gid)
        folder.chmod(0o700)
        yield folder
    finally:
        subprocess.run(["userdel", USER], check=True, capture_output=True)
        shutil.rmtree(folder)


def surroundings(home: Path, engine: Engine, store: Store) -> Surroundings:
    """Everything about the builder is another than in the test's own process."""
    user = pwd.getpwnam(USER)
    settings = {
        "HOME": str(home),
        "USER": USER,
        "LOGNAME": USER,
        "HOSTNAME": HOST,
        "TZ": "Pacific/Kiritimati",
        "LANG": "tr_TR.UTF-8",
        "LC_ALL": "tr_TR.UTF-8",
        "SECRET_TOKEN": SECRET,
        "DOCKER_HOST": engine.endpoint.url,
        "ENVLOCK_STORE": str(store.root),
        "PYTHONHASHSEED": "123",
        "TMPDIR": "/var/tmp",
    }
    # Who may talk to the engine: the group that its socket belongs to.
    groups = (engine.endpoint.socket.stat().st_gid,) if engine.endpoint.socket else ()
    return Surroundings(user.pw_uid, HOST, 0o077, settings, groups)


def command(*words: str | Path) -> Callable[[], tuple[int, str]]:
    """A call of the command line in this very process: another user may not be able to read the checkout."""

    def call() -> tuple[int, str]:
        sys.argv = ["envlock", *map(str, words)]
        sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
        try:
            main()
        except SystemExit as ended:
            return int(ended.code or 0), sys.stderr.getvalue()
        raise AssertionError("main returned")

    return call


def import_everything(tiny: Tiny, engine: Engine) -> None:
    """Build something, so that a fork of this process needs no module that another user may not read."""
    own_bundle()
    tiny.built(engine)
    for name in ("console", "docker_build", "failures", "locking"):
        import_module(f"envlock.{name}")


def test_an_ordinary_user_with_other_settings_on_another_host_builds_the_same_from_an_empty_store(
    tiny_built: tuple[Tiny, Any], tiny_session: Tiny, tiny: Tiny, home: Path, engine: Engine
) -> None:
    import_everything(tiny, engine)
    tiny, printed = tiny_built
    own = copied_store(tiny_session.store, home / "store", facts=False, owner=pwd.getpwnam(USER).pw_uid)
    forget_layers(own, tiny_session)
    lock = home / "a folder" / "renamed.lock.yaml"
    lock.parent.mkdir()
    lock.write_bytes(tiny.written().read_bytes())
    for path in (lock.parent, lock):
        os.chown(path, pwd.getpwnam(USER).pw_uid, -1)
    remove_images(engine, tiny.lock.name)
    status, told = run(command("build", lock), surroundings(home, engine, own))
    assert status == 0, told
    assert "bootstrap Debian" in told
    image = engine.image(tiny.tag)
    assert image.digest == printed["image_digest"]
    assert own.verify() == ()
    assert left_in(own) == []
    assert list(Path("/var/tmp").glob(f"envlock-{pwd.getpwnam(USER).pw_uid}-*")) == []

    words = [USER, HOST, SECRET, home.name]
    assert found_in(engine.export(image.id), words) == set()
    assert found_in(engine._api.get_image(tiny.tag), words) == set()
    for path in (own.root / "facts", own.root / "blobs"):
        for file in (file for file in path.rglob("*") if file.is_file()):
            assert found_in(pieces(file), words) == set(), file
    assert found_in([lock.read_bytes(), (lock.parent / "renamed.Dockerfile").read_bytes()], words) == set()
    with tarfile.open(fileobj=Reader(engine.export(image.id)), mode="r|") as tar:
        assert {member.uid for member in tar if 1000 <= member.uid != NOBODY} == set()


def forget_layers(store: Store, session: Tiny) -> None:
    """Keep only what the lock names: no layer that was made before."""
    wanted = {deb.sha256 for deb in session.lock.base.debs} | {wheel.sha256 for wheel in (*session.lock.wheels, session.lock.installer)}
    for path in (store.root / "blobs").rglob("*"):
        if path.is_file() and path.name not in wanted:
            path.unlink()


def pieces(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            yield chunk


def found_in(stream: Iterable[bytes], words: Iterable[str]) -> set[str]:
    """Which of the words occur, also where two pieces meet."""
    wanted = {word: word.encode() for word in words}
    found: set[str] = set()
    rest = b""
    for piece in stream:
        text = rest + piece
        found |= {word for word, raw in wanted.items() if raw in text}
        rest = text[-100:]
    return found


class Reader(io.RawIOBase):
    """A stream of pieces as a file."""

    def __init__(self, stream: Iterable[bytes]) -> None:
        self._stream, self._rest = iter(stream), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._rest = self._rest or next(self._stream, b"")
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


def test_a_second_checkout_builds_the_same_after_store_and_images_were_wiped(
    tiny_built: tuple[Tiny, Any], tiny_session: Tiny, engine: Engine, tmp_path: Path
) -> None:
    tiny, printed = tiny_built
    checkout = tmp_path / "another checkout é"
    checkout.mkdir()
    for name in ("envlock", "templates"):
        shutil.copytree(CHECKOUT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    own = copied_store(tiny_session.store, tmp_path / "store", facts=False)
    forget_layers(own, tiny_session)
    shutil.copy(tiny.written(), tmp_path / "x.lock.yaml")
    remove_images(engine, tiny.lock.name)
    settings = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TZ": "America/St_Johns", "LANG": "C", "PYTHONPATH": str(checkout)}
    settings |= {"DOCKER_HOST": engine.endpoint.url, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "7", "COLUMNS": "20"}
    words = [*COMMAND, "build", "x.lock.yaml", "--store", str(own.root), "--json"]
    done = subprocess.run(words, cwd=tmp_path, env=settings, umask=0o027, capture_output=True, text=True, check=False)
    assert result(done)["image_digest"] == printed["image_digest"]
    assert str(checkout) not in done.stdout + (tmp_path / "x.lock.yaml").read_text()


@pytest.mark.parametrize("home", ["no rows"], indirect=True)
def test_an_ordinary_user_without_subordinate_ids_is_told_what_to_do(tiny: Tiny, home: Path, engine: Engine) -> None:
    import_everything(tiny, engine)
    engine.remove(tiny.tag)
    own = copied_store(tiny.store, home / "store", facts=False, owner=pwd.getpwnam(USER).pw_uid)
    forget_layers(own, tiny)
    status, told = run(command("build", shutil.copy(tiny.written(), home / "x.lock.yaml")), surroundings(home, engine, own))
    assert status == 5
    assert f"usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {USER}" in " ".join(told.split())
    assert engine.image(tiny.tag) is None
    assert left_in(own) == []


def test_a_user_who_may_not_talk_to_the_engine_is_told_so(tiny: Tiny, home: Path, engine: Engine) -> None:
    if engine.endpoint.socket is None:
        pytest.skip("the engine is not reached by a socket")
    import_everything(tiny, engine)
    around = surroundings(home, engine, tiny.store)
    stranger = replace(around, groups=())
    status, told = run(command("build", shutil.copy(tiny.written(), home / "x.lock.yaml")), stranger)
    assert status == 5
    assert "[no-engine]" in told
    assert "group" in told
