"""What envlock ships inside an image: the start-up hook, the self-test, the Dockerfile's template and its scripts, as one tar.

A lock names the bundle by sha256, so that the image does not change when envlock does: another release takes the locked bundle
from the store or from an artifact, and says so when it has none.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import envlock
from envlock.errors import DownloadDamaged, FileGone
from envlock.layers.canonical import ASSEMBLED
from envlock.lock import Shipped
from envlock.store import Store

PACKAGE = Path(envlock.__file__).parent
SHIPPED_PACKAGES = ("runtime", "selftest")
SUFFIXES = (".py", ".json", ".j2", ".sh", ".txt")


@dataclass(frozen=True, slots=True)
class Bundle:
    """An opened bundle: path in the bundle (`lib/envlock/…`, `templates/…`) to content."""

    files: dict[str, bytes]

    def below(self, folder: str) -> dict[str, bytes]:
        """The files below a folder of the bundle, by their path in it."""
        return {path.removeprefix(f"{folder}/"): content for path, content in self.files.items() if path.startswith(f"{folder}/")}


def templates_folder() -> Path:
    """The templates: beside the package in a checkout, inside it when installed from a wheel."""
    inside = PACKAGE / "_templates"
    return inside if inside.is_dir() else PACKAGE.parent / "templates"


@cache
def own_bundle() -> bytes:
    """The bundle of this envlock: a USTAR tar, sorted, one constant time, so that its bytes depend on the sources alone."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path, source in sorted(_sources()):
            content = source.read_bytes()
            header = tarfile.TarInfo(path)
            header.size, header.mode, header.mtime = len(content), 0o644, ASSEMBLED
            tar.addfile(header, io.BytesIO(content))
    return buffer.getvalue()


def own_shipped() -> Shipped:
    """How a lock names the bundle of this envlock."""
    raw = own_bundle()
    return Shipped(envlock=envlock.__version__, sha256=hashlib.sha256(raw).hexdigest(), size=len(raw))


def open_bundle(shipped: Shipped, store: Store) -> Bundle:
    """The bundle that a lock names. Raises `FileGone` where neither this envlock nor the store has it, `DownloadDamaged` where the store's
    is another."""
    if shipped.sha256 == own_shipped().sha256:
        return read_bundle(own_bundle())
    if store.has(shipped.sha256):
        raw = store.path(shipped.sha256).read_bytes()
        if hashlib.sha256(raw).hexdigest() != shipped.sha256:
            what, where = f"the bundle of envlock {shipped.envlock} in the store is damaged", str(store.path(shipped.sha256))
            hint = "remove it, and take it out of an artifact again"
            raise DownloadDamaged(what, where=where, why="its sha256 is not its name", hint=hint)
        return read_bundle(raw)
    what = f"the lock ships the self-test of envlock {shipped.envlock}, which this envlock ({envlock.__version__}) does not have"
    hint = f"build with envlock {shipped.envlock}, from an artifact that holds it, or lock the spec again"
    raise FileGone(what, why=f"bundle sha256 {shipped.sha256[:12]}…", hint=hint)


def keep_bundle(store: Store) -> None:
    """Put this envlock's bundle into the store, so that locks made now can be built after an upgrade."""
    shipped = own_shipped()
    if not store.has(shipped.sha256):
        with store.incoming(shipped.sha256, shipped.size, "bundle") as blob:
            blob.write(own_bundle())


def read_bundle(raw: bytes) -> Bundle:
    """Open a bundle from its bytes, whose sha256 the caller has checked."""
    with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as tar:
        return Bundle({member.name: _content(tar, member) for member in tar if member.isreg()})


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = tar.extractfile(member)
    return stream.read() if stream is not None else b""


def _sources() -> Iterator[tuple[str, Path]]:
    yield "lib/envlock/__init__.py", PACKAGE / "__init__.py"
    for name in SHIPPED_PACKAGES:
        for source in (PACKAGE / name).rglob("*"):
            if source.suffix in SUFFIXES and "__pycache__" not in source.parts:
                yield f"lib/envlock/{source.relative_to(PACKAGE).as_posix()}", source
    root = templates_folder()
    for source in (root / "image").rglob("*"):
        if source.suffix in SUFFIXES and "__pycache__" not in source.parts:
            yield f"templates/{source.relative_to(root / 'image').as_posix()}", source
