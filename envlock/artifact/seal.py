"""The seal: SHA256SUMS over every file of an artifact, and the digest of that list, which stands for the whole.

Both are in the form of `sha256sum`, so that coreutils alone can check them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from envlock.artifact import layout
from envlock.artifact.targets import UNFINISHED
from envlock.progress import Progress
from envlock.store import CHUNK, write_atomically

_ROW = re.compile(r"([0-9a-f]{64})  ([^\n]+)")


def sizes(folder: Path) -> dict[str, int]:
    """Every file of an artifact by its path in it, with its size in bytes; what is only half written is none of its files."""
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(UNFINISHED))
    return dict(sorted((path.relative_to(folder).as_posix(), path.stat().st_size) for path in paths))


def hashed(folder: Path, wanted: Mapping[str, int], known: Mapping[str, str], progress: Progress) -> dict[str, str]:
    """`known` (sha256 in hex by name) filled up for the files of `wanted`, which gives each file's size in bytes."""
    sums = dict(known)
    unhashed = [name for name in wanted if name not in known]
    with progress.track("checksums", sum(wanted[name] for name in unhashed)) as advance:
        for name in unhashed:
            hasher = hashlib.sha256()
            with (folder / name).open("rb") as stream:
                while chunk := stream.read(CHUNK):
                    hasher.update(chunk)
                    advance(len(chunk))
            sums[name] = hasher.hexdigest()
    return sums


def write(folder: Path, known: Mapping[str, str], progress: Progress) -> str:
    """Write both lists; the artifact's digest. `known` has the sha256 in hex of files that were hashed while they were written."""
    names = [name for name in sizes(folder) if name not in (layout.SUMS, layout.SEAL)]
    sums = hashed(folder, {name: (folder / name).stat().st_size for name in names}, known, progress)
    text = "".join(f"{sums[name]}  {name}\n" for name in names).encode()
    digest = hashlib.sha256(text).hexdigest()
    if not (folder / layout.SUMS).is_file() or (folder / layout.SUMS).read_bytes() != text:
        write_atomically(folder / layout.SUMS, text)
    write_atomically(folder / layout.SEAL, f"{digest}  {layout.SUMS}\n".encode())
    return f"sha256:{digest}"


def read_sums(folder: Path) -> dict[str, str]:
    """Path to sha256 in hex, as the list says; empty where there is none. Lines that are none are left out."""
    path = folder / layout.SUMS
    if not path.is_file():
        return {}
    rows = (_ROW.fullmatch(line) for line in path.read_text(encoding="utf-8", errors="replace").split("\n"))
    return {row[2]: row[1] for row in rows if row}


def malformed(text: str) -> list[int]:
    """The numbers of the lines that are not of a list's form."""
    return [number for number, line in enumerate(text.removesuffix("\n").split("\n"), 1) if not _ROW.fullmatch(line)]
