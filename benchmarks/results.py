"""Results: figures with the machine and the command that gave them, kept as JSON, and the page of docs that they make.

    python benchmarks/results.py         writes docs/benchmarks.md from benchmarks/results/*.json

`build.py` and `start.py` write a result with `--save`. No name of a machine, a user or a folder goes in.
"""

from __future__ import annotations

import json
import os
import platform
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from envlock.engine import connect

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"

HEAD = """# Benchmarks

Generated from `benchmarks/results/` by `python benchmarks/results.py`; each table names the command that gave its figures. Ratios come from
one run on one machine, whose disk was flushed before each step. Make your own: machines, disks and networks differ more than tools.
"""

TITLES = {
    "build-cuda": "Building a CUDA stack: torch 2.5.1 with CUDA 12.4, against a plain Dockerfile",
    "build-cpu": "Building a CPU stack: torch 2.13.0 and SciPy, against a plain Dockerfile",
    "start": "What happens often",
}
MEANINGS = {
    "seconds_plain": "plain Dockerfile: `pip install --require-hashes` of the same wheels on a base that is there, s",
    "ratio_cold": "`envlock build` with nothing fetched and nothing made, over plain",
    "ratio_store_filled": "after `envlock fetch`: nothing fetched, all made, base included, over plain",
    "ratio_engine_emptied": "with what an earlier build left in the store, in an emptied engine, over plain",
    "ratio_one_package": "one small package added to the lock, over plain",
    "seconds_unchanged": "nothing changed, s",
    "peak_rss_mb": "envlock's own peak memory, MB",
    "image_bytes_ratio": "bytes of the image, over plain's",
    "help_ms": "`envlock --help`, ms",
    "check_ms": "`envlock check` of the CUDA example, ms",
    "solve_ms": "solving it, ms",
    "hook_start_cpu_ms": "the start-up hook in every Python process, ms of CPU",
    "hook_torch_cpu_ms": "setting torch up when it is imported, ms of CPU",
}


def save(name: str, command: str, figures: dict[str, float]) -> None:
    """Keep a result under a name of `TITLES`."""
    record = {"command": command, "date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine(), "figures": figures}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")


def machine() -> str:
    """Cores, memory, system and engine, in a line."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    processor = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    system = platform.freedesktop_os_release()["PRETTY_NAME"]
    with connect() as engine:
        docker = f"Docker {engine.info.version}"
    cores = f"{os.cpu_count()} cores of {processor[1] if processor else 'an unknown processor'}"
    return f"{cores}, {memory:.0f} GiB, {system}, Python {platform.python_version()}, {docker}"


def page() -> str:
    """The page of all results."""
    parts = [HEAD]
    for name, title in TITLES.items():
        path = RESULTS / f"{name}.json"
        if path.exists():
            parts.append(_section(title, json.loads(path.read_text())))
    return "\n".join(parts)


def _section(title: str, record: dict[str, Any]) -> str:
    figures = record["figures"]
    rows = "".join(f"| {meaning} | {figures[name]:g} |\n" for name, meaning in MEANINGS.items() if name in figures)
    told = f"`{record['command']}`, {record['date']}, {record['machine']}"
    return f"## {title}\n\n{told}\n\n| what | figure |\n|---|---|\n{rows}"


if __name__ == "__main__":
    PAGE.write_text(page())
