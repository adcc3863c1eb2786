"""The packages of an image in the forms that package managers read: pylock.toml, a requirements file with hashes, a list for apt."""

from __future__ import annotations

import json

from envlock.artifact import layout
from envlock.lock import DebianBase, Lock, Wheel

PYTORCH_INDEX = "https://download.pytorch.org/whl"


def pylock(lock: Lock) -> bytes:
    """PEP 751's lock file. Files are named by where they lie in the artifact, so that no index is needed and any will do."""
    minor = lock.stack.python
    lines = [
        'lock-version = "1.0"',
        f'requires-python = ">={minor},<3.{int(minor.partition(".")[2]) + 1}"',
        'created-by = "envlock"',
    ]
    for wheel in lock.wheels:
        lines += [
            "",
            "[[packages]]",
            f"name = {_quoted(wheel.name)}",
            f"version = {_quoted(wheel.version)}",
            "",
            "[[packages.wheels]]",
            f"name = {_quoted(wheel.file)}",
            f"path = {_quoted(f'../{layout.CONTEXT}/wheels/{wheel.file}')}",
            f"size = {wheel.size}",
            f"hashes = {{sha256 = {_quoted(wheel.sha256)}}}",
        ]
    return ("\n".join(lines) + "\n").encode()


def requirements(lock: Lock) -> bytes:
    """A requirements file for pip's --require-hashes."""
    head = [f"# The Python packages of {lock.name}, for Python {lock.stack.python} on {lock.stack.platform}. Without network:"]
    head.append(f"#   pip install --no-deps --no-index --find-links {layout.CONTEXT}/wheels --require-hashes -r {layout.REQUIREMENTS}")
    if found := _pytorch_indexes(lock):
        head.append(f"# With it, add: --extra-index-url {found[0]}")
    rows = [f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}" for wheel in lock.wheels]
    return ("\n".join([*head, *rows]) + "\n").encode()


def apt_list(lock: Lock) -> bytes:
    """The Debian packages, one a line: name, version, architecture, sha256."""
    if isinstance(lock.base, DebianBase):
        head = f"# Debian {lock.base.suite}, as its archive was at {lock.base.snapshot}"
    else:
        head = f"# On top of {lock.base.reference}, whose own packages are in it"
    rows = sorted({f"{deb.name}={deb.version} {deb.architecture} sha256:{deb.sha256}" for deb in lock.debs})
    return ("\n".join([head, *rows]) + "\n").encode()


def _pytorch_indexes(lock: Lock) -> list[str]:
    found = {_index(wheel) for wheel in lock.wheels if wheel.index == "pytorch"}
    return sorted(found)


def _index(wheel: Wheel) -> str:
    folder = (wheel.path or "").removeprefix("whl/").rpartition("/")[0]
    return f"{PYTORCH_INDEX}/{folder}" if folder else PYTORCH_INDEX


def _quoted(text: str) -> str:
    """A TOML basic string; JSON's strings without non-ASCII escapes are such."""
    return json.dumps(text, ensure_ascii=False)
