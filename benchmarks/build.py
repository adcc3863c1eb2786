"""How `envlock build` compares with a plain Dockerfile that pip-installs the same locked packages.

    python benchmarks/build.py [--small] [--json] [--save] [--work DIR] [--keep]

Everything happens in one run on one engine, each step with an engine that holds none of the image's layers unless it says so:

    plain          docker build of `FROM base`, venv, `pip install --require-hashes -r requirements.txt`
    cold           envlock build with an empty store: base and wheels are fetched, everything is made
    store filled   the same after `envlock fetch` into an empty store: nothing is fetched, everything is made
    engine emptied the same with what the cold build left in its store
    one package    the image is there, and its lock gained one small package
    unchanged      nothing changed

Ratios are wall time over that of the plain build, whose base is there beforehand. It downloads from the same index and has the
host's certificates. The default is examples/cuda.yaml (3 GB of wheels, 5.4 GB of image); `--small` takes examples/cpu.yaml.
Needs about 25 GB of disk for the former. The locks used are made new where the committed ones cannot be fetched any more.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import results

from envlock import lock as locks
from envlock.engine import Engine, connect
from envlock.foundation import debian_layer
from envlock.image import Settings, make_image
from envlock.progress import Lines, Silent
from envlock.store import Store

ROOT = Path(__file__).resolve().parent.parent
ENVLOCK = [sys.executable, "-m", "envlock"]
PLAIN_BASE = "envlock-benchmark-base:latest"
PLAIN = "envlock-benchmark-plain:latest"
EXTRA = "tqdm==4.67.1"

DOCKERFILE = f"""FROM {PLAIN_BASE}
COPY pip/ /tmp/pip/
COPY requirements.txt ca.pem /tmp/
COPY local/ /tmp/local/
ENV PIP_CERT=/tmp/ca.pem PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv --without-pip /opt/venv && /opt/venv/bin/python $(echo /tmp/pip/*.whl)/pip install /tmp/pip/*.whl
RUN /opt/venv/bin/pip install --find-links /tmp/local --require-hashes --no-deps -r /tmp/requirements.txt
"""


class Bench:
    """One run: a work folder, an engine, and what was measured."""

    def __init__(self, work: Path, spec: Path) -> None:
        self.work = work
        self.spec = work / spec.name
        shutil.copy(spec, self.spec)
        committed = ROOT / "lockfiles" / f"{spec.stem}.lock.yaml"
        self.lock = work / committed.name
        if committed.exists():
            shutil.copy(committed, self.lock)
        self.engine: Engine = connect()
        self.seconds: dict[str, float] = {}
        self.peak_rss_mb = 0.0

    def envlock(self, *arguments: str, store: Path) -> float:
        """Run one command of envlock and give its wall time in seconds."""
        os.sync()  # what an earlier step wrote is not this one's to wait for
        start = time.monotonic()
        done = subprocess.run([*ENVLOCK, *arguments, "--store", str(store)], stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"envlock {' '.join(arguments)} ended with status {done.returncode}")
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        self.peak_rss_mb = max(self.peak_rss_mb, peak)
        return time.monotonic() - start

    def measure(self, step: str, *arguments: str, store: Path) -> None:
        """Time one command as a step."""
        self.seconds[step] = self.envlock(*arguments, store=store)
        print(f"{step:<14} {self.seconds[step]:7.1f} s", file=sys.stderr, flush=True)

    def forget(self) -> None:
        """Remove from the engine every image of this run."""
        name = locks.read(self.lock).lock.name
        ours = {tag for image in self.engine.images() for tag in image.tags if tag.rpartition(":")[0] == name}
        for tag in [*ours, PLAIN, PLAIN_BASE]:
            self.engine.untag(tag)

    def make_sure_of_files(self, store: Path) -> None:
        """Fill a store and bring the lock up to this envlock; what an older lock pins is kept where it can still be had."""
        print("locking", file=sys.stderr)
        self.envlock("lock", str(self.spec), "-o", str(self.lock), store=store)

    def plain(self, store: Store) -> int:
        """Time the plain build; gives the image's size in bytes."""
        lock = locks.read(self.lock).lock
        base = debian_layer(lock.base, store, Lines())
        path = store.path(base.diff_id.removeprefix("sha256:"))
        image = make_image([base], Settings(lock.stack.platform, 0, {"PATH": lock.environment["PATH"]}, {}))
        self.engine.load(image, (PLAIN_BASE,), lambda layer: path.open("rb"), Silent())
        context = self.work / "plain"
        for name in ("pip", "local"):
            (context / name).mkdir(parents=True, exist_ok=True)
        for wheel in lock.wheels:
            if wheel.index != "default":
                shutil.copy(store.path(wheel.sha256), context / "local" / wheel.file)
        rows = "".join(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in lock.wheels)
        (context / "requirements.txt").write_text(rows)
        bundle = os.environ.get("SSL_CERT_FILE") or "/etc/ssl/certs/ca-certificates.crt"
        shutil.copy(bundle, context / "ca.pem")
        (context / "Dockerfile").write_text(DOCKERFILE)
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(context / "pip"), "pip"], check=True)
        os.sync()
        start = time.monotonic()
        command = [docker_client(), "build", "--no-cache", "--quiet", "--tag", PLAIN, str(context)]
        environment = {**os.environ, "DOCKER_BUILDKIT": "1", "DOCKER_HOST": self.engine.endpoint.url}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        self.seconds["plain"] = time.monotonic() - start
        print(f"{'plain':<14} {self.seconds['plain']:7.1f} s", file=sys.stderr, flush=True)
        found = self.engine.image(PLAIN)
        assert found is not None
        return found.size

    def run(self) -> dict[str, float]:
        """All steps; the figures by name."""
        filled, cold = self.work / "filled", self.work / "cold"
        self.make_sure_of_files(filled)
        self.forget()
        plain_bytes = self.plain(Store(filled))
        self.forget()
        shutil.rmtree(filled)

        self.measure("cold", "build", str(self.lock), store=cold)
        self.forget()
        self.measure("engine emptied", "build", str(self.lock), store=cold)
        ours = self.engine.image(f"{locks.read(self.lock).lock.name}:latest")
        assert ours is not None
        self.forget()
        shutil.rmtree(cold)

        self.envlock("fetch", str(self.lock), store=filled)
        self.measure("store filled", "build", str(self.lock), store=filled)

        grown = self.work / f"grown{self.spec.suffix}"
        grown.write_text(self.spec.read_text().replace("packages:", f'packages:\n  - "{EXTRA}"', 1))
        grown_lock = self.work / "grown.lock.yaml"
        shutil.copy(self.lock, grown_lock)
        self.envlock("lock", str(grown), "-o", str(grown_lock), store=filled)
        self.measure("one package", "build", str(grown_lock), store=filled)
        self.measure("unchanged", "build", str(grown_lock), store=filled)
        self.forget()
        plain = self.seconds["plain"]
        return {
            "ratio_cold": round(self.seconds["cold"] / plain, 3),
            "ratio_store_filled": round(self.seconds["store filled"] / plain, 3),
            "ratio_engine_emptied": round(self.seconds["engine emptied"] / plain, 3),
            "ratio_one_package": round(self.seconds["one package"] / plain, 3),
            "seconds_unchanged": round(self.seconds["unchanged"], 2),
            "seconds_plain": round(plain, 1),
            "peak_rss_mb": round(self.peak_rss_mb),
            "image_bytes_ratio": round(ours.size / plain_bytes, 3),
        }


def docker_client() -> str:
    """A Docker client that can drive BuildKit: one before 23, or a newer one with its buildx component."""
    for client in (shutil.which("docker"), "/usr/bin/docker"):
        if client and Path(client).exists():
            old = subprocess.run([client, "--version"], capture_output=True, text=True, check=True).stdout.split()[2] < "23"
            if old or subprocess.run([client, "buildx", "version"], capture_output=True, check=False).returncode == 0:
                return client
    sys.exit("no Docker client here can drive BuildKit: install Debian's docker.io, or the buildx component")


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description="compare envlock build with a plain Dockerfile")
    parser.add_argument("--small", action="store_true", help="the CPU example instead of the CUDA one")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--work", type=Path, help="work folder (default: a temporary one)")
    parser.add_argument("--keep", action="store_true", help="leave the work folder")
    parser.add_argument("--save", action="store_true", help="keep the figures for the page of docs")
    chosen = parser.parse_args()
    work = chosen.work or Path(tempfile.mkdtemp(prefix="envlock-benchmark-"))
    work.mkdir(parents=True, exist_ok=True)
    try:
        figures = Bench(work, ROOT / "examples" / ("cpu.yaml" if chosen.small else "cuda.yaml")).run()
    finally:
        if not chosen.keep:
            shutil.rmtree(work, ignore_errors=True)
    if chosen.save:
        name = "build-cpu" if chosen.small else "build-cuda"
        results.save(name, "python benchmarks/build.py" + (" --small" if chosen.small else ""), figures)
    if chosen.json:
        print(json.dumps(figures, indent=2))
    else:
        for name, value in figures.items():
            print(f"{name:<20} {value}")


if __name__ == "__main__":
    main()
