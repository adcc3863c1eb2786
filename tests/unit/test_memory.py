"""How much memory there is to spare, as kernel and control groups tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from envlock.memory import spare_memory

KIB = 1024


def host(folder: Path, available: str, group: str, limits: dict[str, tuple[str, str]]) -> tuple[Path, Path]:
    proc, cgroups = folder / "proc", folder / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal:       9000 kB\n{available}HugePages_Total:       0\n")
    (proc / "self/cgroup").write_text(group)
    for name, (most, current) in limits.items():
        (cgroups / name).mkdir(parents=True, exist_ok=True)
        (cgroups / name / "memory.max").write_text(f"{most}\n")
        (cgroups / name / "memory.current").write_text(f"{current}\n")
    return proc, cgroups


@pytest.mark.parametrize(
    ("available", "group", "limits", "spare"),
    [
        ("MemAvailable:    5000 kB\n", "0::/\n", {}, 5000 * KIB),
        ("MemAvailable:    5000 kB\n", "0::/a/b\n", {"a/b": ("max", "10")}, 5000 * KIB),
        ("MemAvailable:    5000 kB\n", "0::/a/b\n", {"a/b": ("max", "10"), "a": ("3000", "1000")}, 2000),
        ("MemAvailable:    5000 kB\n", "1:cpu:/x\n0::/a\n", {"a": ("1000", "1200")}, 0),
        ("MemAvailable:    1 kB\n", "0::/a\n", {"a": ("3000", "1000")}, KIB),
        ("", "0::/\n", {}, 0),
    ],
)
def test_spare_memory(tmp_path: Path, available: str, group: str, limits: dict[str, tuple[str, str]], spare: int) -> None:
    assert spare_memory(*host(tmp_path, available, group, limits)) == spare


def test_where_nothing_tells(tmp_path: Path) -> None:
    assert spare_memory(tmp_path, tmp_path) == 0
