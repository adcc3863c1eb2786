"""The lock as a file: one form for each content, its digest over the inputs alone, complaints with their place."""

from __future__ import annotations

import hashlib
import json

import pytest
import yaml
from mutations import RAW
from sample_locks import built_of, cpu_lock, cuda_lock

from envlock import lock as locks
from envlock.errors import EnvlockError, Exit, LockInvalid, LockMissing, Problems, exit_code_of
from envlock.lock import CopiedFile, LockFile


@pytest.mark.parametrize("lock", [cpu_lock(), cuda_lock()], ids=["cpu", "cuda"])
def test_what_is_written_is_read(lock: locks.Lock) -> None:
    for file in (LockFile(lock=lock), LockFile(lock=lock, built=built_of(lock, "base", "venv"))):
        assert locks.parse(locks.dump(file), "x.lock.yaml") == file


def test_the_digest_is_of_the_canonical_json_of_the_inputs() -> None:
    lock = cpu_lock()
    assert lock.digest == f"sha256:{hashlib.sha256(lock.json_bytes).hexdigest()}"
    assert lock.digest.startswith(f"sha256:{lock.short_digest}")
    assert len(lock.short_digest) == 12
    assert json.loads(lock.json_bytes) == lock.inputs
    assert lock.json_bytes == json.dumps(lock.inputs, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def test_what_came_out_is_no_part_of_the_digest() -> None:
    lock = cpu_lock()
    with_built = locks.dump(LockFile(lock=lock, built=built_of(lock, "base")))
    assert locks.parse(with_built, "x").lock.digest == lock.digest
    assert b"built" not in lock.json_bytes


def test_neither_layout_nor_order_of_keys_counts() -> None:
    lock = cuda_lock()
    shuffled = yaml.safe_dump(lock.inputs, sort_keys=True, default_flow_style=True)
    assert locks.parse(shuffled.encode(), "x").lock.digest == lock.digest


def test_the_copy_in_an_image_is_a_lock_too() -> None:
    lock = cuda_lock()
    assert locks.parse(lock.json_bytes, "lock.json") == LockFile(lock=lock)


def test_keys_without_a_value_are_absent_so_that_later_keys_change_no_digest() -> None:
    assert "apt" not in cpu_lock().inputs
    assert b"null" not in locks.dump(LockFile(lock=cpu_lock()))


def test_every_input_counts() -> None:
    lock = cpu_lock()
    changed = [lock.model_copy(update={"epoch": 1}), lock.model_copy(update={"environment": {}}), lock.model_copy(update={"name": "y"})]
    assert len({lock.digest, *(other.digest for other in changed)}) == 4


def faults(raw: bytes) -> list[tuple[str, str]]:
    with pytest.raises(EnvlockError) as caught:
        locks.parse(raw, "x.lock.yaml")
    assert exit_code_of(caught.value) is Exit.LOCK
    return [(finding.where, finding.what) for finding in caught.value.findings]


def test_all_faults_are_told_with_their_place() -> None:
    text = locks.dump(LockFile(lock=cpu_lock())).decode()
    damaged = text.replace("epoch:", "epok:").replace("variant: cpu", "variant: 7")
    found = faults(damaged.encode())
    lines = damaged.splitlines()
    assert len(found) >= 3  # epoch is missing, epok is unknown, the variant is no text
    for where, what in found:
        name, line, column = where.split(":")
        assert name == "x.lock.yaml"
        assert (int(line), int(column)) <= (len(lines), 140), what
    assert any("epok" in what for _, what in found)


@pytest.mark.parametrize("raw", [b"", b"- a\n- b\n", b"hello", b"\xff\xfe\0", b"a: [", b"version: 1\nversion: 1\n"])
def test_what_is_no_lock_is_said_to_be_none(raw: bytes) -> None:
    with pytest.raises(EnvlockError) as caught:
        locks.parse(raw, "x.lock.yaml")
    assert caught.value.findings[0].hint


def test_a_lock_of_another_version_is_told_from_a_damaged_one() -> None:
    text = locks.dump(LockFile(lock=cpu_lock())).decode().replace("version: 1\n", "version: 2\n", 1)
    with pytest.raises(LockInvalid, match="cannot be read") as caught:
        locks.parse(text.encode(), "x.lock.yaml")
    assert "version 2" in caught.value.why
    assert caught.value.where == "x.lock.yaml:3:10"


def test_a_lock_that_is_missing(tmp_path) -> None:
    with pytest.raises(LockMissing) as caught:
        locks.read(tmp_path / "cpu.lock.yaml")
    assert "envlock lock cpu.yaml" in caught.value.hint


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("wheels", 0, "file"), "../../../../root/.bashrc.whl"),
        (("wheels", 0, "file"), "-r.whl"),
        (("wheels", 0, "name"), "a\nRUN id"),
        (("wheels", 0, "path"), "/etc/passwd"),
        (("base", "suite"), "--customize-hook=id"),
        (("base", "debs", 0, "path"), "../../x.deb"),
        (("apt", "asked", 0), "-oAPT::Update::Pre-Invoke=id"),
        (("stack", "python"), "3.11; id"),
        (("stack", "torch"), "2.5.1\nRUN id"),
        (("stack", "platform"), "linux"),
        (("files", 0, "source"), "../secret"),
        (("files", 0, "to"), "/opt/venv/bin/python"),
        (("files", 0, "to"), "/dev/x"),
        (("environment",), {"A": "1\nRUN id"}),
        (("environment",), {"A B": "1"}),
        (("run", "user"), "1000\nRUN id"),
        (("run", "workdir"), "work"),
        (("shipped", "envlock"), "1\nRUN id"),
        (("name",), "../x"),
        (("epoch",), 10**12),
    ],
)
def test_what_becomes_a_path_an_argument_or_a_line_is_held_to_its_kind(path: tuple[str | int, ...], value: object) -> None:
    file = CopiedFile(source="src/a", to="/workspace/a", sha256="0" * 64, size=1)
    inputs = json.loads(cuda_lock(files=(file,)).json_bytes)
    locks.parse(json.dumps(inputs).encode(), "x.lock.yaml")
    part = inputs
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    with pytest.raises(Problems) as caught:
        locks.parse(json.dumps(inputs).encode(), "x.lock.yaml")
    assert {finding.id for finding in caught.value.findings} == {"lock-invalid"}


@pytest.mark.parametrize("written", [token for name, token in RAW.items() if name not in ("@date@", "@no-date@", "@null@", "@sixty@")])
def test_a_value_of_yaml_that_json_has_not_is_a_fault_of_the_file(written: str) -> None:
    text = locks.dump(LockFile(lock=cpu_lock())).decode().replace("uv: 0.13.9", f"uv: {written}", 1)
    assert all(what for _, what in faults(text.encode()))


def test_a_date_stays_the_text_that_was_written() -> None:
    text = locks.dump(LockFile(lock=cpu_lock())).decode().replace("uv: 0.13.9", "uv: 2026-11-29", 1)
    assert locks.parse(text.encode(), "x").lock.tools == {"uv": "2026-11-29"}


def test_hashes_are_hashes() -> None:
    text = locks.dump(LockFile(lock=cpu_lock())).decode()
    sha256 = cpu_lock().wheels[0].sha256
    with pytest.raises(Problems):
        locks.parse(text.replace(sha256, sha256[:-1]).encode(), "x.lock.yaml")
    with pytest.raises(Problems):
        locks.parse(text.replace(sha256, sha256.upper()[:-1] + "G").encode(), "x.lock.yaml")
