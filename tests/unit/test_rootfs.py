"""One tree, one digest, however it was packed; and what differs between two trees is named."""

from __future__ import annotations

import copy
import io
import subprocess
import tarfile
from pathlib import Path

import pytest
from layer_helpers import file, folder, hardlink, symlink, written

from envlock.layers.canonical import Entry
from envlock.rootfs import Difference, FirstDifference, Rootfs, differences, read_rootfs, with_first_differences

CAPABILITY = bytes.fromhex("0100000200200000000000000000000000000000")  # cap_net_raw=ep, revision 2
LONG = "deep/" * 40 + "a file with a long name"


def rootfs(*entries: Entry) -> Rootfs:
    return read_rootfs(io.BytesIO(written(*entries)), "test.tar")


def packed(entries: list[tuple[tarfile.TarInfo, bytes]], form: int) -> Rootfs:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=form) as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    return read_rootfs(io.BytesIO(target.getvalue()), "test.tar")


def info(name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"", **more: object) -> tuple[tarfile.TarInfo, bytes]:
    made = tarfile.TarInfo(name)
    made.type, made.size = kind, len(content)
    for key, value in more.items():
        setattr(made, key, value)
    return made, content


EVERY_KIND = [
    info("bin", tarfile.DIRTYPE, mode=0o755),
    info("bin/su", content=b"setuid", mode=0o4755),
    info("bin/ping", content=b"may", mode=0o755, pax_headers={"SCHILY.xattr.security.capability": CAPABILITY.decode("latin-1")}),
    info("empty", tarfile.DIRTYPE, mode=0o1777),
    info("first", content=b"shared", uid=1000, gid=100),
    info("second", tarfile.LNKTYPE, linkname="first", uid=1000, gid=100),
    info("link", tarfile.SYMTYPE, linkname="bin/su"),
    info(LONG, content=b"long"),
    info("schön-\udcff", content=b"bytes that are no text"),
    info("big-owner", uid=3_000_000, gid=3_000_000),
]


def test_the_digest_is_pinned() -> None:
    """It changes only with the rules, and then RULES changes too."""
    assert packed(EVERY_KIND, tarfile.PAX_FORMAT).digest == "sha256:f1d2b52ebf9c9714dee5c8109b731080231a4efc4bd4f9697151e1ff173e08e6"


def changed(entry: tarfile.TarInfo, **fields: object) -> tarfile.TarInfo:
    """`TarInfo.replace`, which Python has from 3.11.4 on."""
    other = copy.copy(entry)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def test_packing_is_no_part_of_the_digest() -> None:
    entries = [entry for entry in EVERY_KIND if not entry[0].pax_headers]
    expected = packed(entries, tarfile.PAX_FORMAT).digest
    moved = [(changed(entry, mtime=99, uname="someone", gname="some"), content) for entry, content in entries]
    assert packed(moved, tarfile.GNU_FORMAT).digest == expected
    dotted = [(changed(entry, name=f"./{entry.name}"), content) for entry, content in entries]
    assert packed(dotted, tarfile.GNU_FORMAT).digest == expected


def test_a_hard_link_is_a_file() -> None:
    assert rootfs(file("a", b"x"), hardlink("b", "a")).digest == rootfs(file("a", b"x"), file("b", b"x")).digest


def test_a_sparse_file_is_its_content(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    with (tmp_path / "tree" / "holes").open("wb") as holes:
        holes.write(b"start")
        holes.seek(5_000_000)
        holes.write(b"end")
    digests = set()
    for options in (["--sparse", "--format=gnu"], ["--sparse", "--format=pax"], ["--format=ustar"]):
        raw = subprocess.run(["tar", *options, "-C", tmp_path / "tree", "-c", "holes"], check=True, capture_output=True).stdout
        digests.add(read_rootfs(io.BytesIO(raw), "test.tar").digest)
    assert len(digests) == 1


def test_what_engines_put_into_containers_is_left_out() -> None:
    stubs = [
        info(".dockerenv"),
        info("dev", tarfile.DIRTYPE),
        info("dev/console"),
        info("proc", tarfile.DIRTYPE),
        info("etc/hostname", content=b"c0ffee"),
    ]
    with_stubs = packed([*stubs, info("a", content=b"x", mode=0o644, mtime=5)], tarfile.GNU_FORMAT)
    assert sorted(with_stubs.nodes) == ["a"]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (file("a", b"1"), file("a", b"2"), [("a", "content")]),
        (file("a", mode=0o644), file("a", mode=0o755), [("a", "mode")]),
        (file("a", mode=0o755), file("a", mode=0o4755), [("a", "mode")]),
        (file("a"), file("a", uid=7), [("a", "owner")]),
        (file("a"), file("a", capability=CAPABILITY), [("a", "capability")]),
        (symlink("a", "x"), symlink("a", "y"), [("a", "target")]),
        (file("a"), symlink("a", "b"), [("a", "type")]),
        (file("a"), folder("a"), [("a", "type")]),
        (file("a"), file("b"), [("a", "missing"), ("b", "extra")]),
    ],
)
def test_a_difference_is_named_and_changes_the_digest(one: Entry, other: Entry, expected: list[tuple[str, str]]) -> None:
    a, b = rootfs(one), rootfs(other)
    found = differences(a, b)
    assert [(difference.path, difference.kind) for difference in found if difference.counts] == expected
    assert a.digest != b.digest


def test_a_time_is_information() -> None:
    a, b = rootfs(file("a", mtime=1)), rootfs(file("a", mtime=2))
    assert differences(a, b) == (Difference("a", "time", "1", "2"),)
    assert not differences(a, b)[0].counts
    assert a.digest == b.digest


def test_a_folder_that_is_missing_is_named_once() -> None:
    found = differences(rootfs(file("a/b/c"), file("a/b/d"), file("ab")), rootfs(file("ab")))
    assert found == (Difference("a", "missing", "directory"),)
    # paths that sort between a folder and what is in it
    beside = differences(rootfs(file("a/b"), file("a-1/RECORD"), file("a.libs/c")), rootfs())
    assert [difference.path for difference in beside] == ["a", "a-1", "a.libs"]


def test_the_first_byte_of_a_text_that_differs() -> None:
    one, other = [file("t", b"same\nalpha = 1\n"), file("b", b"\0\1")], [file("t", b"same\nalpha = 2\nmore\n"), file("b", b"\0\2")]
    found = differences(rootfs(*one), rootfs(*other))
    explained = with_first_differences(found, io.BytesIO(written(*one)), io.BytesIO(written(*other)))
    assert {difference.path: difference.first for difference in explained} == {
        "b": None,
        "t": FirstDifference(13, 2, "alpha = 1", "alpha = 2"),
    }


def test_the_first_difference_of_a_hard_link() -> None:
    one, other = [file("a", b"1\n"), hardlink("b", "a")], [file("a", b"2\n"), hardlink("b", "a")]
    found = differences(rootfs(*one), rootfs(*other))
    explained = with_first_differences(found, io.BytesIO(written(*one)), io.BytesIO(written(*other)))
    assert [(d.path, d.first.one, d.first.other) for d in explained if d.first] == [("a", "1", "2"), ("b", "1", "2")]


def test_a_text_that_goes_on() -> None:
    one, other = [file("t", b"same\n")], [file("t", b"same\nmore\n")]
    explained = with_first_differences(differences(rootfs(*one), rootfs(*other)), io.BytesIO(written(*one)), io.BytesIO(written(*other)))
    assert explained[0].first == FirstDifference(5, 2, "", "more")
