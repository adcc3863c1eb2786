"""Requirement files as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from envlock.errors import Exit, FileUnreadable, Problems, exit_code_of
from envlock.resolve.requirements import RequirementSet, read_requirements


def read(tmp_path: Path, text: str) -> RequirementSet:
    (tmp_path / "requirements.txt").write_text(text)
    return read_requirements([tmp_path / "requirements.txt"])


def test_requirements_comments_markers_and_continued_lines(tmp_path: Path) -> None:
    found = read(
        tmp_path, "# tools\nNumPy >= 1.26  # why\npandas[excel]==2.2; python_version < '3.13'\nscipy \\\n  >=1.10\n\n--prefer-binary\n"
    )
    assert found.requirements == ["NumPy>=1.26", 'pandas[excel]==2.2; python_version < "3.13"', "scipy>=1.10"]


def test_files_that_are_included(tmp_path: Path) -> None:
    (tmp_path / "base.txt").write_text("six\n-r requirements.txt\n")
    (tmp_path / "held.txt").write_text("six<2\n")
    found = read(tmp_path, "-r base.txt\n--constraint held.txt\n")
    assert (found.requirements, found.constraints) == (["six"], ["six<2"])
    assert [path.name for path in found.files] == ["requirements.txt", "base.txt", "held.txt"]


def test_hashes_are_read(tmp_path: Path) -> None:
    found = read(tmp_path, f"six==1.16 --hash=sha256:{'a' * 64} \\\n    --hash=sha256:{'b' * 64}\n")
    assert found.requirements == ["six==1.16"]
    assert found.hashes == {"six": frozenset({"a" * 64, "b" * 64})}


def test_pytorch_s_index_is_passed_over(tmp_path: Path) -> None:
    text = "--extra-index-url https://download.pytorch.org/whl/cu117\n-f https://download.pytorch.org/whl/cu111/torch_stable.html\ntorch==2.0.0\n"
    assert read(tmp_path, text).requirements == ["torch==2.0.0"]


@pytest.mark.parametrize(
    ("line", "id_"),
    [
        ("--extra-index-url https://pypi.example/simple", "requirement-option"),
        ("--index-url=https://pypi.example/simple", "requirement-option"),
        ("-i https://pypi.example/simple", "requirement-option"),
        ("-f wheels/", "requirement-option"),
        ("--pre", "requirement-option"),
        ("six==${VERSION}", "requirement-option"),
        ("-e .", "needs-compiling"),
        ("./local", "needs-compiling"),
        ("git+https://example.org/x.git@main#egg=x", "needs-compiling"),
        ("x @ git+https://example.org/x.git", "needs-compiling"),
        ("https://example.org/x-1.0-py3-none-any.whl", "needs-compiling"),
        ("not a requirement", "requirement-syntax"),
    ],
)
def test_what_a_lock_cannot_honour_is_refused_with_its_line(tmp_path: Path, line: str, id_: str) -> None:
    with pytest.raises(Problems) as caught:
        read(tmp_path, f"six\n{line}\n!\n")
    assert exit_code_of(caught.value) == Exit.USAGE
    first, second = caught.value.findings
    assert (first.id, first.where) == (id_, "requirements.txt:2")
    assert first.hint
    assert second.where == "requirements.txt:3"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileUnreadable, match=r"absent\.txt"):
        read(tmp_path, "-r absent.txt\n")
