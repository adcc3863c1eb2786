"""What this process computes on: the processor, the GPUs, the driver."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType


def cpu() -> dict[str, str]:
    """Vendor and model of the processor; part numbers where the kernel gives no names, as on Arm."""
    info = cpuinfo()
    return {
        "vendor": _field(info, "vendor_id") or _field(info, "CPU implementer") or "unknown",
        "model": _field(info, "model name") or _field(info, "CPU part") or "unknown",
    }


def cpuinfo() -> str:
    """The kernel's description of the processors."""
    return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")


def _field(info: str, name: str) -> str | None:
    match = re.search(rf"^{name}\s*:\s*(.+)$", info, re.MULTILINE)
    return match.group(1).strip() if match else None


def architecture() -> str:
    """The processor's architecture as container platforms name it."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def capability(torch: ModuleType) -> str:
    """The instruction set of torch's own CPU kernels: `AVX2`, `AVX512`, `DEFAULT`. Older torch tells it in its build settings."""
    try:
        return str(torch.backends.cpu.get_cpu_capability())
    except AttributeError:
        match = re.search(r"CPU capability usage: (\S+)", torch.__config__.show())
        return match.group(1) if match else "unknown"


def gpus(torch: ModuleType) -> list[dict[str, Any]]:
    """Every visible GPU: index, model, capability, sm_count, memory in bytes, MIG profile. Starts CUDA."""
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
        return smi("driver_version")
    return driver_in(text) or smi("driver_version")


def driver_in(text: str) -> str | None:
    """The version in the kernel module's own words, those of the open module too."""
    match = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", text)
    return match.group(1) if match else None


def smi(field: str) -> str | None:
    """What nvidia-smi says about a field, for the first GPU; None where it does not answer."""
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.splitlines()
    return lines[0].strip() if lines else None


def health() -> dict[str, Any] | None:
    """Counts of uncorrected memory errors by GPU, and of Xid lines in the kernel's log where it may be read; None without nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=index,ecc.errors.uncorrected.volatile.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found: dict[str, Any] = ecc_counts(done.stdout)
    try:
        log = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return found
    return {**found, "Xid lines": log.count("NVRM: Xid")}


def ecc_counts(text: str) -> dict[str, Any]:
    """Counts from nvidia-smi's lines: `0, 3`. A GPU without error correction says `[N/A]`, which stays the same."""
    rows = (line.split(",", 1) for line in text.splitlines() if "," in line)
    return {f"GPU {index.strip()} memory errors": count.strip() for index, count in rows}
