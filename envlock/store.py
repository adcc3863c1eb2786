"""The store: files of any size kept by their sha256, and small facts kept by the digest of what they depend on.

    blobs/sha256/ab/abcd…     read-only files, complete and verified: a file is here or it is not
    facts/KIND/KEY.json       small results that can be worked out again
    work/TOKEN, TOKEN.lock    what is being written; the lock is held as long as its process lives

A blob is written below `work/`, hashed on the way, brought to the disk, and renamed into place, so that no reader ever sees a
half of one, whatever is killed and however many processes write the same one. A lock that can be taken belongs to a process
that is gone (the kernel drops it, so a reused process number cannot mislead), and what it left is swept by the next writer.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envlock.errors import DiskFull, DownloadDamaged, FileUnreadable, HostNotReady
from envlock.progress import human_bytes

CHUNK = 2**20
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FACT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,150}")


@dataclass(frozen=True, slots=True)
class Damage:
    """A blob whose bytes are no longer those of its name."""

    path: Path
    sha256: str
    found: str


@dataclass(frozen=True, slots=True)
class Usage:
    """What the store holds: number of blobs, their bytes, and bytes below `work/` that are being written."""

    blobs: int
    bytes: int
    unfinished: int


class Incoming(io.BufferedWriter):
    """A blob while it is written, front to back; hashes what passes. `size` is in bytes, `sha256` in hex."""

    def __init__(self, path: Path, expected: int | None) -> None:
        super().__init__(io.FileIO(path, "w"), CHUNK)
        self.path = path
        self.size = 0
        self._expected = expected
        self._hash = hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def write(self, data: Any, /) -> int:
        with explained_when_full(self.path.parent, (self._expected or 0) - self.size):
            super().write(data)
        self._hash.update(data)
        self.size += memoryview(data).nbytes
        return memoryview(data).nbytes

    def flush(self) -> None:
        with explained_when_full(self.path.parent, (self._expected or 0) - self.size):
            super().flush()

    def seekable(self) -> bool:
        return False

    def seek(self, offset: int, whence: int = 0, /) -> int:
        raise io.UnsupportedOperation("a blob is written front to back; use restart()")

    def tell(self) -> int:
        return self.size

    def restart(self) -> None:
        """Drop everything written so far."""
        self.flush()
        os.ftruncate(self.fileno(), 0)
        super().seek(0)
        self._hash = hashlib.sha256()
        self.size = 0

    def close(self) -> None:
        if self.closed:
            return
        try:
            super().close()
        finally:
            self.raw.close()


class Store:
    """The files and facts below one folder. Safe for several threads and processes at once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._blobs = root / "blobs" / "sha256"
        self._facts = root / "facts"
        self._work = root / "work"

    @classmethod
    def default(cls, environ: Mapping[str, str] = os.environ) -> Store:
        """The store of this user: $ENVLOCK_STORE, else $XDG_CACHE_HOME/envlock, else ~/.cache/envlock."""
        if named := environ.get("ENVLOCK_STORE"):
            return cls(Path(named).expanduser().absolute())
        cache = environ.get("XDG_CACHE_HOME", "")
        return cls((Path(cache) if Path(cache).is_absolute() else Path("~/.cache").expanduser()) / "envlock")

    # blobs

    def path(self, sha256: str) -> Path:
        """Where the blob is, or would be."""
        if not _SHA256.fullmatch(sha256):
            raise ValueError(f"not a sha256 in hex: {sha256!r}")
        return self._blobs / sha256[:2] / sha256

    def has(self, sha256: str, size: int | None = None) -> bool:
        """Whether the blob is here. With `size`, a file of another size counts as absent (and is replaced when written again)."""
        try:
            found = self.path(sha256).stat().st_size
        except FileNotFoundError:
            return False
        return size is None or found == size

    def add(self, path: Path, sha256: str) -> Path:
        """Copy a file in. Raises `FileUnreadable`, or `DownloadDamaged` when it is another file than `sha256` names."""
        if self.has(sha256):
            return self.path(sha256)
        try:
            stream = path.open("rb")
        except OSError as error:
            raise FileUnreadable(f"cannot read {path}", where=str(path), why=error.strerror or str(error)) from None
        with stream, self.incoming(sha256, what=path.name) as blob:
            while chunk := stream.read(CHUNK):
                blob.write(chunk)
        return self.path(sha256)

    @contextmanager
    def incoming(self, sha256: str | None = None, size: int | None = None, what: str = "a file") -> Iterator[Incoming]:
        """A file to write; kept under its sha256 when the block ends well, gone when it does not.

        Raises `DownloadDamaged` when sha256 or size (bytes) were given and are not those of what was written, `DiskFull` when the
        space does not suffice.
        """
        with self.scratch() as folder:
            with Incoming(folder / "blob", size) as blob:
                yield blob
                blob.flush()
                _verify(blob, sha256, size, what)
                os.fchmod(blob.fileno(), 0o444)
                with explained_when_full(self.root, size or 0):
                    os.fsync(blob.fileno())
            target = self.path(blob.sha256)
            target.parent.mkdir(parents=True, exist_ok=True)
            blob.path.replace(target)
            _sync_folder(target.parent)

    def discard(self, sha256: str) -> None:
        """Remove one blob, if it is here."""
        self.path(sha256).unlink(missing_ok=True)

    def verify(self) -> tuple[Damage, ...]:
        """Hash every blob again; the damaged ones, sorted by name."""
        damaged = []
        for path in self.blobs():
            with path.open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
            if found != path.name:
                damaged.append(Damage(path, path.name, found))
        return tuple(damaged)

    def prune(self, keep: set[str]) -> int:
        """Remove all blobs but those in `keep`, and facts; the bytes freed. Raises `HostNotReady` while the store is written to."""
        with self._gate():
            if self._sweep():
                what = f"the store {self.root} is in use"
                raise HostNotReady(what, why="another envlock process is writing to it", hint="try again when it has finished")
            freed = 0
            for path in self.blobs():
                if path.name not in keep:
                    freed += path.stat().st_size
                    path.unlink()
            shutil.rmtree(self._facts, ignore_errors=True)
            return freed

    def usage(self) -> Usage:
        """What the store holds."""
        sizes = [path.stat().st_size for path in self.blobs()]
        unfinished = 0
        for path in self._work.rglob("*"):
            with suppress(FileNotFoundError):
                unfinished += path.lstat().st_size if path.is_file() else 0
        return Usage(len(sizes), sum(sizes), unfinished)

    def require_space(self, needed: int) -> None:
        """Raises `DiskFull` when fewer than `needed` bytes are free where the store is."""
        folder = self._prepared()
        if needed > shutil.disk_usage(folder).free:
            raise _full(folder, needed)

    def blobs(self) -> list[Path]:
        """Every blob, sorted by name."""
        return sorted(path for path in self._blobs.glob("??/*") if _SHA256.fullmatch(path.name))

    # work in progress

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """An empty folder on the store's filesystem, removed at the end, or swept when its process died. While one is open,
        nothing is pruned. Raises `HostNotReady` where the store cannot be written."""
        with self._gate():
            self._sweep()
            token = secrets.token_hex(8)
            folder, lock = self._work / token, self._work / f"{token}.lock"
            holder = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(holder, fcntl.LOCK_EX)
            folder.mkdir()
        try:
            yield folder
        finally:
            _remove(folder, lock)
            os.close(holder)

    @contextmanager
    def _gate(self) -> Iterator[None]:
        """One at a time may create or sweep, so that a folder is never swept between its making and its locking."""
        try:
            gate = os.open(self._prepared() / ".gate", os.O_RDWR | os.O_CREAT, 0o600)
        except PermissionError as error:
            raise self._not_ours(error) from None
        try:
            fcntl.flock(gate, fcntl.LOCK_EX)
            yield
        finally:
            os.close(gate)

    def _sweep(self) -> int:
        """Remove what dead processes left; the number of those that live."""
        alive = 0
        for lock in self._work.glob("*.lock"):
            try:
                holder = os.open(lock, os.O_RDWR)
            except FileNotFoundError:
                continue
            except PermissionError:
                alive += 1
                continue
            try:
                fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(lock.with_suffix(""), lock)
            except BlockingIOError:
                alive += 1
            finally:
                os.close(holder)
        return alive

    def _prepared(self) -> Path:
        try:
            self._work.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._not_ours(error) from None
        return self._work

    def _not_ours(self, error: OSError) -> HostNotReady:
        hint = "set ENVLOCK_STORE to a folder of yours"
        return HostNotReady(f"the store {self.root} cannot be written", why=error.strerror or str(error), hint=hint)

    # facts

    def recall(self, kind: str, key: str) -> dict[str, Any] | None:
        """The fact remembered under `kind` and `key`; None when there is none or it cannot be read."""
        try:
            value = json.loads(self._fact(kind, key).read_bytes())
        except (OSError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    def remember(self, kind: str, key: str, value: Mapping[str, Any]) -> None:
        """Keep a small fact (plain JSON data) under the digest of what it depends on. Raises `DiskFull` and `HostNotReady`."""
        raw = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False).encode()
        target = self._fact(kind, key)
        with self.scratch() as folder, explained_when_full(self.root, len(raw)):
            target.parent.mkdir(parents=True, exist_ok=True)
            (folder / "fact").write_bytes(raw)
            (folder / "fact").replace(target)

    def _fact(self, kind: str, key: str) -> Path:
        for part in (kind, key):
            if not _FACT_NAME.fullmatch(part):
                raise ValueError(f"not a name for a fact: {part!r}")
        return self._facts / kind / f"{key}.json"


def write_atomically(path: Path, content: bytes) -> None:
    """Write a small file so that a reader sees the old or the new content, never a part, whenever the writer is killed.

    Raises `DiskFull`.
    """
    with explained_when_full(path.parent, len(content)):
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            umask = os.umask(0o022)
            os.umask(umask)
            Path(name).chmod(0o666 & ~umask)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


@contextmanager
def explained_when_full(folder: Path, needed: int) -> Iterator[None]:
    """Turn the system's "no space left" into `DiskFull`, which names the folder, the bytes needed and the bytes free."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(folder, needed) from None
        raise


def _full(folder: Path, needed: int) -> DiskFull:
    free = shutil.disk_usage(folder).free
    why = f"{human_bytes(free)} are free" if needed <= 0 else f"{human_bytes(needed)} are needed and {human_bytes(free)} are free"
    hint = "free some space, or set ENVLOCK_STORE to a folder on a larger disk"
    return DiskFull(f"the disk that holds {folder} is full", where=str(folder), why=why, hint=hint)


def _verify(blob: Incoming, sha256: str | None, size: int | None, what: str) -> None:
    if size is not None and blob.size != size:
        raise DownloadDamaged(f"{what} is not complete", why=f"it has {blob.size} bytes, not {size}", hint="try again")
    if sha256 is not None and blob.sha256 != sha256:
        raise DownloadDamaged(f"{what} is not the file that was asked for", why=f"its sha256 is {blob.sha256}, not {sha256}")


def _remove(folder: Path, lock: Path) -> None:
    """Remove a work folder; its lock stays while something in it cannot be removed, so that the next sweep tries again."""
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        lock.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
