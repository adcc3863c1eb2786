"""Bad luck in a build, for real: each case ends with its exit status and a sentence, leaves nothing half done, and a second run goes on."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import newer
import pytest
from tiny import Tiny, copied_store, ended, envlock, launched, left_in, remove_images, result, said, stored_wheel, temporaries

from envlock import lock as locks
from envlock.engine import Engine, connect
from envlock.lock import Built, Deb, LockFile

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from loopback import Answer, serving

pytestmark = pytest.mark.network


def build(tiny: Tiny, **more: Any) -> subprocess.CompletedProcess[str]:
    return envlock("build", tiny.lock_path, "--store", tiny.store.root, "--json", **more)


def mounts_below(folder: Path) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(folder) in line]


# killed and interrupted --------------------------------------------------------------------------------------------------


def test_killed_at_any_moment_it_goes_on_to_the_same_digest(
    tiny_built: tuple[Tiny, Any], tiny_session: Tiny, engine: Engine, tmp_path: Path
) -> None:
    reference, printed = tiny_built
    tiny = Tiny(reference.lock, copied_store(tiny_session.store, tmp_path / "store"), tmp_path / "tiny.lock.yaml")
    remove_images(engine, tiny.lock.name)
    tiny.written()
    moments = random.Random()
    seed = moments.randrange(10**6)
    moments.seed(seed)
    killed = []
    for part in range(6):
        process = launched("build", tiny.lock_path, "--store", tiny.store.root)
        try:
            process.wait(timeout=0.6 + printed["seconds"]["total"] * (part + moments.random()) / 6)
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate()
        killed.append(process.pid)
    last = launched("build", tiny.lock_path, "--store", tiny.store.root, "--json")
    assert result(ended(last))["image_digest"] == printed["image_digest"], f"moments of seed {seed}"
    assert tiny.store.verify() == ()
    assert left_in(tiny.store) == []
    assert temporaries(engine, [*killed, last.pid]) == []
    assert mounts_below(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_an_interrupted_build_says_so_and_leaves_nothing(tiny: Tiny, engine: Engine) -> None:
    tiny.written()
    process = launched("build", tiny.lock_path, "--store", tiny.store.root)
    deadline = time.monotonic() + 60
    while not temporaries(engine, [process.pid]) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    told = said(ended(process), 130)
    assert "interrupted" in told
    assert "again" in told
    assert left_in(tiny.store) == []
    assert temporaries(engine, [process.pid]) == []
    assert engine.image(tiny.tag) is None


def test_an_interrupted_fetch_does_not_wait_for_a_silent_server(tiny: Tiny) -> None:
    asked, released = [], threading.Event()

    def silent(request: Any) -> Answer:
        asked.append(request.path)
        released.wait(60)
        return Answer(status=500)

    lost = stored_wheel(tiny.store, tiny.folder, "lost", {"lost.py": "X = 1\n"})
    tiny.store.discard(lost.sha256)
    lacking = tiny.with_lock(wheels=(*tiny.lock.wheels, lost))
    lacking.written()
    with serving({"/": silent}) as server:
        process = launched(
            "build", lacking.lock_path, "--store", tiny.store.root, env={"PIP_FIND_LINKS": f"{server.url}/", "PIP_CONFIG_FILE": os.devnull}
        )
        while not asked and process.poll() is None:
            time.sleep(0.05)
        time.sleep(0.5)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert "interrupted" in said(ended(process), 130)
        waited = time.monotonic() - began
        released.set()
    assert waited < 15  # a server may be silent for much longer
    with tiny.store.scratch():
        assert len(left_in(tiny.store)) == 2  # this one and its lock; the next run has swept what the interrupted one left


def test_two_builds_at_once_in_one_store(tiny: Tiny, engine: Engine) -> None:
    tiny.written()
    both = [launched("build", tiny.lock_path, "--store", tiny.store.root, "--json") for _ in range(2)]
    one, two = (result(ended(process)) for process in both)
    assert one["image_digest"] == two["image_digest"] == engine.image(tiny.tag).digest
    assert locks.read(tiny.lock_path).built.image_digest == one["image_digest"]
    assert tiny.store.verify() == ()
    assert left_in(tiny.store) == []
    assert temporaries(engine, [process.pid for process in both]) == []


# files that cannot be had ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "id_", "why"),
    [
        (lambda raw: raw[:-1] + b"X", "file-changed-upstream", "its sha256 is"),
        (lambda raw: raw[:-100], "download-damaged", "bytes instead of"),
        (None, "file-gone", ""),
    ],
    ids=["another-file", "truncated", "missing"],
)
def test_a_wheel_that_cannot_be_had(tiny: Tiny, engine: Engine, change: Any, id_: str, why: str) -> None:
    links = tiny.folder / "links"
    links.mkdir()
    lost = stored_wheel(tiny.store, tiny.folder, "lost", {"lost.py": "X = 1\n"})
    tiny.store.discard(lost.sha256)
    if change is not None:
        (links / lost.file).write_bytes(change((tiny.folder / lost.file).read_bytes()))
    lacking = tiny.with_lock(wheels=(*tiny.lock.wheels, lost))
    lacking.written()
    told = said(build(lacking, env={"PIP_FIND_LINKS": str(links), "PIP_NO_INDEX": "1"}), 6)
    assert f"[{id_}]" in told
    assert lost.file in told
    assert why in told
    assert "  do:" in told
    assert not tiny.store.has(lost.sha256)
    assert tiny.store.verify() == ()
    assert left_in(tiny.store) == []
    assert engine.image(lacking.tag) is None


def test_what_a_mirror_dropped_is_named_with_every_other_file_that_is_gone(tiny: Tiny, engine: Engine) -> None:
    architecture = {"linux/amd64": "amd64"}.get(tiny.lock.stack.platform, "arm64")
    path = f"pool/main/d/dropped/dropped_1_{architecture}.deb"
    dropped = Deb(name="dropped", version="1", architecture=architecture, archive="debian", path=path, sha256="0" * 64, size=10)
    lost = stored_wheel(tiny.store, tiny.folder, "lost", {"lost.py": "X = 1\n"})
    tiny.store.discard(lost.sha256)
    base = tiny.lock.base.model_copy(update={"debs": (*tiny.lock.base.debs, dropped)})
    lacking = tiny.with_lock(base=base, wheels=(*tiny.lock.wheels, lost))
    lacking.written()
    with serving({}) as empty:
        mirror = f"{empty.url}/debian"
        environment = {"ENVLOCK_DEBIAN_MIRROR": mirror, "ENVLOCK_DEBIAN_SECURITY_MIRROR": mirror, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
        environment["ENVLOCK_DEBIAN_SNAPSHOT"] = f"{empty.url}/{{archive}}/{{snapshot}}"
        told = said(build(lacking, env=environment), 6)
    assert "dropped 1 is gone  [file-gone]" in told
    assert f"{lost.file} is gone  [file-gone]" in told
    assert "lock again for the current one" in " ".join(told.split())
    assert left_in(tiny.store) == []
    assert engine.image(lacking.tag) is None


def test_a_file_that_rotted_in_the_store_never_gets_into_an_image(tiny: Tiny, engine: Engine) -> None:
    (weighty,) = [wheel for wheel in tiny.lock.wheels if wheel.name == "weighty"]
    path = tiny.store.path(weighty.sha256)
    raw = path.read_bytes()
    middle = raw.index(b"w" * 1000) + 500
    path.unlink()
    path.write_bytes(raw[:middle] + b"x" + raw[middle + 1 :])
    tiny.written()
    told = said(build(tiny), 6)
    assert f"{weighty.file} in the store is damaged" in told
    assert [damage.sha256 for damage in tiny.store.verify()] == [weighty.sha256]
    assert engine.image(tiny.tag) is None
    assert left_in(tiny.store) == []


# locks -------------------------------------------------------------------------------------------------------------------


def test_another_digest_than_the_recorded_one_is_refused_and_not_tagged(tiny: Tiny, engine: Engine) -> None:
    result(build_of(tiny))
    built = locks.read(tiny.lock_path).built
    wrong = f"sha256:{'0' * 64}"
    recorded = Built(
        lock=tiny.lock.digest, image_digest=wrong, manifest_digest=wrong, diff_ids=(*built.diff_ids[:2], wrong, *built.diff_ids[3:])
    )
    content = locks.dump(LockFile(lock=tiny.lock, built=recorded))
    tiny.lock_path.write_bytes(content)
    for before in ("in the engine", "not in the engine", "never built in this store"):
        if before != "in the engine":
            remove_images(engine, tiny.lock.name)
        if before == "never built in this store":
            shutil.rmtree(tiny.store.root / "facts/image")
        told = said(build(tiny), 1)
        assert "[image-differs]" in told
        assert "weighty 1" in told, before
        assert (engine.image(tiny.tag) is not None) == (before == "in the engine")
        assert tiny.lock_path.read_bytes() == content


def build_of(tiny: Tiny) -> subprocess.CompletedProcess[str]:
    tiny.written()
    return build(tiny)


def test_a_lock_that_is_missing_or_none(tiny: Tiny) -> None:
    assert "[lock-missing]" in said(build(tiny), 4)
    tiny.written()
    tiny.lock_path.write_text(tiny.lock_path.read_text().replace("epoch:", "epok:"))
    told = said(build(tiny), 4)
    assert "[lock-invalid]" in told
    assert re.search(r"tiny\.lock\.yaml:\d+:\d+", told)
    assert "epok" in told
    tiny.lock_path.write_text(tiny.lock_path.read_text().replace("version: 1", "version: 2", 1))
    assert "lock the spec again" in said(build(tiny), 4)
    tiny.lock_path.write_bytes(b"\xff\0not a lock")
    said(build(tiny), 4)


READ_ONLY = 'mount -t tmpfs tmpfs "$2" && cp "$1" "$2/" && mount -o remount,ro "$2" && shift 2 && exec "$@"'


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
def test_a_lock_in_a_folder_that_may_not_be_written_is_built(tiny_built: tuple[Tiny, Any], tmp_path: Path) -> None:
    tiny, printed = tiny_built
    (tmp_path / "medium").mkdir()
    fresh = tmp_path / "fresh.lock.yaml"
    fresh.write_bytes(locks.dump(LockFile(lock=tiny.lock)))
    around = ["unshare", "--mount", "sh", "-ec", READ_ONLY, "sh", str(fresh), str(tmp_path / "medium")]
    done = envlock("build", tmp_path / "medium/fresh.lock.yaml", "--store", tiny.store.root, "--json", before=around)
    assert result(done)["image_digest"] == printed["image_digest"]
    assert "not recorded beside the lock: Read-only file system" in done.stderr


# engine and disk ---------------------------------------------------------------------------------------------------------


def test_a_dead_engine(tiny: Tiny) -> None:
    tiny.written()
    told = said(build(tiny, env={"DOCKER_HOST": f"unix://{tiny.folder}/none.sock"}), 5)
    assert "[no-engine]" in told
    assert "none.sock" in told
    assert "  do:" in told


def test_an_engine_that_is_killed_in_the_middle(tiny_built: tuple[Tiny, Any], tiny_session: Tiny, tmp_path: Path) -> None:
    if newer.why_not():
        pytest.skip(str(newer.why_not()))
    tiny, printed = tiny_built
    store = copied_store(tiny_session.store, tmp_path / "store")
    path = shutil.copy(tiny.lock_path, tmp_path)
    with newer.newer_engine("overlay2") as url:
        process = launched("build", path, "--store", store.root, env={"DOCKER_HOST": url})
        # The engine was empty: its first image is the first part of what is being loaded.
        with connect(url) as watched:
            while process.poll() is None and not watched.image_ids():
                time.sleep(0.02)
        os.kill(newer.engine_process(url), signal.SIGKILL)
        told = said(ended(process), 5)
        assert "[no-engine]" in told
        assert "again" in told
    assert left_in(store) == []
    assert store.verify() == ()
    assert result(envlock("build", path, "--store", store.root, "--json"))["image_digest"] == printed["image_digest"]


def test_an_engine_whose_disk_is_full(tiny_built: tuple[Tiny, Any]) -> None:
    if newer.why_not():
        pytest.skip(str(newer.why_not()))
    tiny, _ = tiny_built
    with newer.newer_engine("overlay2", data_size="120m") as url:
        told = said(build(tiny, env={"DOCKER_HOST": url}), 5)
        assert "[disk-full]" in told
        assert result(envlock("images", "--json", env={"DOCKER_HOST": url})) == []
    assert left_in(tiny.store) == []


FILL = 'mount -t tmpfs -o size="$3" tmpfs "$2" && cp -a "$1/." "$2/" && shift 3 && exec "$@"'


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
def test_a_store_whose_disk_is_full(tiny: Tiny, engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    tiny.written()
    used = sum(path.stat().st_blocks * 512 for path in tiny.store.root.rglob("*"))
    # The mount is in a namespace of the process, so it goes with it.
    size = f"{used // 1024 + 8 * 1024}k"
    around = ["unshare", "--mount", "sh", "-ec", FILL, "sh", str(tiny.store.root), str(tmp_path / "disk"), size]
    told = said(ended(launched("build", tiny.lock_path, "--store", tmp_path / "disk", before=around)), 5)
    assert "[disk-full]" in told
    assert "ENVLOCK_STORE" in told
    assert engine.image(tiny.tag) is None


GROW = """
store=$1 disk=$2 size=$3
shift 3
mount -t tmpfs -o size="$size" tmpfs "$disk"
cp -a "$store/." "$disk/"
set +e
"$@"
echo "status $?"
set -e
mount -o remount,size=1g "$disk"
"$@"
"""
SPARE = [int(kilobytes) for kilobytes in os.environ.get("ENVLOCK_SPARE", "40 1500 22000").split()]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
@pytest.mark.parametrize("spare", SPARE, ids=lambda spare: f"{spare}k")
def test_wherever_the_disk_is_full_a_run_with_room_ends_with_the_same(
    spare: int, tiny_built: tuple[Tiny, Any], tiny_session: Tiny, engine: Engine, tmp_path: Path
) -> None:
    """ENVLOCK_SPARE names other sizes, in kilobytes that are free when the build begins."""
    reference, printed = tiny_built
    tiny = Tiny(reference.lock, copied_store(tiny_session.store, tmp_path / "store"), tmp_path / "tiny.lock.yaml")
    tiny.written()
    remove_images(engine, tiny.lock.name)
    (tmp_path / "disk").mkdir()
    used = sum(path.stat().st_blocks * 512 for path in tiny.store.root.rglob("*"))
    around = ["unshare", "--mount", "sh", "-ec", GROW, "sh", str(tiny.store.root), str(tmp_path / "disk"), f"{used // 1024 + spare}k"]
    done = ended(launched("build", tiny.lock_path, "--store", tmp_path / "disk", "--json", before=around))
    told = said(done, 0)
    status, _, again = done.stdout.rpartition("status ")[2].partition("\n")
    assert ("[disk-full]" in told) == (status == "5")
    assert status in (("5",) if spare < 21_000 else ("0", "5")), told  # the largest layer has 21 MB
    assert json.loads(again)["image_digest"] == printed["image_digest"]


def test_a_store_that_cannot_be_written(tiny: Tiny) -> None:
    tiny.written()
    told = said(envlock("build", tiny.lock_path, "--store", "/proc/self/store"), 5)
    assert "/proc/self/store cannot be written" in told
    assert "ENVLOCK_STORE" in told
