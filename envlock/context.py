"""The build context that a rendered Dockerfile builds from: every file in it, nothing outside of it needed."""

from __future__ import annotations

import difflib
import os
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from envlock import dockerfile
from envlock.bundle import Bundle
from envlock.damage import require_undamaged
from envlock.errors import LockStale, UsageError
from envlock.fetch import fetch_all
from envlock.image import Image, Settings, archive, make_image
from envlock.lock import DebianBase, ImageBase, Lock
from envlock.makers import STEPS, open_foundation, runtime_layer
from envlock.progress import Progress
from envlock.resolve.python import wheel_wanted
from envlock.sources import keep_files
from envlock.store import Store, write_atomically

if TYPE_CHECKING:
    from envlock.engine import Engine
    from envlock.foundation import Foundation
    from envlock.locking import ChosenLock

MARK = "envlock-context"
"""A file that tells a folder written by envlock, which may be written again, from anything else."""


UNREAD = (MARK, "SHA256SUMS", "Dockerfile", "base-image.tar")
"""What of a context no step reads; every byte of it would be sent to the engine."""


def write_context(
    chosen: ChosenLock, bundle: Bundle, store: Store, folder: Path, open_engine: Callable[[], Engine], progress: Progress
) -> None:
    """Write Dockerfile, wheels, base, scripts and SHA256SUMS below `folder`, which is new, empty or an earlier context.

    Wheels are hard links into the store where the file system allows it. Raises `UsageError` for a folder that holds other things,
    `Problems` for inputs that are damaged in the store, and what fetching and bootstrapping raise. The engine is asked for only where
    the store lacks a layer that must be made in it.
    """
    lock = chosen.lock
    _prepare(folder)
    if chosen.spec_folder is not None:
        keep_files(lock.files, chosen.spec_folder, store)
    fetch_all([wheel_wanted(wheel) for wheel in (*lock.wheels, lock.installer)], store, progress)
    require_undamaged(lock, store)
    blobs = {f"wheels/{wheel.file}": wheel.sha256 for wheel in lock.wheels}
    blobs[f"installer/{lock.installer.file}"] = lock.installer.sha256
    with open_foundation(lock, bundle, open_engine, store, progress) as foundation:
        if isinstance(lock.base, DebianBase):
            blobs["base.tar"] = _hex(foundation.base_layers[0].diff_id)
        elif lock.base.starts_as_archive:
            _write_archive(lock, foundation, folder / "base-image.tar")
        if lock.apt is not None:
            foundation.fetch_apt(lock.apt)
            blobs |= {f"debs/{PurePosixPath(deb.path).name}": deb.sha256 for deb in lock.apt.debs}
        blobs["runtime.tar"] = _hex(runtime_layer(lock, bundle, foundation, store, progress).diff_id)
    for name, sha256 in blobs.items():
        _link(store.path(sha256), folder / name)
    for name, content in texts(lock, bundle).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    sums = "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(blobs.items()))
    write_atomically(folder / "SHA256SUMS", sums.encode())


def texts(lock: Lock, bundle: Bundle) -> dict[str, bytes]:
    """The context's text files by name: the Dockerfile, the wheel lists and the scripts of the steps."""
    steps = {f"steps/{name}": content for name, content in bundle.below(STEPS).items()}
    lists = {item.list: item.content for item in dockerfile.wheel_lists(lock)}
    return {"Dockerfile": dockerfile.render(lock, bundle), **lists, **steps}


def require_current(path: Path, wanted: bytes) -> None:
    """Raises `LockStale` with the first lines that differ when a Dockerfile is not the one that its lock gives."""
    found = path.read_bytes() if path.exists() else b""
    if found == wanted:
        return
    before, after = found.decode(errors="replace").splitlines(), wanted.decode().splitlines()
    changes = [line for line in difflib.unified_diff(before, after, lineterm="", n=0) if line[:1] in "+-"][2:8]
    why = ("\n".join(changes) or "only line breaks differ") if found else "there is no such file"
    raise LockStale(f"{path} is not what its lock renders to", where=str(path), why=why, hint="write it again with `envlock render`")


def base_image(base: ImageBase, platform: str, foundation: Foundation) -> Image:
    """The base as an image that a Dockerfile can start from: its layers and its ENV."""
    return make_image(foundation.base_layers, Settings(platform, 0, base.environment, {}))


def _write_archive(lock: Lock, foundation: Foundation, path: Path) -> None:
    """The base as an archive for `docker load`, under the name that the Dockerfile starts from."""
    base = lock.base
    assert isinstance(base, ImageBase)
    with path.open("wb") as stream:
        for piece in archive(base_image(base, lock.stack.platform, foundation), (dockerfile.archive_tag(base),), foundation.open):
            stream.write(piece)


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")


def _prepare(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise UsageError(f"{folder} holds other things", why="a context must not mix with them", hint="name a new or an empty folder")
    for part in ("wheels", "installer", "lists", "steps", "debs"):
        shutil.rmtree(folder / part, ignore_errors=True)
    for name in ("base.tar", "base-image.tar"):
        (folder / name).unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).write_text("written by `envlock render`; may be written again\n")
    (folder / ".dockerignore").write_text("".join(f"{name}\n" for name in UNREAD))


def _link(blob: Path, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    try:
        os.link(blob, path)
    except OSError:
        shutil.copyfile(blob, path)
        path.chmod(0o644)
