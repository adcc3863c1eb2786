"""The rootfs digest is the same through every engine: that of the layers laid over each other by our own rules."""

from __future__ import annotations

import io
import tarfile

import pytest
from conftest import SETTINGS, Sample

from envlock.engine import Engine
from envlock.image import make_image
from envlock.layers.sandbox import stream_of
from envlock.progress import Silent
from envlock.rootfs import differences, read_rootfs

TAG = "envlock-test-rootfs:sample"
CAPABILITY = bytes.fromhex("0100000200200000000000000000000000000000").decode("latin-1")  # cap_net_raw=ep


def layer(*entries: tuple[str, bytes, dict[str, object]], contents: dict[str, bytes] | None = None) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, more in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = kind, 0o755
            for key, value in more.items():
                setattr(entry, key, value)
            content = (contents or {}).get(name, b"")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return target.getvalue()


LOWER = layer(
    ("etc", tarfile.DIRTYPE, {}),  # every engine makes it for its stubs
    ("empty", tarfile.DIRTYPE, {"mode": 0o1777}),
    ("folder", tarfile.DIRTYPE, {"mode": 0o2750, "uid": 1000, "gid": 1001}),
    ("folder/one", tarfile.REGTYPE, {}),
    ("folder/two", tarfile.LNKTYPE, {"linkname": "folder/one"}),
    ("gone", tarfile.DIRTYPE, {}),
    ("gone/file", tarfile.REGTYPE, {}),
    ("hidden", tarfile.REGTYPE, {}),
    ("link", tarfile.SYMTYPE, {"linkname": "/folder/one"}),
    ("ping", tarfile.REGTYPE, {"pax_headers": {"SCHILY.xattr.security.capability": CAPABILITY}}),
    ("replaced", tarfile.REGTYPE, {}),
    ("su", tarfile.REGTYPE, {"mode": 0o4755}),
    ("deep/" * 30 + "ä long name", tarfile.REGTYPE, {"uid": 3_000_000}),
    contents={"folder/one": b"shared", "hidden": b"h", "ping": b"p", "replaced": b"old", "su": b"s", "gone/file": b"g"},
)
UPPER = layer(
    (".wh.gone", tarfile.REGTYPE, {}),
    (".wh.hidden", tarfile.REGTYPE, {}),
    ("replaced", tarfile.DIRTYPE, {}),
    ("replaced/inside", tarfile.REGTYPE, {}),
    ("folder", tarfile.DIRTYPE, {"mode": 0o2750, "uid": 1000, "gid": 1001}),
    ("folder/one", tarfile.REGTYPE, {"mode": 0o600}),
    contents={"replaced/inside": b"new", "folder/one": b"changed"},
)


@pytest.fixture(scope="module")
def every_kind(sample: Sample) -> Sample:
    """An image with every kind of entry, replaced and deleted files included."""
    made = sample.with_tar("lower", LOWER).with_tar("upper", UPPER)
    return Sample(make_image(made.image.layers[-2:], SETTINGS), made.files, made.folder)


def test_the_exported_tree_is_the_merged_layers(any_engine: Engine, every_kind: Sample) -> None:
    expected = read_rootfs(io.BytesIO(LOWER), "lower").with_layer(io.BytesIO(UPPER), "upper")
    any_engine.load(every_kind.image, [TAG], every_kind.open_layer, Silent())
    try:
        exported = read_rootfs(stream_of(any_engine.export(TAG)), "export")
    finally:
        any_engine.untag(TAG)
    assert [difference for difference in differences(expected, exported) if difference.counts] == []
    assert exported.digest == expected.digest
    assert exported.nodes["ping"].capability == CAPABILITY.encode("latin-1")
    assert exported.nodes["folder/two"].sha256 != exported.nodes["folder/one"].sha256
