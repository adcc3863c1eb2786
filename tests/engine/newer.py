"""A second, newer Docker engine beside the host's: Debian 13's, in its own mount, network and process namespaces.

Needs root and mmdebstrap. The root is bootstrapped once into a cached folder; an engine's data lies in a folder of its own that
goes with it. Ending the starter ends every process of the engine, and its mounts with them. By hand, for benchmarks:
`python tests/engine/newer.py containerd` prints the socket and stays until it is interrupted.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

Store = Literal["overlay2", "containerd"]
SUITE = "trixie"
PACKAGES = ("docker.io", "iptables", "ca-certificates", "iproute2", "mount")
CONFIG = {
    "overlay2": {"storage-driver": "overlay2", "features": {"containerd-snapshotter": False}},
    "containerd": {"features": {"containerd-snapshotter": True}},
}

# Runs as the first process of the namespaces: $1 root of Debian 13, $2 work folder, $3 size of its data, empty for no limit.
BOOT = r"""
set -eu
root=$1 work=$2 size=$3
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mount --bind "$work" "$root/srv"
[ -z "$size" ] || mount -t tmpfs -o size="$size" tmpfs "$root/srv/data"
cd "$root"
pivot_root . mnt
umount -l /mnt
ip link set lo up
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DOCKER_RAMDISK=1 dockerd --config-file /srv/daemon.json \
  --bridge=none --iptables=false --host unix:///srv/docker.sock \
  --data-root /srv/data --exec-root /srv/exec --pidfile /srv/docker.pid
"""


def why_not() -> str | None:
    """Why this host cannot start one; None where it can."""
    if os.geteuid() != 0:
        return "a second engine needs root"
    absent = [tool for tool in ("mmdebstrap", "unshare", "setpriv", "apt-get") if shutil.which(tool) is None]
    return f"a second engine needs {', '.join(absent)}" if absent else None


def root_folder() -> Path:
    """The bootstrapped root, made when it is not there yet (about 20 s and 500 MB)."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "envlock-tests"
    folder = cache / f"engine-{SUITE}-{'-'.join(PACKAGES)}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="making-") as making:
        target = Path(making) / "root"
        command = ["mmdebstrap", "--quiet", "--mode=root", "--variant=apt", f"--include={','.join(PACKAGES)}"]
        subprocess.run([*command, '--aptopt=APT::Install-Recommends "false"', SUITE, str(target), _mirror()], check=True)
        target.rename(folder)
    return folder


def _mirror() -> str:
    """The Debian mirror that this host's apt is set up with."""
    wanted = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(COMPONENT)", "Created-By: Packages"]
    lines = subprocess.run(wanted, check=True, capture_output=True, text=True).stdout.splitlines()
    return next(uri for uri, component in (line.split() for line in lines) if component == "main" and uri.rstrip("/").endswith("/debian"))


@contextmanager
def newer_engine(store: Store, data_size: str = "") -> Iterator[str]:
    """The URL of a running engine with an empty image store; gone at the end, with its data.

    With a `data_size` (as tmpfs takes it: `48m`) its data lies in memory and may not grow beyond that.
    """
    root = root_folder()
    with tempfile.TemporaryDirectory(prefix="envlock-engine-") as work:
        Path(work, "data").mkdir()
        Path(work, "daemon.json").write_text(json.dumps(CONFIG[store]))
        with Path(work, "dockerd.log").open("wb") as log:
            # When this process dies, however it dies, so does unshare, and with it all that runs in the namespaces.
            command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child=KILL"]
            process = subprocess.Popen([*command, "sh", "-c", BOOT, "boot", str(root), work, data_size], stdout=log, stderr=log)
            try:
                wait_for_engine(Path(work, "docker.sock"), process, Path(work, "dockerd.log"))
                yield f"unix://{work}/docker.sock"
            finally:
                stop(process)


def wait_for_engine(socket: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    import docker

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if socket.exists():
            try:
                client = docker.APIClient(base_url=f"unix://{socket}", version="auto")
                client.close()
                return
            except docker.errors.DockerException:
                pass
        time.sleep(0.1)
    raise RuntimeError(f"the engine did not start:\n{log.read_text(errors='replace')[-3000:]}")


def engine_process(url: str) -> int:
    """The process id of the engine that answers at this URL: the first child of the starter that has its folder among its words."""
    work = str(Path(url.removeprefix("unix://")).parent)
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        words = entry.read_bytes().decode(errors="replace").split("\0")
        if words[0] in ("setpriv", "unshare") and work in words:
            return _children(int(entry.parent.name))[0]
    raise LookupError(f"no engine answers at {url}")


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the engine to stop; end its namespaces when it does not within half a minute."""
    try:
        for pid in _children(process.pid):
            os.kill(pid, signal.SIGTERM)
        process.wait(timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        process.kill()
        process.wait()


if __name__ == "__main__":
    with newer_engine("containerd" if sys.argv[1:] == ["containerd"] else "overlay2") as url:
        print(url, flush=True)
        signal.pause()
