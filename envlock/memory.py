"""Memory: how much of it this process may still use."""

from __future__ import annotations

from pathlib import Path


def spare_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that can be had without swapping: what the kernel has available (proc(5)), or less where a control group (v2) sets a limit.

    0 where the kernel does not tell.
    """
    try:
        rows = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
        available = int(rows["MemAvailable"].split()[0]) * 1024
        group = next((line[3:].strip("/") for line in (proc / "self/cgroup").read_text().splitlines() if line.startswith("0::")), "")
    except (OSError, KeyError, ValueError):
        return 0
    folder = cgroups / group
    return int(max(0, min([available, *(_left(above) for above in (folder, *folder.parents) if above.is_relative_to(cgroups))])))


def _left(group: Path) -> float:
    try:
        return int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
    except (OSError, ValueError):  # no limit is the word "max"; the uppermost group has no such file
        return float("inf")
