"""One wheel: what installing it puts where, decided from its directory and RECORD, without unpacking it.

PyPA's `installer` decides; our source and destination only keep it from reading and writing. Content is inflated later, while
the layer is written, and held against RECORD then. What no honest wheel holds is refused first.
"""

from __future__ import annotations

import base64
import hashlib
import os
import posixpath
import stat
import zipfile
from collections.abc import Callable, Iterator, Sequence
from configparser import Error as ConfigError
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from installer import install
from installer.destinations import SchemeDictionaryDestination
from installer.exceptions import InstallerError
from installer.records import Hash, InvalidRecordEntry, RecordEntry, parse_record_file
from installer.scripts import Script
from installer.sources import WheelContentElement, WheelFile
from installer.utils import Scheme
from isal.igzip_lib import DECOMP_DEFLATE, IgzipDecompressor, IsalError

from envlock.errors import DamagedArchive, HostileArchive
from envlock.layers.canonical import ASSEMBLED
from envlock.layers.entry import Entry, checked_path
from envlock.lock import Wheel
from envlock.zips import BROKEN_ZIP

if TYPE_CHECKING:
    from installer.scripts import ScriptSection

VENV = "opt/venv"
INTERPRETER = f"/{VENV}/bin/python"
INSTALLER = b"envlock\n"

_LOCAL_HEADER = 30  # bytes before the names in a local file header: APPNOTE.TXT 4.3.7
_CHUNK = 1 << 18
_MOST_MEMBERS = 500_000
_MOST_TEXT = 64 << 20
_ALWAYS_ALLOWED = 1 << 30
_MOST_RATIO = 100
_MALFORMED: tuple[type[Exception], ...] = (InstallerError, InvalidRecordEntry, ConfigError, KeyError, AssertionError, *BROKEN_ZIP)
"""What zipfile and installer raise on a file that is no wheel."""
_AGAIN = "fetch it again; if it comes out the same, the wheel itself is broken: ask its makers, or pin another version"
_DISTRUST = "do not use this wheel; get it from a source that you trust"


@dataclass(frozen=True, slots=True)
class InstalledFile:
    """A file that a wheel puts into the image; `sha256` in hex is that of its content."""

    entry: Entry
    sha256: str


@dataclass(frozen=True, slots=True)
class InstalledWheel:
    """A wheel and all files that installing it gives, bytecode aside; `elsewhere` are the paths that an earlier wheel writes."""

    wheel: Wheel
    files: tuple[InstalledFile, ...]
    elsewhere: frozenset[str] = frozenset()


def site_packages(python: str) -> str:
    """The folder for packages, `python` being major and minor version: `opt/venv/lib/python3.11/site-packages`."""
    return f"{VENV}/lib/python{python}/site-packages"


def schemes(python: str, distribution: str) -> dict[str, str]:
    """Where each part of a wheel goes, as pip would install it into the virtual environment."""
    site = f"/{site_packages(python)}"
    headers = f"/{VENV}/include/site/python{python}/{distribution}"
    return {"purelib": site, "platlib": site, "scripts": f"/{VENV}/bin", "data": f"/{VENV}", "headers": headers}


def open_wheel(wheel: Wheel, path: Path, python: str) -> InstalledWheel:
    """What installing the wheel at `path` gives under Python `python` (major and minor).

    Raises `HostileArchive` or `DamagedArchive`, which name the wheel and the member. Content is checked when it is read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            archive.filename = wheel.file
            _refuse_hostile(archive.infolist(), wheel, path.stat().st_size)
            source = _Source(archive, path)
            destination = _Destination(python, source.distribution, wheel.file)
            install(source, destination, {"INSTALLER": INSTALLER})
    except _MALFORMED as error:
        why = str(error) or "its parts do not fit together"
        raise DamagedArchive(f"the wheel {wheel.file} cannot be installed", where=wheel.file, why=why, hint=_AGAIN) from None
    return InstalledWheel(wheel, tuple(destination.files))


def _refuse_hostile(members: Sequence[zipfile.ZipInfo], wheel: Wheel, size: int) -> None:
    def refuse(member: str, what: str, why: str) -> None:
        raise HostileArchive(f"the wheel {wheel.file} {what}", where=f"{wheel.file}: {member}", why=why, hint=_DISTRUST)

    unpacked = sum(member.file_size for member in members)
    if len(members) > _MOST_MEMBERS or unpacked > max(_ALWAYS_ALLOWED, _MOST_RATIO * size):
        refuse("", "unpacks to far more than it is", f"{size} bytes hold {len(members)} files of together {unpacked} bytes")
    seen: set[str] = set()
    end = 0
    for member in sorted(members, key=lambda m: m.header_offset):
        name, path = member.filename, checked_path(member.filename, wheel.file)
        if path in seen and not member.is_dir():
            refuse(name, "holds a path twice", "which of the two is meant cannot be known")
        seen.add(path)
        if stat.S_ISLNK(member.external_attr >> 16):
            refuse(name, "holds a symbolic link", "wheels have none; a link can lead files elsewhere")
        if member.header_offset < end:
            refuse(name, "holds files that overlap", "so that a small file unpacks to a huge one")
        end = member.header_offset + _LOCAL_HEADER + member.compress_size
        if member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            refuse(name, "is encrypted or packed in an unknown way", "wheels are plain zip files, stored or deflated")
        if ".dist-info/" in name and member.file_size > _MOST_TEXT:
            refuse(name, "has metadata of absurd size", f"{member.file_size} bytes")


class _Source(WheelFile):
    """Gives members without opening them."""

    def __init__(self, archive: zipfile.ZipFile, path: Path) -> None:
        super().__init__(archive)
        self._path = path

    def get_contents(self) -> Iterator[WheelContentElement]:
        rows = {row[0]: row for row in parse_record_file(self.read_dist_info("RECORD").splitlines())}
        record = posixpath.join(self.dist_info_dir, "RECORD")
        for info in self._zipfile.infolist():
            name = info.filename
            if name.endswith("/") or "__pycache__" in name.split("/")[:-1]:  # installer skips these too, with a warning each
                continue
            row = rows.get(name, (name, "", ""))
            mode = info.external_attr >> 16
            executable = bool(stat.S_ISREG(mode) and mode & 0o111)
            wheel = cast(str, self._zipfile.filename)
            content = BytesIO() if name == record else _Member(self._path, info, self._digest(info, row), wheel)
            yield row, cast(BinaryIO, content), executable

    def _digest(self, info: zipfile.ZipInfo, row: tuple[str, str, str]) -> bytes:
        """The sha256 that RECORD gives, or where it gives none, or another kind of hash, that of the content."""
        recorded = RecordEntry.from_elements(*row)
        if recorded.size not in (None, info.file_size):
            raise ValueError(f"{info.filename} has {info.file_size} bytes, and {recorded.size} by RECORD")
        if recorded.hash_ is not None and recorded.hash_.name == "sha256":
            return base64.urlsafe_b64decode(recorded.hash_.value + "=")
        with self._zipfile.open(info) as stream:
            if recorded.hash_ is not None and not recorded.validate_stream(cast(BinaryIO, stream)):
                raise ValueError(f"{info.filename} is not the file that RECORD names")
            stream.seek(0)
            return hashlib.file_digest(stream, "sha256").digest()  # type: ignore[arg-type]


class _Member:
    """The content of a deflated or stored member, read once from front to back and held against its sha256 at the end."""

    def __init__(self, path: Path, info: zipfile.ZipInfo, sha256: bytes, wheel: str) -> None:
        self.info = info
        self.sha256 = sha256
        self._path = path
        self._wheel = wheel
        self._file = -1
        self._at = 0
        self._left = info.compress_size
        self._inflate: IgzipDecompressor | None = None  # made when it is needed: it is large, and a wheel has thousands of members
        self._hash = hashlib.sha256()
        self._read = 0

    def again(self) -> BinaryIO:
        """The same member from its start, independent of this one."""
        return cast(BinaryIO, _Member(self._path, self.info, self.sha256, self._wheel))

    def __enter__(self) -> _Member:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._file != -1:
            os.close(self._file)
            self._file = -1

    def read(self, size: int = -1) -> bytes:
        """The next bytes, fewer than `size` at times; none at the end. Raises `DamagedArchive` when they are not the right ones."""
        if size < 0:
            return b"".join(iter(partial(self.read, _CHUNK), b""))
        if self._read == self.info.file_size:
            if self._hash.digest() != self.sha256:
                raise self._damaged("its sha256 is not the one in RECORD")
            return b""
        try:
            data = self._packed(size) if self.info.compress_type == zipfile.ZIP_STORED else self._inflated(size)
        except IsalError as error:  # type: ignore[misc]  # a class, which its stub takes for an instance
            raise self._damaged(str(error)) from None
        self._read += len(data)
        self._hash.update(data)
        if not data or self._read > self.info.file_size:
            raise self._damaged(f"it should have {self.info.file_size} bytes")
        return data

    def _inflated(self, size: int) -> bytes:
        inflate = self._inflate = self._inflate or IgzipDecompressor(flag=DECOMP_DEFLATE)
        data = b""
        while not data and not inflate.eof:
            packed = self._packed(_CHUNK) if inflate.needs_input else b""
            if not packed and inflate.needs_input:
                break
            data = inflate.decompress(packed, size)
        return data

    def _packed(self, size: int) -> bytes:
        if self._file == -1:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            head = os.pread(self._file, _LOCAL_HEADER, self.info.header_offset)
            names = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
            self._at = self.info.header_offset + _LOCAL_HEADER + names
        data = os.pread(self._file, min(size, self._left), self._at)
        self._at += len(data)
        self._left -= len(data)
        return data

    def _damaged(self, why: str) -> DamagedArchive:
        what = f"{self.info.filename} in the wheel {self._wheel} is damaged"
        return DamagedArchive(what, where=f"{self._wheel}: {self.info.filename}", why=why, hint=_AGAIN)


class _Destination(SchemeDictionaryDestination):
    """Notes what would be written. Modes are those of umask 022."""

    def __init__(self, python: str, distribution: str, wheel: str) -> None:
        super().__init__(schemes(python, distribution), INTERPRETER, "posix")
        self.files: list[InstalledFile] = []
        self._wheel = wheel

    def write_file(self, scheme: Scheme, path: str | os.PathLike[str], stream: BinaryIO, is_executable: bool) -> RecordEntry:
        if scheme == "scripts" and isinstance(stream, _Member):
            with stream.again() as start:
                placeholder = start.read(8) == b"#!python"
            if not placeholder:
                return self.write_to_fs(scheme, os.fspath(path), stream, is_executable)
            return super().write_file(scheme, path, BytesIO(stream.read()), is_executable)
        return self.write_to_fs(scheme, os.fspath(path), stream, is_executable)

    def write_script(self, name: str, module: str, attr: str, section: ScriptSection) -> RecordEntry:
        script_name, data = Script(name, module, attr, section).generate(self.interpreter, self.script_kind)
        return self.write_to_fs(Scheme("scripts"), script_name, BytesIO(data), True)

    def write_to_fs(self, scheme: Scheme, path: str, stream: BinaryIO, is_executable: bool) -> RecordEntry:
        folder = self.scheme_dict[scheme]
        place = posixpath.normpath(posixpath.join(folder, path))
        if not place.startswith(folder + "/"):
            why = f"it would be written to {place}, outside of {folder}"
            raise HostileArchive(f"the wheel {self._wheel} reaches out of its folder", where=self._wheel, why=why, hint=_DISTRUST)
        mode = 0o755 if is_executable else 0o644
        opener: Callable[[], BinaryIO]
        if isinstance(stream, _Member):
            size, digest, opener = stream.info.file_size, stream.sha256, stream.again
        else:
            data = stream.read()
            size, digest, opener = len(data), hashlib.sha256(data).digest(), partial(BytesIO, data)
        entry = Entry(place[1:], "file", mode, mtime=ASSEMBLED, size=size, open=opener)
        self.files.append(InstalledFile(entry, digest.hex()))
        return RecordEntry(path, Hash("sha256", base64.urlsafe_b64encode(digest).decode().rstrip("=")), size)
