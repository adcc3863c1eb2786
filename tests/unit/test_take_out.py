"""Outputs of a run come out of its container: every regular file, under each of its names, and nothing else."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

from envlock.experiment import take_out


class Container:
    def __init__(self, *members: tuple[str, bytes, str]) -> None:
        self._tar = io.BytesIO()
        with tarfile.open(fileobj=self._tar, mode="w") as tar:
            for name, kind, text in members:
                header = tarfile.TarInfo(name)
                header.type = kind
                header.linkname = text if kind in (tarfile.LNKTYPE, tarfile.SYMTYPE) else ""
                content = text.encode() if kind == tarfile.REGTYPE else b""
                header.size = len(content)
                tar.addfile(header, io.BytesIO(content))

    def get(self, path: str) -> Iterator[bytes]:
        yield self._tar.getvalue()


def test_files_under_each_of_their_names(tmp_path: Path) -> None:
    container = Container(
        ("out", tarfile.DIRTYPE, ""),
        ("out/deep", tarfile.DIRTYPE, ""),
        ("out/deep/a", tarfile.REGTYPE, "first"),
        ("out/b", tarfile.LNKTYPE, "out/deep/a"),
        ("out/c", tarfile.LNKTYPE, "out/gone"),
        ("out/d", tarfile.LNKTYPE, "out/../../outside"),
        ("out/e", tarfile.SYMTYPE, "/etc/passwd"),
        ("out/../f", tarfile.REGTYPE, "out"),
        ("out/pipe", tarfile.FIFOTYPE, ""),
    )
    take_out(container, "/out", tmp_path / "1")  # type: ignore[arg-type]
    found = {path.relative_to(tmp_path / "1").as_posix(): path.read_text() for path in (tmp_path / "1").rglob("*") if path.is_file()}
    assert found == {"deep/a": "first", "b": "first"}
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
