"""What a spec names beside itself, as hashes: the same on every machine, and complaints instead of surprises."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from envlock.errors import DownloadDamaged, FileUnreadable, UsageError
from envlock.sources import hash_requirements, keep_files, list_files
from envlock.spec import Spec, parse_spec
from envlock.store import Store


def spec(files: str = "", requirements: str = "") -> Spec:
    more = (f"files: [{files}]\n" if files else "") + (f"requirements: [{requirements}]\n" if requirements else "")
    return parse_spec(f"name: x\nstack: {{torch: 2.5.1}}\n{more}".encode(), "x.yaml")


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"content of {name}")


def test_a_folder_stands_for_its_files_sorted_by_where_they_go(tmp_path: Path) -> None:
    write(tmp_path, "src/b.py", "src/a.py", "src/deep/er/c.py", "note.txt")
    found = list_files(spec("{from: src/, to: /w/src}, {from: note.txt, to: /etc/note}"), tmp_path)
    assert [(file.source, file.to) for file in found] == [
        ("note.txt", "/etc/note"),
        ("src/a.py", "/w/src/a.py"),
        ("src/b.py", "/w/src/b.py"),
        ("src/deep/er/c.py", "/w/src/deep/er/c.py"),
    ]
    assert found[0].sha256 == hashlib.sha256(b"content of note.txt").hexdigest()
    assert found[0].size == len("content of note.txt")


def test_a_target_that_ends_in_a_slash_is_a_folder(tmp_path: Path) -> None:
    write(tmp_path, "data/note.txt")
    assert [file.to for file in list_files(spec("{from: data/note.txt, to: /w/}"), tmp_path)] == ["/w/note.txt"]


def test_what_is_no_part_of_anyones_code_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, "src/a.py", "src/__pycache__/a.pyc", "src/.git/HEAD", "src/in/.ipynb_checkpoints/x", "src/.gitignore")
    assert [file.source for file in list_files(spec("{from: src, to: /w}"), tmp_path)] == ["src/.gitignore", "src/a.py"]


def test_only_the_executable_bit_of_the_owner_counts(tmp_path: Path) -> None:
    write(tmp_path, "src/run.sh", "src/a.py")
    for mode in (0o744, 0o775, 0o700):
        (tmp_path / "src/run.sh").chmod(mode)
        (tmp_path / "src/a.py").chmod(mode & 0o666)
        assert [(file.source, file.executable) for file in list_files(spec("{from: src, to: /w}"), tmp_path)] == [
            ("src/a.py", False),
            ("src/run.sh", True),
        ]


def test_what_cannot_be_copied_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileUnreadable, match=r"cannot read gone\.py"):
        list_files(spec("{from: gone.py, to: /w/x}"), tmp_path)
    write(tmp_path, "src/a.py")
    (tmp_path / "src/link").symlink_to("a.py")
    with pytest.raises(FileUnreadable, match="src/link is a symbolic link"):
        list_files(spec("{from: src, to: /w}"), tmp_path)
    (tmp_path / "src/link").unlink()
    os.mkfifo(tmp_path / "src/pipe")
    with pytest.raises(FileUnreadable, match="src/pipe is no regular file"):
        list_files(spec("{from: src, to: /w}"), tmp_path)
    (tmp_path / "src/pipe").unlink()
    (tmp_path / os.fsdecode(b"src/caf\xe9.py")).write_text("x")
    with pytest.raises(FileUnreadable, match=r"src/caf\\xe9\.py is not UTF-8"):
        list_files(spec("{from: src, to: /w}"), tmp_path)


def test_two_files_for_one_place(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "b.py", "src/c.py")
    with pytest.raises(UsageError, match=r"a\.py and b\.py both go to /w/x"):
        list_files(spec("{from: a.py, to: /w/x}, {from: b.py, to: /w/x}"), tmp_path)
    with pytest.raises(UsageError, match=r"a\.py and src/c\.py both go to /w"):
        list_files(spec("{from: a.py, to: /w}, {from: src, to: /w}"), tmp_path)


def test_files_go_into_the_store_once_and_only_as_they_were_listed(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "b.py")
    store = Store(tmp_path / "store")
    files = list_files(spec("{from: a.py, to: /a}, {from: b.py, to: /b}"), tmp_path)
    (tmp_path / "b.py").write_text("another content")
    with pytest.raises(DownloadDamaged, match=r"b\.py is not the file"):
        keep_files(files, tmp_path, store)
    assert store.path(files[0].sha256).read_text() == "content of a.py"
    (tmp_path / "a.py").unlink()
    keep_files(files[:1], tmp_path, store)


def test_requirement_files_count_with_all_that_they_include(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "requirements.txt").write_text("-r parts/more.txt\nnumpy\n")
    (tmp_path / "parts/more.txt").write_text("scipy\n")
    found = hash_requirements(spec(requirements="requirements.txt"), tmp_path)
    assert found == {
        "requirements.txt": hashlib.sha256(b"-r parts/more.txt\nnumpy\n").hexdigest(),
        "parts/more.txt": hashlib.sha256(b"scipy\n").hexdigest(),
    }
