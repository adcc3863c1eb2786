"""Any tar in, entries out; hostile and damaged ones refused."""

from __future__ import annotations

import io
import subprocess
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from envlock.errors import DamagedArchive, HostileArchive
from envlock.layers.canonical import Entry, read_tar
from envlock.rootfs import read_rootfs


def member(name: str, kind: bytes = tarfile.REGTYPE, **more) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    for key, value in more.items():
        setattr(info, key, value)
    return info


def tar_of(*infos: tarfile.TarInfo, form: int = tarfile.PAX_FORMAT) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=form, encoding="utf-8", errors="surrogateescape") as tar:
        for info in infos:
            tar.addfile(info, io.BytesIO(b"c" * info.size) if info.size else None)
    return raw.getvalue()


def entries(raw: bytes) -> list[Entry]:
    return list(read_tar(io.BytesIO(raw), "some.tar"))


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_names_and_all_kinds_are_read(form):
    long = "d/" * 80 + "ünï" + "f" * 150
    raw = tar_of(
        member("./", tarfile.DIRTYPE),
        member("./a/", tarfile.DIRTYPE, mode=0o41777),
        member(long, size=3, mtime=12),
        member("l", tarfile.SYMTYPE, linkname="/x/" * 60),
        member("h", tarfile.LNKTYPE, linkname="./" + long),
        member("fifo", tarfile.FIFOTYPE),
        member("dev/null", tarfile.CHRTYPE),
        form=form,
    )
    assert [(e.path, e.kind, e.target) for e in entries(raw)] == [
        ("a", "directory", ""),
        (long, "file", ""),
        ("l", "symlink", "/x/" * 60),
        ("h", "hardlink", long),
    ]
    assert [e.mode for e in entries(raw)][:2] == [0o1777, 0o644]


def test_content_is_read_while_the_entry_is_at_hand():
    raw = tar_of(member("a", size=2), member("b", size=700_000), member("c"))
    assert [e.open().read() for e in read_tar(io.BytesIO(raw), "some.tar")] == [b"cc", b"c" * 700_000, b""]


def test_names_that_are_not_utf8_survive():
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert [e.path for e in entries(tar_of(member(name), form=tarfile.GNU_FORMAT))] == [name]


def test_capabilities_and_fractions_of_seconds_are_read():
    raw = b"\1\0\0\2" + b"\xff" * 16
    info = member("ping", mtime=7.9, pax_headers={"SCHILY.xattr.security.capability": raw.decode("utf-8", "surrogateescape")})
    (ping,) = entries(tar_of(info))
    assert (ping.mtime, ping.capability) == (7, raw)


@pytest.mark.parametrize("options", [["--format=gnu"], ["--format=posix"], ["--format=posix", "--sparse-version=0.1"]])
def test_sparse_files_come_out_whole(tmp_path: Path, options):
    with (tmp_path / "holes").open("wb") as holes:
        holes.seek(1_000_000)
        holes.write(b"data")
        holes.truncate(2_000_000)
    raw = subprocess.run(["tar", "-c", "--sparse", *options, "-C", tmp_path, "holes"], check=True, capture_output=True).stdout
    for entry in read_tar(io.BytesIO(raw), "some.tar"):
        content = entry.open().read()
        assert (entry.size, len(content), content[1_000_000:1_000_004], content.count(0)) == (2_000_000, 2_000_000, b"data", 1_999_996)


def test_whiteouts_of_others_layers_are_understood():
    raw = tar_of(member("a/.wh.b"), member(".wh.c"), member("d/.wh..wh..opq"))
    assert [(e.path, e.kind) for e in entries(raw)] == [("a/b", "whiteout"), ("c", "whiteout"), ("d", "opaque")]


@pytest.mark.parametrize(
    "info",
    [
        member("/etc/passwd"),
        member("../x"),
        member("a/../../x"),
        member("x", tarfile.LNKTYPE, linkname="../../etc/shadow"),
        member("x", tarfile.LNKTYPE, linkname="/etc/shadow"),
        member("disk", tarfile.BLKTYPE),
        member("usr/gone", tarfile.CHRTYPE),
    ],
    ids=lambda info: info.name,
)
def test_hostile_archives_are_refused(info):
    with pytest.raises(HostileArchive) as refused:
        entries(tar_of(info))
    assert refused.value.where == "some.tar"


def test_damaged_archives_are_refused():
    raw = tar_of(member("a", size=5000), member("b"))
    cuts = [100, 600, 3000, 512 + 5120, 512 + 5120 + 512]
    for cut in cuts:
        with pytest.raises(DamagedArchive):
            entries(raw[:cut])
    with pytest.raises(DamagedArchive):
        entries(b"no tar" * 1000)
    with pytest.raises(DamagedArchive):
        entries(b"")


def test_a_large_archive_is_read_in_little_memory():
    raw = tar_of(*(member(f"folder/file{n}", size=1) for n in range(10_000)))
    tracemalloc.start()
    count = sum(1 for _ in read_tar(io.BytesIO(raw), "some.tar"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 10_000
    assert peak < 1_000_000


def test_a_stream_is_read_to_its_end():
    stream = io.BytesIO(tar_of(member("a")) + bytes(1_000_000))
    assert len(list(read_tar(stream, "some.tar"))) == 1
    assert stream.read() == b""


def sparse(real: int, stored: bytes) -> bytes:
    """A tar with one file in GNU's sparse form 1.0, which says that it is of `real` bytes."""
    table = f"1\n0\n{len(stored)}\n".encode().ljust(512, b"\0")
    info = tarfile.TarInfo("GNUSparseFile.0/log")
    info.size = len(table) + len(stored)
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "log", "GNU.sparse.realsize": str(real)}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info, io.BytesIO(table + stored))
    return buffer.getvalue()


def test_a_file_of_holes_is_no_bomb():
    (entry,) = read_tar(io.BytesIO(sparse(1 << 20, b"x" * 512)), "a layer")
    assert entry.size == 1 << 20
    with pytest.raises(HostileArchive, match="unpacks to far more"):
        list(read_tar(io.BytesIO(sparse(1 << 40, b"x" * 512)), "a layer"))


def test_a_gigantic_size_that_is_only_said_is_damage():
    info = tarfile.TarInfo("huge")
    info.size = 1 << 60
    raw = info.tobuf(tarfile.GNU_FORMAT) + b"x" * 5000
    with pytest.raises(DamagedArchive):
        read_rootfs(io.BytesIO(raw), "a layer")
