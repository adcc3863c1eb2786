"""Damage: inputs of a lock whose bytes in the store are no longer those of their sha256, told by the names that people know them by."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from envlock.errors import DownloadDamaged, EnvlockError, Exit, Finding, Problems, exit_code_of
from envlock.lock import DebianBase, Lock, Wheel
from envlock.store import Store

_NOT_THE_INPUTS = (Exit.HOST, Exit.FILE)


def names_of(lock: Lock) -> dict[str, str]:
    """What people call each input, by its sha256 in hex: every file that a lock names, and that a build of it reads from the store."""
    names = {wheel.sha256: wheel.file for wheel in (*lock.wheels, lock.installer)}
    names |= {deb.sha256: f"{deb.name} {deb.version}" for deb in lock.debs}
    names |= {file.sha256: file.source for file in lock.files}
    names[lock.shipped.sha256] = f"the bundle of envlock {lock.shipped.envlock}"
    if isinstance(lock.base, DebianBase):
        return names
    names |= {blob.digest.removeprefix("sha256:"): f"a layer of {lock.base.reference}" for blob in lock.base.layers}
    return names | {lock.base.config_digest.removeprefix("sha256:"): f"the config of {lock.base.reference}"}


def damage_of(sha256: str, name: str, store: Store) -> Finding:
    """What is told of a damaged input."""
    hint = "remove it: it is fetched again, and what cannot be fetched is read again when the spec is locked"
    return Finding(
        DownloadDamaged.id, "error", f"{name} in the store is damaged", str(store.path(sha256)), "its sha256 is not its name", hint
    )


def require_undamaged(lock: Lock, store: Store) -> None:
    """Hash every input of a lock that is in the store. Raises `Problems` (exit 6) with all that are damaged."""
    _require(sorted(names_of(lock).items()), store)


def require_whole(wheels: Iterable[Wheel], store: Store) -> None:
    """Hash wheels: a zip's own checks see a changed content, but not a changed mode. Raises `Problems` (exit 6) with the damaged ones."""
    _require([(wheel.sha256, wheel.file) for wheel in wheels], store)


@contextmanager
def blamed_on_inputs(lock: Lock, store: Store) -> Iterator[None]:
    """Tell a failure of the block as what it comes from where an input is damaged: by name, whatever a step made of it."""
    try:
        yield
    except EnvlockError as error:
        if exit_code_of(error) not in _NOT_THE_INPUTS:
            require_undamaged(lock, store)
        raise


def _require(inputs: Iterable[tuple[str, str]], store: Store) -> None:
    damaged = [damage_of(sha256, name, store) for sha256, name in inputs if store.has(sha256) and not _is_whole(sha256, store)]
    if damaged:
        raise Problems(damaged, Exit.FILE)


def _is_whole(sha256: str, store: Store) -> bool:
    with store.path(sha256).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == sha256
