"""What this host has: CPU, driver, GPUs, container runtime, shared memory, disk. Reading only; `doctor.py` judges."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envlock.nvidia import Nvidia, read_nvidia

PLATFORMS = {"x86_64": "linux/amd64", "amd64": "linux/amd64", "aarch64": "linux/arm64", "arm64": "linux/arm64"}
"""The image platform that a machine (as `uname -m` or an engine names it) runs without emulation."""

CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))

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
    machine: str
    nvidia_runtime: bool = False
    cdi_devices: tuple[str, ...] = ()
    rootless: bool = False
    remote: bool = False
    desktop: bool = False

    @property
    def gives_gpus(self) -> bool:
        """Whether a container can be given a GPU at all."""
        return self.nvidia_runtime or bool(self.cdi_devices)

    @property
    def platform(self) -> str:
        """The image platform that runs here without emulation."""
        return PLATFORMS.get(self.machine, f"linux/{self.machine}")


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
    def gpus_are_here(self) -> bool:
        """Whether this machine has GPUs that a container of its engine could use."""
        return bool(self.nvidia.gpus) and not (self.runtime is not None and self.runtime.remote)


def read_host(runtime: ContainerRuntime | None = None, store: Path | None = None) -> Host:
    """This machine, and the engine's part in it. `store` is the folder whose disk counts; the current one where it is not given."""
    kernel = platform.release()
    return Host(
        name=platform.node(),
        kernel=kernel,
        system=_system(),
        wsl2="microsoft" in kernel.lower(),
        cpu=read_cpu(),
        memory=_memory(),
        shared_memory=_size_of("/dev/shm"),
        disk_free=_free(store or Path.cwd()),
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


def container_runtime(info: Mapping[str, Any], endpoint: str, *, local_folders: tuple[Path, ...] = CDI_FOLDERS) -> ContainerRuntime:
    """What an engine's `/info` answer says about GPUs; for an engine on this host its CDI folders and the toolkit's hook count too.

    moby registers its `nvidia` device driver where it finds the hook on its PATH, without naming it in `/info`; newer engines list
    the CDI devices that they found.
    """
    remote = not endpoint.startswith("unix://")
    runtimes = info.get("Runtimes") or {}
    announced = [str(device.get("ID", "")) for device in info.get("DiscoveredDevices") or () if isinstance(device, Mapping)]
    devices = tuple(sorted(name for name in announced if name.startswith("nvidia.com/gpu")))
    folders = tuple(Path(folder) for folder in info.get("CDISpecDirs") or ()) or local_folders
    if not devices and not remote and info.get("CDISpecDirs") and any(_nvidia_specs(folder) for folder in folders):
        devices = ("nvidia.com/gpu=all",)
    hook = not remote and shutil.which("nvidia-container-runtime-hook") is not None
    options = [str(option) for option in info.get("SecurityOptions") or ()]
    return ContainerRuntime(
        endpoint=endpoint,
        version=str(info.get("ServerVersion", "")),
        machine=str(info.get("Architecture", "")),
        nvidia_runtime="nvidia" in runtimes or hook,
        cdi_devices=devices,
        rootless=any("name=rootless" in option for option in options),
        remote=remote,
        desktop="Docker Desktop" in str(info.get("OperatingSystem", "")),
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
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
