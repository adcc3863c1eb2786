"""A disk that is full at any point: one sentence, nothing half written, and with more space the same comes out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
AROUND = 'mount -t tmpfs -o size=64m tmpfs "$1" && shift && exec "$@"'
SIZES = int(os.environ.get("ENVLOCK_SIZES", "48"))

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="mounting takes root")

STEPS = """
import json, subprocess, sys
from pathlib import Path
import pytest
from artifact_helpers import make_small
from sample_report import report
from envlock import lock as locks, reference, report_forms
from envlock.failures import understood
from envlock.fetch import Wanted, fetch_all
from envlock.lock import LockFile
from envlock.progress import Silent
from envlock.store import Store, write_atomically

outside, disk, sizes = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
small = make_small(outside, pytest.MonkeyPatch())
heavy = outside / "heavy"
heavy.write_bytes(bytes(range(256)) * 2000)
inputs = {path.name: path for path in small.store.blobs()}

def run():
    store = Store(disk / "store")
    fetch_all([Wanted(name, name, path.stat().st_size, lambda path=path: [path]) for name, path in inputs.items()], store, Silent())
    with store.incoming() as blob:
        blob.write(heavy.read_bytes())
    store.remember("a-fact", "key", {"text": "x" * 9000})
    write_atomically(disk / "x.lock.yaml", locks.dump(LockFile(lock=small.lock)))
    report_forms.write_all(report(), disk / "report")
    reference.write(disk / "reference.json", reference.record(report()))
    small.store = store
    return small.pinned(disk / "artifact").seal

def grown_to(size):
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)

def emptied():
    for path in sorted(disk.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()

expected = run()
whole = sum(path.lstat().st_blocks * 512 + 4096 for path in disk.rglob("*"))
told = []
for number in range(sizes):
    emptied()
    grown_to(4096 + whole * number // sizes // 4096 * 4096)
    store = Store(disk / "store")
    try:
        run()
        told.append("done")
    except Exception as error:
        told.append(understood(error).id)
    honest = (".gate", ".zenodo.json", ".dockerignore")
    left = [str(path.relative_to(disk)) for path in disk.rglob("*") if path.name.startswith(".") and path.name not in honest]
    damaged = [str(path) for path in disk.rglob("*.json") if path.parent.name in ("a-fact",) and not path.read_bytes().endswith(b"}")]
    assert store.verify() == (), told
    assert not [path for path in (disk / "store/work").glob("*/*")], told
    assert left == [] and damaged == [], (told, left, damaged)
    grown_to("64m")
    assert run() == expected, told
print(json.dumps(told))
"""


def test_a_disk_that_is_full_at_any_point(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "outside").mkdir()
    command = [sys.executable, "-c", STEPS, str(tmp_path / "outside"), str(tmp_path / "disk"), str(SIZES)]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", AROUND, "sh", str(tmp_path / "disk"), *command],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": f"{HERE.parents[1]}:{HERE}"},
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert set(told) == {"disk-full"} | ({"done"} & set(told)), told
    assert told[0] == "disk-full"
