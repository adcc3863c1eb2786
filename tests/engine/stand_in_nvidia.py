"""A private engine with a stand-in for NVIDIA's container hook, so that GPU requests take their real way through an engine.

The hook stands for a host's answers (it lets the container start, or refuses in the real one's words), not for a GPU: none is there.
Needs root and a dockerd on this host. The engine runs in mount, network and process namespaces of its own and goes with its starter.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from envlock.engine import connect
from envlock.errors import NoEngine

BOOT = r"""
set -eu
mount --make-rprivate /
mount -t proc proc /proc
ip link set lo up 2>/dev/null || true
exec dockerd --host "unix://$1/docker.sock" --data-root "$1/data" --exec-root "$1/exec" --pidfile "$1/docker.pid" \
  --config-file "$1/daemon.json" --bridge=none --iptables=false --exec-opt native.cgroupdriver=cgroupfs
"""
HOOK = """#!/bin/sh
# What the real hook is given: a word, and the container's state on its stdin. Its folder says how to answer.
here=$(dirname "$0")
cat > "$here/asked"
if [ -s "$here/refusal" ]; then cat "$here/refusal" >&2; exit 1; fi
"""


@dataclass(frozen=True)
class NvidiaEngine:
    """Where it answers, and the hook's folder."""

    url: str
    folder: Path

    def refuse(self, words: str) -> None:
        """Let the hook refuse every container from now on; an empty text lets them start."""
        (self.folder / "refusal").write_text(words)

    @property
    def asked(self) -> bool:
        """Whether the hook was run for a container."""
        return (self.folder / "asked").exists()


def why_not() -> str | None:
    """Why this host cannot start one; None where it can."""
    if os.geteuid() != 0:
        return "a private engine needs root"
    absent = [tool for tool in ("dockerd", "unshare", "setpriv") if shutil.which(tool) is None]
    return f"a private engine needs {', '.join(absent)}" if absent else None


@contextmanager
def nvidia_engine() -> Iterator[NvidiaEngine]:
    """An engine that believes to have NVIDIA's runtime; gone at the end, with its data."""
    with tempfile.TemporaryDirectory(prefix="envlock-nvidia-") as work:
        folder = Path(work, "hook")
        folder.mkdir()
        hook = folder / "nvidia-container-runtime-hook"
        hook.write_text(HOOK)
        hook.chmod(0o755)
        Path(work, "daemon.json").write_text("{}")
        log = Path(work, "dockerd.log")
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}:/usr/sbin:/sbin"}
        with log.open("wb") as stream:
            command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child=KILL"]
            process = subprocess.Popen([*command, "sh", "-c", BOOT, "boot", work], stdout=stream, stderr=stream, env=environment)
            try:
                _wait_for(f"unix://{work}/docker.sock", process, log)
                yield NvidiaEngine(f"unix://{work}/docker.sock", folder)
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with connect(url):
                return
        except NoEngine:
            time.sleep(0.2)
    raise RuntimeError(f"the private engine did not start:\n{log.read_text(errors='replace')[-3000:]}")
