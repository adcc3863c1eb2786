"""What envlock ships in an image, as one tar that a lock names."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from envlock import bundle
from envlock.errors import DownloadDamaged, FileGone
from envlock.lock import Shipped
from envlock.store import Store

CHECKOUT = Path(__file__).parents[2]


def test_it_has_hook_self_test_and_the_steps_and_nothing_that_was_compiled() -> None:
    files = bundle.read_bundle(bundle.own_bundle()).files
    assert {"lib/envlock/__init__.py", "lib/envlock/runtime/hook.py", "lib/envlock/selftest/__main__.py"} <= files.keys()
    assert {"templates/Dockerfile.j2", "templates/steps/wheels.sh", "templates/steps/venv.sh"} <= files.keys()
    assert not [path for path in files if "__pycache__" in path or path.endswith((".pyc", ".orig", "~"))]


def test_its_bytes_depend_on_the_sources_alone(tmp_path: Path) -> None:
    """Made from another checkout, under another umask, with other times and with compiled files lying about."""
    subprocess.run(["cp", "-r", str(CHECKOUT / "envlock"), str(CHECKOUT / "templates"), str(tmp_path)], check=True)
    (tmp_path / "envlock/runtime/__pycache__").mkdir(exist_ok=True)
    (tmp_path / "envlock/runtime/__pycache__/x.py").write_text("no")
    for path in (tmp_path / "envlock/runtime").glob("*.py"):
        path.chmod(0o700)
        os.utime(path, (1, 1))
    program = "import sys; from envlock.bundle import own_bundle; sys.stdout.buffer.write(own_bundle())"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "TZ": "Asia/Tokyo"}
    made = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, umask=0o077, capture_output=True, check=True)
    assert made.stdout == bundle.own_bundle()


def test_its_entries_say_nothing_of_this_machine() -> None:
    with tarfile.open(fileobj=io.BytesIO(bundle.own_bundle())) as tar:
        members = tar.getmembers()
    assert [member.name for member in members] == sorted(member.name for member in members)
    assert {(m.mtime, m.mode, m.uid, m.gid, m.uname, m.gname) for m in members} == {(946684800, 0o644, 0, 0, "", "")}


def test_a_lock_of_this_release_needs_no_store(tmp_path: Path) -> None:
    raw = bundle.own_bundle()
    assert bundle.own_shipped() == Shipped(envlock=bundle.envlock.__version__, sha256=hashlib.sha256(raw).hexdigest(), size=len(raw))
    assert bundle.open_bundle(bundle.own_shipped(), Store(tmp_path / "none")).files == bundle.read_bundle(raw).files


def test_the_bundle_of_another_release_comes_from_the_store(tmp_path: Path) -> None:
    store = Store(tmp_path)
    bundle.keep_bundle(store)
    bundle.keep_bundle(store)
    assert store.has(bundle.own_shipped().sha256)
    older = tar_of({"lib/envlock/__init__.py": b"older"})
    with store.incoming() as blob:
        blob.write(older)
    shipped = Shipped(envlock="0.0.1", sha256=hashlib.sha256(older).hexdigest(), size=len(older))
    assert bundle.open_bundle(shipped, store).below("lib") == {"envlock/__init__.py": b"older"}


def test_a_damaged_bundle_of_another_release_is_not_taken(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.incoming() as blob:
        blob.write(bundle.own_bundle() + b"of another release")
    path = store.path(blob.sha256)
    path.unlink()
    path.write_bytes(bundle.own_bundle() + b"of another releasE")
    with pytest.raises(DownloadDamaged, match=r"the bundle of envlock 0\.0\.9 in the store is damaged"):
        bundle.open_bundle(Shipped(envlock="0.0.9", sha256=blob.sha256, size=1), store)


def test_a_bundle_that_is_nowhere(tmp_path: Path) -> None:
    with pytest.raises(FileGone, match=r"self-test of envlock 0\.0\.1") as caught:
        bundle.open_bundle(Shipped(envlock="0.0.1", sha256="0" * 64, size=1), Store(tmp_path))
    assert "envlock 0.0.1" in caught.value.hint


def tar_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
