"""Layers in, the merged tree out; two trees in, the layer between them out."""

from __future__ import annotations

import hashlib
import io

from layer_helpers import file, folder, hardlink, members, symlink, tree

from envlock.layers.canonical import Entry, Tree, difference, write_layer


def tar(*entries: Entry) -> bytes:
    target = io.BytesIO()
    write_layer(entries, target, "test")
    return target.getvalue()


def between(lower: Tree, *upper: Entry, latest: int = 1000) -> list[Entry]:
    raw = tar(*upper)
    return list(difference(lower, lambda: io.BytesIO(raw), io.BytesIO(), latest, "upper.tar"))


def paths(entries: list[Entry]) -> list[tuple[str, str]]:
    return [(entry.kind, entry.path) for entry in entries if entry.kind != "directory"]


def test_layers_merge_as_engines_merge_them():
    base = tree(file("a/x", b"1"), file("a/y"), file("b/z"), folder("c"), file("c/old"), symlink("l", "a"))
    merged = base.with_entries(
        [Entry("a/x", "whiteout"), Entry("b", "whiteout"), Entry("c", "opaque"), file("c/new"), file("l/in"), file("a/y", b"2")], "layer"
    )
    assert sorted(merged.nodes) == ["a", "a/y", "c", "c/new", "l", "l/in"]
    assert merged.nodes["a/y"].sha256 == hashlib.sha256(b"2").hexdigest()
    assert sorted(base.nodes) == ["a", "a/x", "a/y", "b", "b/z", "c", "c/old", "l"]


def test_a_file_hides_the_folder_that_was_there():
    assert sorted(tree(file("a/b/c")).with_entries([file("a")], "layer").nodes) == ["a"]


def test_a_tree_keeps_the_texts_that_envlock_reads():
    base = tree(file("etc/passwd", b"root"), file("etc/motd", b"hi"))
    assert base.kept == {"etc/passwd": b"root"}
    assert base.with_entries([Entry("etc/passwd", "whiteout")], "layer").kept == {}


def test_a_tree_read_from_a_tar_is_the_tree_of_its_entries():
    entries = [file("a/b", b"x"), hardlink("a/c", "a/b"), symlink("d", "a")]
    assert Tree().with_tar(io.BytesIO(tar(*entries)), "x.tar").nodes["a/c"] == tree(*entries).nodes["a/b"]


def test_equal_trees_differ_in_nothing():
    same = [file("a/b", b"x"), symlink("c", "a"), hardlink("a/d", "a/b"), Entry("t", "directory", 0o1777)]
    assert between(tree(*same), *same) == []


def test_what_changed_is_added_and_what_went_is_struck_out():
    lower = tree(file("a/same", b"s"), file("a/text", b"1"), file("a/mode"), file("gone/in/x"), file("a/gone"), symlink("l", "x"))
    upper = [file("a/same", b"s"), file("a/text", b"2"), file("a/mode", mode=0o600), symlink("l", "y"), file("new/f", b"n")]
    found = between(lower, *upper)
    assert paths(found) == [
        ("file", "a/mode"),
        ("file", "a/text"),
        ("symlink", "l"),
        ("file", "new/f"),
        ("whiteout", "a/gone"),
        ("whiteout", "gone"),
    ]
    assert {e.path: e.open().read() for e in found if e.kind == "file"} == {"a/mode": b"", "a/text": b"2", "new/f": b"n"}


def test_the_difference_over_the_lower_tree_gives_the_upper_tree():
    lower = [file("a/b", b"x"), file("a/d/e"), symlink("m", "a"), file("k"), file("z1", b"z"), hardlink("z2", "z1")]
    upper = [file("a/b", b"y"), file("a/d", b"now a file"), folder("m"), file("m/n"), folder("k"), file("z1", b"w"), hardlink("z2", "z1")]
    raw = tar(*between(tree(*lower), *upper))
    merged = tree(*lower).with_tar(io.BytesIO(raw), "diff.tar")
    wanted = tree(*upper)
    assert {p: (n.kind, n.sha256) for p, n in merged.nodes.items()} == {p: (n.kind, n.sha256) for p, n in wanted.nodes.items()}


def test_a_new_name_of_an_old_file_brings_the_file_along():
    found = between(tree(file("a", b"text"), file("b", b"other")), file("a", b"text"), hardlink("c", "a"), file("b", b"other"))
    assert members(tar(*found))["c"].linkname == "a"
    assert next(e for e in found if e.path == "a").open().read() == b"text"


def test_times_are_clamped_and_folders_times_alone_do_not_count():
    lower = tree(folder("a", mtime=1), file("a/f", mtime=1))
    (again,) = [e for e in between(lower, folder("a", mtime=500), file("a/f", mtime=2000), latest=900) if e.kind == "file"]
    assert again.mtime == 900
    assert between(lower, folder("a", mtime=500), file("a/f", mtime=1)) == []


def test_parents_of_a_change_are_given_as_they_are_below():
    found = between(tree(folder("a", mode=0o2775, mtime=1)), folder("a", mode=0o2775, mtime=99), file("a/f"))
    assert [(e.mode, e.mtime) for e in found if e.path == "a"] == [(0o2775, 1)]


def test_stubs_are_in_no_tree():
    assert tree(file("proc/x"), file("etc/hosts")).nodes.keys() == set()
    assert between(tree(), file("etc/hosts")) == []
