"""What this host has: CPU, driver, GPUs, container runtime, shared memory, disk. Reading only; `doctor.py` judges."""

from __future__ import annotations

import os
import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envlock.nvidia import Nvidia, read_nvidia

if TYPE_CHECKING:
    from envlock.engine import Endpoint, EngineInfo

PLATFORMS = {"x86_64": "linux/amd64", "amd64": "linux/amd64", "aarch64": "linux/arm64", "arm64": "linux/arm64"}
"""The image platform that a machine, as `uname -m` names it, runs without emulation."""

X86_LEVELS = (
    ("x86-64-v2", ("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3")),
    ("x86-64-v3", ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave")),
    ("x86-64-v4", ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")),
)
"""Flags that each level adds, by their names in /proc/cpuinfo. Source: x86-64 psABI, table 3.1."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor. `flags` are the names in /proc/cpuinfo, `cores` what this process may use."""

    machine: str
    vendor: str
    model: str
    flags: frozenset[str]
    cores: int

    @property
    def isa_level(self) -> str:
        """x86-64-v1 to v4 by the psABI; the machine's name on other processors."""
        if self.machine != "x86_64":
            return self.machine
        level = "x86-64-v1"
        for name, flags in X86_LEVELS:
            if not self.flags.issuperset(flags):
                break
            level = name
        return level


@dataclass(frozen=True, slots=True)
class ContainerRuntime:
    """The engine and how it can hand out GPUs. `remote` means that its host is not this one."""

    endpoint: str
    version: str
    platform: str
    nvidia_runtime: bool = False
    cdi_devices: tuple[str, ...] = ()
    rootless: bool = False
    remote: bool = False

    @property
    def gives_gpus(self) -> bool:
        """Whether a container can be given a GPU at all."""
        return self.nvidia_runtime or bool(self.cdi_devices)


@dataclass(frozen=True, slots=True)
class Host:
    """One machine. Sizes in bytes; None where they cannot be read."""

    name: str
    kernel: str
    system: str
    wsl2: bool
    cpu: Cpu
    memory: int | None
    shared_memory: int | None
    disk_free: int | None
    nvidia: Nvidia
    runtime: ContainerRuntime | None = None

    @property
    def platform(self) -> str:
        """The image platform that runs on this machine (or on the engine's) without emulation."""
        return self.runtime.platform if self.runtime is not None else PLATFORMS.get(self.cpu.machine, f"linux/{self.cpu.machine}")

    @property
    def gpus_are_here(self) -> bool:
        """Whether this machine has GPUs that a container of its engine could use."""
        return bool(self.nvidia.gpus) and not (self.runtime is not None and self.runtime.remote)


def read_host(runtime: ContainerRuntime | None = None) -> Host:
    """This machine, and the engine's part in it; the disk is that of the current folder."""
    kernel = platform.release()
    return Host(
        name=platform.node(),
        kernel=kernel,
        system=_system(),
        wsl2="microsoft" in kernel.lower(),
        cpu=read_cpu(),
        memory=_memory(),
        shared_memory=_size_of("/dev/shm"),
        disk_free=_free(Path.cwd()),
        nvidia=read_nvidia(),
        runtime=runtime,
    )


def read_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> Cpu:
    """This machine's processor."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return parse_cpuinfo(
        text, platform.machine(), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )


def parse_cpuinfo(text: str, machine: str, cores: int) -> Cpu:
    """The first processor of /proc/cpuinfo, in the forms of x86 and of ARM."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, separator, value = line.partition(":")
        if separator:
            fields.setdefault(name.strip(), value.strip())
    return Cpu(
        machine=machine,
        vendor=fields.get("vendor_id") or fields.get("CPU implementer") or "unknown",
        model=fields.get("model name") or fields.get("CPU part") or "unknown",
        flags=frozenset((fields.get("flags") or fields.get("Features") or "").split()),
        cores=cores,
    )


def container_runtime(info: EngineInfo, endpoint: Endpoint) -> ContainerRuntime:
    """How an engine can hand out GPUs; on this host its CDI folders and the toolkit's hook count too.

    moby registers its `nvidia` device driver where it finds the hook on its PATH, without naming it among its runtimes.
    """
    remote = endpoint.socket is None
    specs = not remote and any(_nvidia_specs(Path(folder)) for folder in info.cdi_folders)
    hook = not remote and shutil.which("nvidia-container-runtime-hook") is not None
    return ContainerRuntime(
        endpoint=endpoint.url,
        version=info.version,
        platform=info.platform,
        nvidia_runtime="nvidia" in info.runtimes or hook,
        cdi_devices=("nvidia.com/gpu=all",) if specs else (),
        rootless=info.rootless,
        remote=remote,
    )


def _nvidia_specs(folder: Path) -> bool:
    try:
        return any(path.suffix in (".yaml", ".yml", ".json") and "nvidia" in path.name for path in folder.iterdir())
    except OSError:
        return False


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return platform.system()


def _memory() -> int | None:
    try:
        match = re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="utf-8"))
    except OSError:
        return None
    return int(match[1]) * 1024 if match else None


def _size_of(folder: str) -> int | None:
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_frsize * found.f_blocks


def _free(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
