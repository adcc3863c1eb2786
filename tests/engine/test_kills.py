"""Commands killed at random moments: a plain run afterwards ends with what an undisturbed one gives, and the store holds.

By hand, with more moments: `ENVLOCK_KILLS=50 pytest tests/engine/test_kills.py`. Builds: test_build_faults.py.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tiny import Tiny, copied_store, ended, envlock, launched, left_in, result, temporaries

from envlock import lock as locks
from envlock.engine import Engine
from envlock.store import Store

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from loopback import Server
from package_index import add_pytorch, make_wheel, package_index
from test_secrets import INSTALLER, TORCH, wheel

pytestmark = pytest.mark.network

KILLS = int(os.environ.get("ENVLOCK_KILLS", "3"))
SPEC = 'name: envlock-kills-test\npython: "3.11"\nstack: {torch: "2.5.1", cuda: cpu}\npackages: [alpha]\n'


@dataclass
class Killing:
    """A command line, what it needs, and what an undisturbed run gave."""

    words: tuple[str | Path, ...]
    store: Store
    outcome: Callable[[], Any]
    env: dict[str, str] | None = None

    def survives(self, engine: Engine) -> None:
        """Kill it at random moments, then run it to its end."""
        began = time.monotonic()
        done = envlock(*self.words, env=self.env)
        assert done.returncode == 0, done.stderr
        whole, expected = time.monotonic() - began, self.outcome()
        moments = random.Random()
        seed = moments.randrange(10**6)
        moments.seed(seed)
        killed = []
        for part in range(KILLS):
            process = launched(*self.words, env=self.env)
            try:
                process.wait(timeout=0.5 + whole * (part + moments.random()) / KILLS)
            except subprocess.TimeoutExpired:
                process.kill()
            process.communicate()
            killed.append(process.pid)
        last = launched(*self.words, env=self.env)
        done = ended(last)
        assert done.returncode == 0, f"moments of seed {seed}: {done.stderr}"
        assert self.outcome() == expected, f"moments of seed {seed}"
        assert self.store.verify() == ()
        with self.store.scratch():
            assert len(left_in(self.store)) == 2  # this one and its lock
        assert temporaries(engine, [*killed, last.pid]) == []


def test_lock(tiny_session: Tiny, engine: Engine, tmp_path: Path) -> None:
    store = copied_store(tiny_session.store, tmp_path / "store", facts=False)
    (tmp_path / "spec.yaml").write_text(SPEC)
    path = tmp_path / "spec.lock.yaml"
    alpha = {**wheel("alpha"), INSTALLER: make_wheel(INSTALLER)}
    with package_index(alpha) as index:
        add_pytorch(index, "whl/cpu", {TORCH: make_wheel(TORCH)}, hashes=True)
        env = user_of(index, tmp_path)

        def outcome() -> str:
            digest = locks.read(path).lock.digest
            for blob in store.blobs():  # the next run fetches what it resolves
                if blob.stat().st_size < 5000:
                    store.discard(blob.name)
            path.unlink()
            return digest

        Killing(("lock", tmp_path / "spec.yaml", "-o", path, "--store", store.root), store, outcome, env).survives(engine)


def user_of(index: Server, folder: Path) -> dict[str, str]:
    return {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": "",
        "UV_NO_CONFIG": "1",
        "UV_DEFAULT_INDEX": f"{index.url}/simple",
        "UV_CACHE_DIR": str(folder / "uv-cache"),
        "ENVLOCK_PYTORCH_INDEX": index.url,
    }


def test_fetch(tiny_session: Tiny, engine: Engine, tmp_path: Path) -> None:
    whole = copied_store(tiny_session.store, tmp_path / "links-store")
    links = tmp_path / "links"
    links.mkdir()
    lock = tiny_session.lock
    for row in (*lock.wheels, lock.installer):
        os.link(whole.path(row.sha256), links / row.file)
    store = copied_store(tiny_session.store, tmp_path / "store")
    path = Tiny(lock, store, tmp_path / "tiny.lock.yaml").written()

    def outcome() -> list[bool]:
        has = [store.has(row.sha256, row.size) for row in lock.wheels]
        for row in (*lock.wheels, lock.installer):
            store.discard(row.sha256)
        return has

    env = {"PIP_FIND_LINKS": str(links), "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    outcome()
    Killing(("fetch", path, "--store", store.root), store, outcome, env).survives(engine)


def test_pin(tiny_built: tuple[Tiny, Any], engine: Engine, tmp_path: Path) -> None:
    tiny, _ = tiny_built
    folder = tmp_path / "artifact"
    words = ("pin", tiny.tag, "-o", folder, "--vendor", "wheels", "--compress", "zstd", "--store", tiny.store.root)

    def outcome() -> Any:
        return result(envlock("pin", folder, "--check", "--json"))["artifact_digest"]

    Killing(words, tiny.store, outcome).survives(engine)


def test_reproduce(tiny_built: tuple[Tiny, Any], engine: Engine, tmp_path: Path) -> None:
    tiny, _ = tiny_built
    store = copied_store(tiny.store, tmp_path / "store")
    words = ("reproduce", tiny.lock_path, "--store-files", "--store", store.root, "--json")

    def outcome() -> Any:
        return result(envlock(*words))["rebuilt"][0]["image_digest"]

    Killing(words, store, outcome).survives(engine)
