"""The store keeps a blob whole or not at all, whatever happens to the one who writes it."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from envlock.errors import DiskFull, DownloadDamaged, FileUnreadable, HostNotReady
from envlock.store import Store, write_atomically


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


HELLO = sha256(b"hello")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def put(store: Store, content: bytes) -> str:
    with store.incoming() as blob:
        blob.write(content)
    return blob.sha256


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.name != ".gate")


@pytest.mark.parametrize(
    ("environ", "root"),
    [
        ({"ENVLOCK_STORE": "/data/store", "XDG_CACHE_HOME": "/c"}, "/data/store"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/envlock"),
        ({"XDG_CACHE_HOME": "relative"}, str(Path("~/.cache/envlock").expanduser())),
        ({}, str(Path("~/.cache/envlock").expanduser())),
    ],
)
def test_the_root_is_the_user_s(environ: dict[str, str], root: str) -> None:
    assert Store.default(environ).root == Path(root)


def test_a_blob_is_kept_read_only_under_its_sha256(store: Store) -> None:
    assert put(store, b"hello") == HELLO
    path = store.path(HELLO)
    assert path == store.root / "blobs" / "sha256" / HELLO[:2] / HELLO
    assert path.read_bytes() == b"hello"
    assert path.stat().st_mode & 0o777 == 0o444
    assert files_in(store.root) == [HELLO]


@pytest.mark.parametrize(("wrong_sha256", "wrong_size"), [("0" * 64, 5), (HELLO, 6)])
def test_a_blob_that_is_not_what_was_asked_for_is_refused(store: Store, wrong_sha256: str, wrong_size: int) -> None:
    with pytest.raises(DownloadDamaged), store.incoming(wrong_sha256, wrong_size) as blob:
        blob.write(b"hello")
    assert files_in(store.root) == []


def test_nothing_is_kept_when_writing_fails(store: Store) -> None:
    def write_and_fail() -> None:
        with store.incoming() as blob:
            blob.write(b"hello")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_and_fail()
    assert files_in(store.root) == []


def test_restart_forgets_what_was_written(store: Store) -> None:
    with store.incoming(HELLO, 5) as blob:
        blob.write(b"nonsense" * 1000)
        blob.restart()
        blob.write(b"hel")
        blob.write(b"lo")
    assert store.path(HELLO).read_bytes() == b"hello"


def test_add_copies_a_file_and_checks_it(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"hello")
    assert store.add(tmp_path / "file", HELLO).read_bytes() == b"hello"
    with pytest.raises(DownloadDamaged, match="file is not the file"):
        store.add(tmp_path / "file", "0" * 64)
    with pytest.raises(FileUnreadable, match="absent"):
        store.add(tmp_path / "absent", "0" * 64)


def test_a_blob_of_another_size_counts_as_absent(store: Store) -> None:
    put(store, b"hello")
    assert store.has(HELLO)
    assert store.has(HELLO, 5)
    assert not store.has(HELLO, 4)
    assert not store.has("0" * 64)


def test_names_cannot_lead_out_of_the_store(store: Store) -> None:
    with pytest.raises(ValueError, match="not a sha256"):
        store.path("../../etc/passwd")
    with pytest.raises(ValueError, match="not a name"):
        store.remember("..", "key", {})


def test_verify_names_damaged_blobs(store: Store) -> None:
    put(store, b"hello")
    other = put(store, b"other")
    store.path(other).chmod(0o644)
    store.path(other).write_bytes(b"0ther")
    assert [(damage.sha256, damage.found) for damage in store.verify()] == [(other, sha256(b"0ther"))]
    store.discard(other)
    assert store.verify() == ()


def test_prune_keeps_what_is_named(store: Store) -> None:
    put(store, b"hello")
    put(store, b"other")
    assert store.usage().blobs == 2
    assert store.prune({HELLO}) == 5
    assert files_in(store.root) == [HELLO]
    assert store.usage().bytes == 5


def test_prune_waits_for_nobody_s_work(store: Store) -> None:
    with store.scratch(), pytest.raises(HostNotReady, match="in use"):
        Store(store.root).prune(set())


def test_facts_are_remembered_and_damage_is_forgotten(store: Store) -> None:
    assert store.recall("layer", "k") is None
    store.remember("layer", "k", {"size": 3, "holds": "größer"})
    assert store.recall("layer", "k") == {"size": 3, "holds": "größer"}
    (store.root / "facts" / "layer" / "k.json").write_bytes(b'{"size": 3, "ho')
    assert store.recall("layer", "k") is None


KILLED = """
import os, signal, sys
from pathlib import Path
from envlock.store import Store
with Store(Path(sys.argv[1])).incoming() as blob:
    blob.write(b"x" * 5_000_000)
    print("writing", flush=True)
    signal.pause()
"""


def test_what_a_killed_process_left_is_swept(store: Store) -> None:
    writer = subprocess.Popen([sys.executable, "-c", KILLED, str(store.root)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "writing\n"
    with store.scratch():
        assert "blob" in files_in(store.root / "work")  # it lives: not ours to take
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    assert "blob" in files_in(store.root / "work")
    put(store, b"hello")
    assert files_in(store.root) == [HELLO]


def test_many_writers_of_one_blob_do_not_disturb_each_other(store: Store) -> None:
    content = os.urandom(300_000)
    failures: list[BaseException] = []

    def write() -> None:
        try:
            with Store(store.root).incoming(sha256(content), len(content)) as blob:
                for start in range(0, len(content), 1000):
                    blob.write(content[start : start + 1000])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert files_in(store.root) == [sha256(content)]
    assert store.verify() == ()


def test_too_little_space_is_said_before_anything_is_written(store: Store) -> None:
    with pytest.raises(DiskFull) as caught:
        store.require_space(10**18)
    assert str(store.root) in caught.value.what
    assert "1000000000.0 GB are needed" in caught.value.why


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting a small disk needs root")
    try:
        store = Store(disk / "store")
        with pytest.raises(DiskFull, match=str(store.root)) as caught, store.incoming(size=4_000_000) as blob:
            blob.write(b"x" * 4_000_000)
        assert "are needed and" in caught.value.why
        assert files_in(store.root) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_store_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(HostNotReady, match="cannot be written"), Store(tmp_path / "file").scratch():
        pass


def test_a_file_is_replaced_whole_and_readable_as_the_umask_says(tmp_path: Path) -> None:
    target = tmp_path / "lock.yaml"
    target.write_bytes(b"old")
    write_atomically(target, b"new")
    assert target.read_bytes() == b"new"
    umask = os.umask(0)
    os.umask(umask)
    assert target.stat().st_mode & 0o777 == 0o666 & ~umask
    assert files_in(tmp_path) == ["lock.yaml"]
