"""What is here: versions, the processor and what of it is in force, GPUs. Collected in a fresh process."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envlock.selftest import printed

if TYPE_CHECKING:
    from types import ModuleType


def collect() -> dict[str, Any]:
    """All facts of protocol.py. Where torch cannot be imported or CUDA not started, `error` or `gpu_error` says why."""
    # Read by the libraries when they are first used.
    os.environ.update(MKL_VERBOSE="1", ONEDNN_VERBOSE="1")
    found: dict[str, Any] = {"python": platform.python_version(), "platform": f"linux/{_architecture()}"}
    try:
        import torch
    except Exception as error:
        return {**found, "error": f"{type(error).__name__}: {error}", "cuda": None, "gpus": []}
    found.update(torch=str(torch.__version__), numpy=_numpy(), cuda=torch.version.cuda)
    found["cpu"] = _cpu(torch)
    found["driver"] = driver()
    found["gpus"] = []
    if torch.version.cuda is not None:
        try:
            found["gpus"] = gpus(torch)
        except Exception as error:
            found["gpu_error"] = f"{type(error).__name__}: {error}"
    return found


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def _numpy() -> str | None:
    try:
        import numpy
    except ImportError:
        return None
    return str(numpy.__version__)


def _cpu(torch: ModuleType) -> dict[str, Any]:
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    asked = ask_libraries(torch)
    return {
        "vendor": _field(info, "vendor_id") or _field(info, "CPU implementer") or "unknown",
        "model": _field(info, "model name") or _field(info, "CPU part") or "unknown",
        "isa": isa_in_force(asked, wide="avx512f" in info),
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)),
        **asked,
    }


def _field(info: str, name: str) -> str | None:
    match = re.search(rf"^{name}\s*:\s*(.+)$", info, re.MULTILINE)
    return match.group(1).strip() if match else None


def isa_in_force(asked: dict[str, Any], *, wide: bool) -> str:
    """One text for all that decides the CPU's bits. Where MKL chooses by itself, what it can choose from is part of it."""
    branch = asked["mkl"] or "none"
    if branch.startswith("AUTO"):
        branch += "-avx512" if wide else "-avx2"
    return f"aten={asked['aten']} onednn={asked['onednn'] or 'none'} mkl={branch}"


def ask_libraries(torch: ModuleType) -> dict[str, Any]:
    """What torch's own kernels, oneDNN and MKL say they use, by having them compute a little."""
    with printed.captured() as said:
        square = torch.ones(64, 64)
        square @ square
        torch.nn.functional.conv2d(torch.ones(2, 3, 32, 32), torch.ones(8, 3, 3, 3))
    return {
        "aten": capability(torch),
        "onednn": printed.onednn_isa(said.text),
        "mkl": printed.mkl_branch(said.text),
        "mkl_threads": printed.mkl_threads(said.text),
        "mkl_dynamic": printed.mkl_dynamic(said.text),
        "onednn_threads": printed.onednn_threads(said.text),
    }


def capability(torch: ModuleType) -> str:
    """The instruction set of torch's own kernels: `AVX2`, `AVX512`, `DEFAULT`. Older torch tells it in its build settings."""
    try:
        return str(torch.backends.cpu.get_cpu_capability())
    except AttributeError:
        match = re.search(r"CPU capability usage: (\S+)", torch.__config__.show())
        return match.group(1) if match else "unknown"


def gpus(torch: ModuleType) -> list[dict[str, Any]]:
    """Every visible GPU. Starts CUDA."""
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append(
            {
                "index": index,
                "model": properties.name,
                "capability": f"{properties.major}.{properties.minor}",
                "sm_count": properties.multi_processor_count,
                "memory": properties.total_memory,
                "mig": mig_profile(properties.name),
            }
        )
    return found


def mig_profile(name: str) -> str:
    """The profile in the name of a MIG device, `3g.40gb`; `none` for a whole GPU."""
    match = re.search(r"\bMIG (\S+)", name)
    return match.group(1) if match else "none"


def driver() -> str | None:
    """The NVIDIA driver's version, from its kernel module or from nvidia-smi; None without one."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return _driver_by_smi()
    match = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", text)
    return match.group(1) if match else _driver_by_smi()


def _driver_by_smi() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.split()
    return lines[0] if lines else None
