"""What a result depended on, taken down at the time: code, image, hardware, settings, seeds, weights."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envlock.runtime import hardware
from envlock.runtime.state import image_digest, status

if TYPE_CHECKING:
    import torch

LOCK = Path("/opt/envlock/lock.json")


def snapshot(model: torch.nn.Module | None = None, *, code: Path | str = ".") -> dict[str, Any]:
    """Everything that a result depended on, as plain data to be written beside it as JSON.

    `code` is a folder in the working tree whose commit is meant. Keys: `code` {commit, dirty; None where git cannot tell}, `lock_digest`,
    `image_digest` (ENVLOCK_IMAGE_DIGEST, as `envlock run` sets it), `versions`, `hardware` {cpu, gpus, driver}, `settings` (see
    `status`), `seeds` {torch, numpy_state, python_state}, `weights` (the model's fingerprint). GPUs are listed only where CUDA has
    been started: a snapshot starts nothing.
    """
    from envlock.runtime.fingerprints import fingerprint

    return {
        "code": code_state(Path(code)),
        "lock_digest": lock_digest(),
        "image_digest": image_digest(),
        "versions": {"python": platform.python_version(), **_versions()},
        "hardware": _hardware(),
        "settings": status(),
        "seeds": _seeds(),
        "weights": None if model is None else fingerprint(model),
    }


def code_state(folder: Path) -> dict[str, Any]:
    """The commit of a working tree, and whether files that git follows, or new ones, differ from it."""
    commit = _git(folder, "rev-parse", "HEAD")
    changes = None if commit is None else _git(folder, "status", "--porcelain")
    return {"commit": commit or None, "dirty": None if changes is None else changes != ""}


def _git(folder: Path, *arguments: str) -> str | None:
    # The owner of a mounted folder is often another user; reading its state is harmless all the same.
    command = ["git", "-c", "safe.directory=*", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def lock_digest() -> str | None:
    """`sha256:…` of the image's lock; None outside an image."""
    return "sha256:" + hashlib.sha256(LOCK.read_bytes()).hexdigest() if LOCK.is_file() else None


def _versions() -> dict[str, str]:
    return {name: str(sys.modules[name].__version__) for name in ("torch", "numpy") if name in sys.modules}


def _hardware() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    started = torch is not None and torch.cuda.is_initialized()
    return {"cpu": hardware.cpu(), "gpus": hardware.gpus(torch) if torch is not None and started else [], "driver": hardware.driver()}


def _seeds() -> dict[str, Any]:
    """The seed that torch was last given, and hashes of the other generators' present states: they do not keep their seed."""
    import random

    found: dict[str, Any] = {"python_state": _hash(random.getstate())}
    if "torch" in sys.modules:
        found["torch"] = sys.modules["torch"].initial_seed()
    if "numpy.random" in sys.modules:
        _, words, *rest = sys.modules["numpy.random"].get_state()
        found["numpy_state"] = _hash((words.tolist(), rest))
    return found


def _hash(state: Any) -> str:
    return hashlib.sha256(repr(state).encode()).hexdigest()
