"""One wheel in, the files that installing it gives out; the measure is `installer` writing to a real folder."""

from __future__ import annotations

import hashlib
import os
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from installer import install
from installer.destinations import SchemeDictionaryDestination
from installer.sources import WheelFile
from wheel_helpers import make_wheel, record_row

from envlock.errors import DamagedArchive, EnvlockError, HostileArchive
from envlock.layers.wheelfile import INSTALLER, INTERPRETER, InstalledWheel, open_wheel, schemes
from envlock.lock import Wheel
from envlock.resolve.python import wheel_date

SITE = "opt/venv/lib/python3.11/site-packages"
ALL_PARTS = {
    "pkg/__init__.py": "x = 1\n",
    "pkg/ünï.txt": "text",
    "pkg/empty.py": "",
    "pkg/tool.so": b"\x7fELF" + bytes(100_000),
    "pkg/__pycache__/evil.cpython-311.pyc": b"bytecode",
    "parts-1.data/scripts/run": "#!python\nprint('hi')\n",
    "parts-1.data/scripts/raw": b"\x7fELF raw",
    "parts-1.data/data/share/doc.txt": "doc",
    "parts-1.data/headers/part.h": "// header",
    "parts-1.data/platlib/pkg/plat.py": "y = 2\n",
}
ENTRY_POINTS = "[console_scripts]\nparts = pkg:main\n[gui_scripts]\nparts-gui = pkg.gui:Window.open\n[other]\nx = y\n"


def opened(folder: Path, wheel: Wheel) -> InstalledWheel:
    return open_wheel(wheel, folder / wheel.file, "3.11")


def contents(wheel: InstalledWheel) -> dict[str, tuple[bytes, int]]:
    found = {}
    for file in wheel.files:
        with file.entry.open() as stream:
            found[file.entry.path] = (b"".join(iter(lambda: stream.read(65536), b"")), file.entry.mode)
    return found


def installed_for_real(wheel: Path, root: Path, distribution: str) -> dict[str, tuple[bytes, int]]:
    destination = SchemeDictionaryDestination(schemes("3.11", distribution), INTERPRETER, "posix", destdir=str(root))
    umask = os.umask(0o022)
    with WheelFile.open(wheel) as source:
        install(source, destination, {"INSTALLER": INSTALLER})
    os.umask(umask)
    return {str(p.relative_to(root)): (p.read_bytes(), p.stat().st_mode & 0o7777) for p in root.rglob("*") if p.is_file()}


@pytest.mark.filterwarnings("ignore:Skip installing")
@pytest.mark.parametrize("purelib", [True, False])
@pytest.mark.parametrize("pack", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_wheel_comes_out_as_installer_writes_it(tmp_path, purelib, pack):
    modes = {"pkg/tool.so": 0o755, "parts-1.data/scripts/raw": 0o744, "pkg/empty.py": 0o600}
    wheel = make_wheel(tmp_path, "parts", ALL_PARTS, entry_points=ENTRY_POINTS, purelib=purelib, modes=modes, pack=pack)
    ours = contents(opened(tmp_path, wheel))
    assert ours == installed_for_real(tmp_path / wheel.file, tmp_path / "root", "parts")
    assert ours["opt/venv/bin/run"][0].startswith(b"#!/opt/venv/bin/python\n")
    assert ours["opt/venv/bin/parts"][1] == 0o755
    assert f"{SITE}/parts-1.dist-info/direct_url.json" not in ours


def test_hashes_are_those_of_the_contents(tmp_path):
    wheel = opened(tmp_path, make_wheel(tmp_path, "parts", ALL_PARTS, entry_points=ENTRY_POINTS))
    found = contents(wheel)
    assert all(hashlib.sha256(found[file.entry.path][0]).hexdigest() == file.sha256 for file in wheel.files)
    assert all(len(found[file.entry.path][0]) == file.entry.size for file in wheel.files)


def test_members_that_record_leaves_out_or_hashes_otherwise_are_installed(tmp_path):
    sha512 = "a.py,sha512=7oTYgC7iYpLQ8SDKzyMvLUYqGyz-wkXfFdDCIj5gwAlEhpOnKk6N8lXs5z9a3L9cMKrr-lVn4w5aZpb6vGpT5A,0"
    record = "\n".join(["parts-1.dist-info/METADATA,,", "parts-1.dist-info/RECORD,,"]) + "\n"
    wheel = opened(tmp_path, make_wheel(tmp_path, "parts", {"b.py": "b"}, record=record))
    assert contents(wheel)[f"{SITE}/b.py"][0] == b"b"
    with pytest.raises(DamagedArchive, match="cannot be installed"):
        opened(tmp_path, make_wheel(tmp_path, "parts", {"a.py": ""}, record=record + sha512))


def test_content_that_is_not_what_record_says_is_refused(tmp_path):
    record = record_row("pkg.py", b"honest") + "\nparts-1.dist-info/RECORD,,\n"
    wheel = opened(tmp_path, make_wheel(tmp_path, "parts", {"pkg.py": "forged"}, record=record))
    with pytest.raises(DamagedArchive) as refused:
        contents(wheel)
    assert refused.value.where == "parts-1-py3-none-any.whl: pkg.py"
    assert refused.value.why == "its sha256 is not the one in RECORD"


def test_a_size_that_is_not_what_record_says_is_refused(tmp_path):
    record = record_row("pkg.py", b"longer than that") + "\n"
    with pytest.raises(DamagedArchive) as refused:
        opened(tmp_path, make_wheel(tmp_path, "parts", {"pkg.py": "short"}, record=record))
    assert refused.value.why == "pkg.py has 5 bytes, and 16 by RECORD"


def symlink(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = 0o120777 << 16
    return info


@pytest.mark.parametrize(
    ("files", "more"),
    [
        ({"../../../../bin/python": "x"}, {}),
        ({"/etc/passwd": "x"}, {}),
        ({"pkg/../../x.py": "x"}, {}),
        ({"parts-1.data/scripts/../../../x": "x"}, {}),
        ({}, {"entry_points": "[console_scripts]\n../../../usr/bin/sh = pkg:main\n"}),
        ({}, {"extra": ((symlink("link"), b"/etc/shadow"),)}),
        ({"zeros": bytes(1 << 21)}, {"bomb": True}),
    ],
    ids=["up", "absolute", "up-inside", "up-from-scripts", "script-name", "symlink", "bomb"],
)
def test_hostile_wheels_are_refused(tmp_path, monkeypatch, files, more):
    if more.pop("bomb", False):
        monkeypatch.setattr("envlock.layers.wheelfile._ALWAYS_ALLOWED", 1 << 20)
    with pytest.raises(HostileArchive, match=r"parts-1-py3-none-any\.whl|may not be in an archive"):
        opened(tmp_path, make_wheel(tmp_path, "parts", files, **more))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_path_twice_is_refused(tmp_path):
    wheel = make_wheel(tmp_path, "parts", {"a.py": "1"}, extra=((zipfile.ZipInfo("a.py"), b"2"),))
    with pytest.raises(HostileArchive, match="holds a path twice"):
        opened(tmp_path, wheel)


def test_members_that_overlap_are_refused(tmp_path):
    wheel = make_wheel(tmp_path, "parts", {"a.py": b"x" * 1000, "b.py": b"x" * 1000}, pack=zipfile.ZIP_STORED)
    raw = bytearray((tmp_path / wheel.file).read_bytes())
    with zipfile.ZipFile(tmp_path / wheel.file) as archive:
        first, second = (archive.getinfo(name).header_offset for name in ("a.py", "b.py"))
    entry = raw.rindex(b"b.py", 0, raw.rindex(b"parts-1.dist-info/METADATA"))
    assert int.from_bytes(raw[entry - 4 : entry], "little") == second
    raw[entry - 4 : entry] = (first + 10).to_bytes(4, "little")
    (tmp_path / wheel.file).write_bytes(raw)
    with pytest.raises(HostileArchive, match="overlap"):
        opened(tmp_path, wheel)


@pytest.mark.parametrize("cut", [10, 200, -30])
def test_a_wheel_that_is_cut_short_is_refused(tmp_path, cut):
    wheel = make_wheel(tmp_path, "parts", {"a.py": "1" * 500})
    whole = (tmp_path / wheel.file).read_bytes()
    (tmp_path / wheel.file).write_bytes(whole[:cut])
    with pytest.raises(DamagedArchive, match="cannot be installed"):
        opened(tmp_path, wheel)


def test_damage_inside_a_member_is_found(tmp_path):
    wheel = make_wheel(tmp_path, "parts", {"a.py": os.urandom(100_000)})
    intact = opened(tmp_path, wheel)
    raw = bytearray((tmp_path / wheel.file).read_bytes())
    raw[50_000] ^= 1
    (tmp_path / wheel.file).write_bytes(raw)
    with pytest.raises(DamagedArchive, match=r"a\.py in the wheel parts-1"):
        contents(intact)


@pytest.mark.parametrize("pack", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_wheel_that_is_cut_after_it_was_opened_is_damaged_and_not_read_for_ever(tmp_path, pack):
    wheel = make_wheel(tmp_path, "parts", {"a.py": os.urandom(100_000)}, pack=pack)
    intact = opened(tmp_path, wheel)
    os.truncate(tmp_path / wheel.file, 50_000)
    with pytest.raises(DamagedArchive, match=r"a\.py in the wheel parts-1"):
        contents(intact)


@pytest.mark.parametrize("what", ["no-info", "two-infos", "bad-entry-point", "not-a-zip"])
def test_a_wheel_that_is_none_is_refused_with_a_reason(tmp_path, what):
    wheel = make_wheel(tmp_path, "parts", {"a.py": ""}, entry_points="[console_scripts]\nx = no-such thing\n" if "entry" in what else "")
    path = tmp_path / wheel.file
    if what == "two-infos":
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("other-2.dist-info/METADATA", "")
    elif what == "no-info":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.py", "")
    elif what == "not-a-zip":
        path.write_text("hello")
    with pytest.raises(DamagedArchive) as refused:
        opened(tmp_path, wheel)
    assert refused.value.why
    assert isinstance(refused.value, EnvlockError)


def test_no_flipped_bit_is_a_fault_of_ours(tmp_path: Path) -> None:
    """Python's zipfile raises half a dozen kinds of errors of them. (Every 13th bit; the content's are caught by its sha256.)"""
    wheel = make_wheel(tmp_path, "parts", {"parts/__init__.py": "x = 1\n" * 20})
    path = tmp_path / wheel.file
    whole = path.read_bytes()
    for bit in range(0, len(whole) * 8, 13):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with suppress(EnvlockError):
            contents(opened(tmp_path, wheel))
        with suppress(EnvlockError):
            wheel_date(path)
