"""Small wheels, honest and hostile, made for a test."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

from envlock.lock import Wheel


def record_row(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    return f"{name},sha256={digest},{len(content)}"


def make_wheel(
    folder: Path,
    name: str,
    files: Mapping[str, bytes | str],
    *,
    entry_points: str = "",
    purelib: bool = True,
    modes: Mapping[str, int] | None = None,
    record: str | None = None,
    extra: tuple[tuple[zipfile.ZipInfo, bytes], ...] = (),
    pack: int = zipfile.ZIP_DEFLATED,
) -> Wheel:
    """Write NAME-1-py3-none-any.whl; `extra` members are written as they are and not recorded, `record` replaces RECORD."""
    info = f"{name}-1.dist-info"
    members = {path: content.encode() if isinstance(content, str) else content for path, content in files.items()}
    members[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n".encode()
    members[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nRoot-Is-Purelib: {str(purelib).lower()}\nTag: py3-none-any\n".encode()
    if entry_points:
        members[f"{info}/entry_points.txt"] = entry_points.encode()
    rows = [record_row(path, content) for path, content in members.items()] + [f"{info}/RECORD,,"]
    members[f"{info}/RECORD"] = (record if record is not None else "\n".join(rows) + "\n").encode()
    path = folder / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", pack) as archive:
        for member, content in members.items():
            row = zipfile.ZipInfo(member, (2020, 2, 2, 0, 0, 0))
            row.external_attr = (0o100000 | (modes or {}).get(member, 0o644)) << 16
            row.compress_type = pack
            archive.writestr(row, content)
        for row, content in extra:
            archive.writestr(row, content)
    raw = path.read_bytes()
    return Wheel(name=name, version="1", file=path.name, sha256=hashlib.sha256(raw).hexdigest(), size=len(raw), index="local")
