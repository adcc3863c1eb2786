"""Entries in, the one tar out: the layer rules, version 1."""

from __future__ import annotations

import hashlib
import io
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_helpers import file, folder, hardlink, members, symlink, tree, written

from envlock.errors import BuildFailed, HostileArchive
from envlock.layers.canonical import ASSEMBLED, Entry, plan_layer, read_tar, write_layer
from envlock.layers.entry import is_stub

ONE_OF_EACH = [
    file("usr/bin/tool", b"#!/bin/sh\n", mode=0o755, uid=1, gid=2),
    symlink("usr/bin/alias", "tool"),
    hardlink("usr/bin/twin", "usr/bin/tool"),
    Entry("old", "whiteout", mtime=9),
    file("naïve/" + "d" * 120 + "/" + "f" * 120, b"x" * 513, capability=b"\1\0\0\2" + bytes(16)),
    file("usr/share/" + "s" * 90 + "/split", b"", uid=3_000_000, mtime=-1),
]


def test_rules_version_1_make_these_bytes_and_no_others():
    digest = hashlib.sha256(written(*ONE_OF_EACH)).hexdigest()
    assert digest == "7aa0d7887683208c8bfa8c171612c174a6635416927e01b3032e0b23c73c62d8"
    assert hashlib.sha256(written(*reversed(ONE_OF_EACH))).hexdigest() == digest


def test_another_reader_finds_what_was_written():
    found = members(written(*ONE_OF_EACH))
    tool, far = found["usr/bin/tool"], found["usr/share/" + "s" * 90 + "/split"]
    assert (tool.mode, tool.uid, tool.gid, tool.uname, tool.gname, tool.mtime) == (0o755, 1, 2, "", "", 5)
    assert (far.uid, far.mtime) == (3_000_000, -1)
    assert (found["usr/bin/alias"].linkname, found["usr/bin/twin"].linkname) == ("tool", "usr/bin/tool")
    assert found["naïve/" + "d" * 120 + "/" + "f" * 120].size == 513


def test_entries_are_sorted_as_bytes_and_parents_come_first():
    raw = written(file("a/b"), file("a-b"), file("é"), file("z"), file("a.b"))
    assert list(members(raw)) == ["a", "a-b", "a.b", "a/b", "z", "é"]


def test_parents_keep_the_metadata_that_they_have_below():
    found = members(written(file("var/mail/x"), below=tree(folder("var"), folder("var/mail", mode=0o2775, gid=8, mtime=77))))
    assert (found["var/mail"].mode, found["var/mail"].gid, found["var/mail"].mtime) == (0o2775, 8, 77)
    assert members(written(file("new/x")))["new"].mtime == ASSEMBLED


def test_pax_is_used_only_where_ustar_cannot_hold_an_entry():
    def starts_with_pax(entry: Entry) -> bool:
        return written(entry)[156:157] == b"x"

    assert not starts_with_pax(file("f" * 100))
    assert starts_with_pax(file("f" * 101))
    assert starts_with_pax(file("ü"))
    assert starts_with_pax(symlink("l", "t" * 101))
    assert not starts_with_pax(symlink("l", "t" * 100))
    assert starts_with_pax(file("c", capability=b"\1\0\0\2" + bytes(16)))


def test_a_file_of_more_than_8_gib_has_its_size_in_pax():
    big = Entry("big", "file", size=9 * 2**30)
    assert plan_layer([big]).size == 2 * 512 + 512 + 9 * 2**30 + 1024


def test_whiteouts_are_empty_and_without_a_date():
    found = members(written(Entry("a/gone", "whiteout", mode=0o644, mtime=99, uid=4)))
    gone = found["a/.wh.gone"]
    assert (gone.size, gone.mtime, gone.uid, gone.mode) == (0, 0, 0, 0)


def test_the_first_path_of_hard_links_is_the_file():
    raw = written(file("z", b"content", mode=0o600), hardlink("a", "m"), hardlink("m", "z"))
    found = members(raw)
    assert found["a"].isreg()
    assert [(found[name].linkname, found[name].mode) for name in "mz"] == [("a", 0o600), ("a", 0o600)]


def test_a_hard_link_to_nothing_is_refused():
    with pytest.raises(BuildFailed, match="leads nowhere"):
        written(hardlink("a", "b"))
    with pytest.raises(BuildFailed, match="leads nowhere"):
        written(hardlink("a", "b"), hardlink("b", "a"))


def test_paths_follow_the_links_of_the_layers_below():
    merged = tree(folder("usr/bin"), symlink("bin", "usr/bin"), symlink("sbin", "/bin"), symlink("home", "var/../usr"))
    raw = written(file("bin/sh2"), file("sbin/x"), folder("bin"), file("home/me"), below=merged)
    assert list(members(raw)) == ["usr", "usr/bin", "usr/bin/sh2", "usr/bin/x", "usr/me"]


def test_a_link_itself_can_be_replaced():
    assert members(written(symlink("bin/sh", "bash"), below=tree(symlink("bin/sh", "dash"))))["bin/sh"].linkname == "bash"


def test_links_in_a_circle_are_refused():
    with pytest.raises(BuildFailed, match="circle"):
        written(file("a/x"), below=tree(symlink("a", "b"), symlink("b", "a")))


def test_stubs_of_the_engine_are_left_out():
    raw = written(file("proc/x"), folder("dev"), file("sys/a/b"), file("etc/hosts"), file(".dockerenv"), file("etc/hostess"))
    assert list(members(raw)) == ["etc", "etc/hostess"]


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "a\0b", "a/.wh.b", ".wh.x/y"])
def test_hostile_paths_are_refused(path):
    with pytest.raises(HostileArchive):
        written(file(path))


def test_contradictions_are_refused():
    with pytest.raises(BuildFailed, match="written twice"):
        written(file("a", b"1"), file("a", b"2"))
    with pytest.raises(BuildFailed, match="cannot be a folder"):
        written(file("a"), file("a/b"))
    with pytest.raises(BuildFailed, match="cannot be a folder"):
        written(file("a/b"), below=tree(file("a")))


def test_content_of_another_length_is_refused():
    with pytest.raises(BuildFailed) as refused:
        written(replace(file("a", b"abc"), size=4))
    assert refused.value.why == "4 bytes were expected and 3 read"


def test_the_same_folder_twice_is_one_folder():
    assert list(members(written(folder("a"), folder("a")))) == ["a"]


def test_capabilities_lose_the_owner_of_their_namespace():
    version_3 = b"\1\0\0\3" + bytes(range(16)) + b"\xe8\3\0\0"
    record = b"security.capability=\1\0\0\2" + bytes(range(16)) + b"\n"
    assert record in written(file("a", capability=version_3))


def test_progress_is_told_every_byte():
    told: list[int] = []
    target = io.BytesIO()
    layer = write_layer([file("a", b"x" * 3_000_000)], target, "test", advance=told.append)
    assert sum(told) == layer.size
    assert len(told) > 2


segment = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=120).filter(
    lambda text: text not in (".", "..") and not text.startswith(".wh.")
)
paths = st.lists(segment, min_size=1, max_size=4).map("/".join)


@given(st.lists(st.tuples(paths, st.integers(0, 2**40), st.integers(0, 2**31), st.binary(max_size=2000)), max_size=8))
@settings(max_examples=60, deadline=None)
def test_whatever_is_written_is_read_back(drawn):
    entries = [file(path, text, mtime=mtime, uid=uid) for path, mtime, uid, text in drawn]
    try:
        raw = written(*entries)
    except BuildFailed:  # two at one path, or one below another
        return
    kept = [entry for entry in entries if not is_stub(entry.path)]
    read = {(e.path, e.mtime, e.uid, e.open().read()) for e in read_tar(io.BytesIO(raw), "x") if e.kind == "file"}
    assert read == {(e.path, e.mtime, e.uid, e.open().read()) for e in kept}
