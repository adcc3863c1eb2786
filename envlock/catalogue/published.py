"""Facts about published wheels, read by HTTP ranges: a few megabytes of a wheel of hundreds.

Which wheels exist is asked of uv, so that the index, mirror and certificates are those that uv is configured for. What is
measured of a torch wheel: METADATA's requirements, `torch/version.py`, and two strings in `torch/lib/libtorch_python.so`: the
answer of `torch.cuda.get_arch_list()` and the NumPy module that it imports, which tells the NumPy ABI it was compiled for.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from email.parser import BytesParser
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import requests
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from envlock.catalogue.rows import MACHINES
from envlock.errors import FetchError, NeedsCompiling, NoSolution, Unreachable
from envlock.resolve.uv import Uv

BLOCK = 256 * 1024
OLDEST_PYTHONS = ("3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13")
_ARCHITECTURES = re.compile(rb"(?:(?:sm|compute)_\d{2,3}[af]?)(?: (?:sm|compute)_\d{2,3}[af]?)*(?=\0)")
_VERSION_LINE = re.compile(r"^(\w+)(?:: [^=]*)? = '?([^'\n]*)'?$", re.MULTILINE)
_GLIBC_OF_LEGACY_TAG = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}


@dataclass(frozen=True, slots=True)
class PublishedWheel:
    """One file of an index: its address, size in bytes and upload date (ISO, empty where the index does not say)."""

    url: str
    size: int
    date: str

    @property
    def file(self) -> str:
        return unquote(urlsplit(self.url).path.rpartition("/")[2])


def _compile(requirements: str, python: str, arguments: Sequence[str]) -> str:
    """uv's answer for requirements, one a line. Raises what `Uv.compile` does."""
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder) / "asked.in"
        asked.write_text(requirements)
        return Uv.find().compile([asked, "--quiet", "--python-version", python, *arguments], os.environ)


def published_wheels(requirement: str, index_arguments: Sequence[str] = ()) -> list[PublishedWheel]:
    """All wheels of one exact requirement (`torch==2.5.1`), for the oldest Python that it allows and newer ones.

    Raises `ToolMissing` without uv, `NoSolution` where the index lacks the requirement, `Unreachable` where none answers.
    """
    refused: NoSolution | NeedsCompiling | None = None
    for python in OLDEST_PYTHONS:
        try:
            answer = _compile(requirement, python, ["--universal", "--no-deps", "--format", "pylock.toml", *index_arguments])
        except (NoSolution, NeedsCompiling) as error:
            refused = refused or error
            continue
        return [
            PublishedWheel(wheel["url"], wheel.get("size", 0), str(wheel.get("upload-time", ""))[:10])
            for package in tomllib.loads(answer)["packages"]
            for wheel in package.get("wheels", ())
        ]
    raise NoSolution(f"the index has no {requirement}", why=refused.why if refused else "")


class RangedFile(io.RawIOBase):
    """A remote file as a seekable one, each block asked for once.

    Raises `Unreachable` where the server does not answer, and `FetchError` where it refuses or cannot send ranges.
    """

    def __init__(self, url: str, session: requests.Session) -> None:
        self._url = url
        self._session = session
        self._position = 0
        self._blocks: dict[int, bytes] = {}
        self.bytes_read = 0
        self.size = self._measure()

    def _get(self, first: int, last: int) -> requests.Response:
        name = urlsplit(self._url).path.rpartition("/")[2]
        try:
            answer = self._session.get(self._url, headers={"Range": f"bytes={first}-{last}"}, timeout=60)
        except requests.RequestException as error:
            raise Unreachable(f"cannot read {name}", why=type(error).__name__) from None
        if answer.status_code != requests.codes.partial_content:
            why = f"the server answered {answer.status_code} to a ranged read"
            raise FetchError(f"cannot read {name} by ranges", why=why, hint="use an index that serves ranges")
        return answer

    def _measure(self) -> int:
        total = self._get(0, 0).headers["Content-Range"].rpartition("/")[2]
        return int(total)

    def prefetch(self, start: int, length: int) -> None:
        """Ask for all blocks of a stretch in one request."""
        first, last = start // BLOCK, (start + length - 1) // BLOCK
        if all(number in self._blocks for number in range(first, last + 1)):
            return
        data = self._get(first * BLOCK, min((last + 1) * BLOCK, self.size) - 1).content
        self.bytes_read += len(data)
        for number in range(first, last + 1):
            self._blocks[number] = data[(number - first) * BLOCK : (number - first + 1) * BLOCK]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        end = self.size if size < 0 else min(self._position + size, self.size)
        if end <= self._position:
            return b""
        self.prefetch(self._position, end - self._position)
        first = self._position // BLOCK
        joined = b"".join(self._blocks[number] for number in range(first, (end - 1) // BLOCK + 1))
        piece = joined[self._position - first * BLOCK : end - first * BLOCK]
        self._position = end
        return piece


class RangedWheel:
    """The members of a published wheel."""

    def __init__(self, wheel: PublishedWheel, session: requests.Session) -> None:
        self._raw = RangedFile(wheel.url, session)
        self._raw.prefetch(max(0, self._raw.size - 4 * 2**20), min(4 * 2**20, self._raw.size))
        self._zip = zipfile.ZipFile(self._raw)

    def member(self, suffix: str) -> bytes | None:
        """The shortest-named member that ends so, or None."""
        names = sorted((name for name in self._zip.namelist() if name.endswith(suffix)), key=len)
        if not names:
            return None
        info = self._zip.getinfo(names[0])
        self._raw.prefetch(info.header_offset, min(info.compress_size + 64 * 1024, self._raw.size - info.header_offset))
        return self._zip.read(info)

    @property
    def requirements(self) -> list[Requirement]:
        """What METADATA requires without extras."""
        metadata = BytesParser().parsebytes(self.member(".dist-info/METADATA") or b"")
        parsed = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
        return [requirement for requirement in parsed if "extra" not in str(requirement.marker or "")]


def _pin(requirements: Iterable[Requirement], *names: str) -> str | None:
    """The specifier of the first of these projects: a bare version where it is an exact pin."""
    for requirement in requirements:
        if canonicalize_name(requirement.name) in names:
            specifier = str(requirement.specifier)
            return specifier.removeprefix("==") if specifier.startswith("==") and "," not in specifier else specifier
    return None


def _tag_glibc(tag: str) -> tuple[int, int] | None:
    modern = re.fullmatch(r"manylinux_(\d+)_(\d+)_\w+", tag)
    if modern:
        return int(modern[1]), int(modern[2])
    return _GLIBC_OF_LEGACY_TAG.get(tag.partition("_")[0])


def _glibc(platform_tags: Iterable[str], library: bytes) -> str:
    """The glibc that a wheel needs: what its tag says, or the newest symbol version that its library asks for."""
    tagged = [glibc for glibc in map(_tag_glibc, platform_tags) if glibc is not None]
    symbols = [(int(match[1]), int(match[2])) for match in re.finditer(rb"GLIBC_(\d+)\.(\d+)", library)]
    return "{}.{}".format(*max([min(tagged, default=(0, 0)), *symbols]))


def _python_of(interpreter: str) -> str:
    return f"{interpreter[2]}.{interpreter[3:]}"


def _machine_requirements(requirements: Iterable[Requirement], platform: str) -> list[str]:
    """Pins of CUDA's libraries and of triton that hold on this platform, as text; markers on Python are kept."""
    kept = []
    for requirement in requirements:
        name = canonicalize_name(requirement.name)
        if not name.startswith(("nvidia-", "cuda-", "triton", "pytorch-triton")):
            continue
        environment = {"platform_system": "Linux", "sys_platform": "linux", "platform_machine": MACHINES[platform]}
        environment |= {"python_version": "3.0", "python_full_version": "3.0.0"}
        python_clause = re.search(r'python_version < "[\d.]+"', str(requirement.marker or ""))
        if requirement.marker and not requirement.marker.evaluate(environment):
            continue
        requirement.marker = Marker(python_clause[0]) if python_clause else None
        kept.append(str(requirement))
    return sorted(kept)


def torch_row(
    version: str, platform: str, wheels: Sequence[PublishedWheel], session: requests.Session, index: str = "default"
) -> dict[str, Any] | None:
    """The catalogue's row for one torch release on one platform, or None where the index has no wheel for it.

    Of several Pythons' wheels one is read: that of CPython 3.11, or of the oldest Python; of several build numbers the highest, as
    installers do. Time stamps of the run are not in it.
    """
    mine = []
    for wheel in wheels:
        _, _, build, tags = parse_wheel_filename(wheel.file)
        for tag in sorted(tags, key=str):
            plain = re.fullmatch(r"cp3\d+", tag.interpreter) and tag.abi in (tag.interpreter, tag.interpreter + "m")
            if plain and tag.platform.startswith(("manylinux", "linux")) and tag.platform.endswith(MACHINES[platform]):
                mine.append((Version(_python_of(tag.interpreter)), build, tag.platform, wheel))
    if not mine:
        return None
    mine.sort(key=lambda item: (item[0], item[1], item[3].file))
    same_python = [wheel for python, _, _, wheel in mine if python == Version("3.11")] or [mine[0][3]]
    read = same_python[-1]
    platform_tags = {tag for _, _, tag, wheel in mine if wheel.file == read.file}
    remote = RangedWheel(read, session)
    facts = dict(_VERSION_LINE.findall((remote.member("torch/version.py") or b"").decode()))
    library = remote.member("torch/lib/libtorch_python.so") or b""
    cuda = facts.get("cuda", "None")
    architectures = max((match[0].decode() for match in _ARCHITECTURES.finditer(library)), key=len, default="")
    requirements = remote.requirements
    cudnn = next((r.name for r in requirements if r.name.startswith("nvidia-cudnn")), "nvidia-cudnn")
    return {
        "torch": version,
        "platform": platform,
        "index": index,
        "variant": "cpu" if cuda == "None" else "cu" + cuda.replace(".", ""),
        "cuda": None if cuda == "None" else cuda,
        "python": [str(python) for python, _ in groupby(item[0] for item in mine)],
        "glibc": _glibc(platform_tags, library),
        "cudnn": _pin(requirements, cudnn) if cuda != "None" else None,
        "nccl": _pin(requirements, "nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13") if cuda != "None" else None,
        "triton": _pin(requirements, "triton") if _machine_requirements(requirements, platform) else None,
        "numpy_abi": 2 if b"numpy._core._multiarray_umath" in library else 1,
        "architectures": architectures.split() if cuda != "None" else [],
        "requires": _machine_requirements(requirements, platform),
        "source": read.file,
        "date": read.date,
        "how": "read: METADATA, torch/version.py, strings of torch/lib/libtorch_python.so",
    }


def torch_rows(versions: Iterable[str], index_arguments: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Rows of these releases on every platform, newest release first."""
    with requests.Session() as session:
        for version in sorted(versions, key=Version, reverse=True):
            wheels = published_wheels(f"torch=={version}", index_arguments)
            for platform in MACHINES:
                row = torch_row(version, platform, wheels, session)
                if row is not None:
                    yield row


def variant_row(version: str, variant: str, platform: str, pytorch_index: str, session: requests.Session) -> dict[str, Any] | None:
    """The row of a build that only PyTorch's own index has, measured there. `pytorch_index` is its root, above `whl`.

    Raises `Unreachable` where it does not answer, `FetchError` where it lacks the build; None where it has none for the platform.
    """
    wheels = published_wheels(f"torch=={version}+{variant}", ["--index-url", f"{pytorch_index}/whl/{variant}"])
    return torch_row(version, platform, wheels, session, index="pytorch")


def _linux_wheel(wheels: Sequence[PublishedWheel]) -> PublishedWheel | None:
    """One wheel for Linux x86_64, of CPython 3.11 where there is one."""
    mine = sorted((wheel for wheel in wheels if wheel.file.endswith(("x86_64.whl", "none-any.whl"))), key=lambda wheel: wheel.file)
    mine = [wheel for wheel in mine if "linux" in wheel.file or wheel.file.endswith("none-any.whl")]
    return next((wheel for wheel in mine if "-cp311-" in wheel.file), mine[0] if mine else None)


def newest_beside(torch: str, project: str, index_arguments: Sequence[str] = ()) -> str | None:
    """The newest release of a project that belongs to a torch, or None: its metadata allows that torch.

    Metadata of torchaudio from 2.11 on allows every torch, so that it is also held below the release after this torch: its numbers
    follow torch's. torchvision's do not.
    """
    major, minor = Version(torch).release[:2]
    bound = f"<{major}.{minor + 1}" if project == "torchaudio" else ""
    for python in ("3.11", "3.10"):
        wanted = f"torch=={torch}\n{project}{bound}\n"
        try:
            answer = _compile(
                wanted, python, ["--python-platform", "x86_64-manylinux_2_28", "--no-annotate", "--no-build", *index_arguments]
            )
        except (NoSolution, NeedsCompiling):
            continue
        if match := re.search(rf"^{project}==(\S+)", answer, re.MULTILINE):
            return match[1]
    return None


def family_row(
    torch: str, project: str, version: str, session: requests.Session, index_arguments: Sequence[str] = ()
) -> dict[str, Any] | None:
    """The row of one release of a sister project; `pinned` is read from its metadata. None without a Linux wheel."""
    wheel = _linux_wheel(published_wheels(f"{project}=={version}", index_arguments))
    if wheel is None:
        return None
    pin = next((r for r in RangedWheel(wheel, session).requirements if canonicalize_name(r.name) == "torch"), None)
    pinned = pin is not None and str(pin.specifier) == f"=={torch}"
    return {
        "torch": torch,
        "project": project,
        "version": version,
        "pinned": pinned,
        "source": wheel.file,
        "date": wheel.date,
        "how": f"read: METADATA requires {pin}" if pin else "read: METADATA does not require torch",
    }


def toolkit_row(version: str, session: requests.Session, index_arguments: Sequence[str] = ()) -> dict[str, Any] | None:
    """What one release of the cuda-toolkit metapackage pins on Linux."""
    wheel = _linux_wheel(published_wheels(f"cuda-toolkit=={version}", index_arguments))
    if wheel is None:
        return None
    metadata = BytesParser().parsebytes(RangedWheel(wheel, session).member(".dist-info/METADATA") or b"")
    pins = {}
    for line in metadata.get_all("Requires-Dist", []):
        requirement = Requirement(line)
        if requirement.specifier and "linux" in str(requirement.marker or "linux").lower():
            pins[canonicalize_name(requirement.name)] = str(requirement.specifier)
    requires = [f"{name}{specifier}" for name, specifier in sorted(pins.items())]
    return {"version": version, "requires": requires, "source": wheel.file, "date": wheel.date, "how": "read: METADATA"}
