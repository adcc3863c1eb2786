"""How long the small things take that happen often: the command line's start, solving a spec, the start-up hook.

    python benchmarks/start.py [--json] [--save]

Needs torch in the Python that runs it for the last row. Medians of fresh processes; CPU time of the process where that is said.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import results

from envlock.runtime.hook import pth_line

ROOT = Path(__file__).resolve().parent.parent
RUNS = 15

SOLVE = f"""
import time
from pathlib import Path
from envlock import catalogue, stack
from envlock.spec import read_spec
spec = read_spec(Path({str(ROOT / "examples" / "cuda.yaml")!r}))
began = time.perf_counter()
stack.solve(spec, catalogue.load())
print(time.perf_counter() - began)
"""

HOOK = f"""
import time
began = time.process_time()
exec({pth_line(str(ROOT))!r})
print(time.process_time() - began)
"""

TORCH = f"""
import sys
exec({pth_line(str(ROOT))!r})
import time, torch
from envlock.runtime import hook
watch = hook.active()
for name in [name for name in sys.modules if name in ("envlock.runtime.flags", "envlock.runtime.settings", "envlock.runtime.seeds")]:
    del sys.modules[name]
began = time.process_time()
hook._ACTIONS["torch"](watch.choice, torch)
print(time.process_time() - began)
"""


def printed(code: str, runs: int) -> float:
    """Median of what a program prints, in milliseconds."""
    environment = {**os.environ, "ENVLOCK_DETERMINISM": "strict", "ENVLOCK_SEED": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    values = [float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout) for _ in range(runs)]
    return 1000 * statistics.median(values)


def wall(*command: str) -> float:
    """Median wall time of a command, in milliseconds."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, cwd=ROOT)
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="time what happens often")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--save", action="store_true", help="keep the figures for the page of docs")
    chosen = parser.parse_args()
    figures = {
        "help_ms": wall(sys.executable, "-m", "envlock", "--help"),
        "check_ms": wall(sys.executable, "-m", "envlock", "check", "examples/cuda.yaml"),
        "solve_ms": printed(SOLVE, RUNS),
        "hook_start_cpu_ms": printed(HOOK, RUNS),
        "hook_torch_cpu_ms": printed(TORCH, 5),
    }
    if chosen.save:
        results.save("start", "python benchmarks/start.py", {name: round(value, 1) for name, value in figures.items()})
    if chosen.json:
        print(json.dumps({name: round(value, 3) for name, value in figures.items()}, indent=2))
    else:
        for name, value in figures.items():
            print(f"{name:<20} {value:8.2f}")


if __name__ == "__main__":
    main()
