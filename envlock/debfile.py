"""Debfile: what a .deb says about itself, read from the file alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

from envlock.errors import DownloadDamaged, ToolMissing

_MAGIC = b"!<arch>\n"
_FIRST_MEMBER = b"debian-binary   "


def date_of(path: Path) -> int:
    """When the package was built, in seconds since 1970 UTC.

    It is the time in the ar header of the first member (deb(5), ar(5)). `dpkg-deb` writes SOURCE_DATE_EPOCH there, the date
    of the changelog's newest entry, and clamps the packed files' times to it: no file in the package is newer.

    Raises `DownloadDamaged` where the file is no Debian package.
    """
    with path.open("rb") as file:
        head = file.read(len(_MAGIC) + 60)
    seconds = head[len(_MAGIC) + 16 : len(_MAGIC) + 28].strip()
    if not head.startswith(_MAGIC + _FIRST_MEMBER) or not seconds.isdigit():
        hint = "remove it, and take it from another mirror"
        raise DownloadDamaged("a file is no Debian package", where=path.name, why="it does not begin as deb(5) says", hint=hint)
    return int(seconds)


def control_of(path: Path) -> str:
    """The control paragraph of a package, ending in a newline. Raises `ToolMissing` and `DownloadDamaged`."""
    try:
        done = subprocess.run(["dpkg-deb", "--field", path], capture_output=True, text=True, encoding="utf-8", check=False)
    except FileNotFoundError:
        raise ToolMissing("dpkg-deb is not installed", hint="install Debian's package `dpkg`") from None
    if done.returncode != 0:
        why = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else ""
        raise DownloadDamaged("a Debian package cannot be read", where=path.name, why=why, hint="remove it from the store")
    return done.stdout.rstrip("\n") + "\n"
