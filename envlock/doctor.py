"""Can this host run this image? Findings with remedies, before any container starts.

A finding of severity `error` means that it cannot. Facts that are not known are never held against the host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from envlock.catalogue import load
from envlock.catalogue.drivers import needs as driver_needs
from envlock.catalogue.drivers import older
from envlock.catalogue.gpus import runs_code
from envlock.catalogue.rows import numbers
from envlock.diagnose import diagnose
from envlock.errors import Finding
from envlock.host import Host
from envlock.lock import Lock
from envlock.nvidia import Gpu
from envlock.progress import human_bytes
from envlock.requirement import Requirement, requirements_of

SMALL_SHARED_MEMORY = 2**30

INSTRUCTION_SETS: dict[str, frozenset[str]] = {
    "avx": frozenset({"avx"}),
    "avx2": frozenset({"avx2", "fma"}),
    "avx512": frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma"}),
}
"""CPU flags that code for an instruction set uses. Source: compute_cpu_capability in torch's ATen/native/DispatchStub.cpp."""

FORCED_SETS: Mapping[str, Mapping[str, str]] = {
    "ATEN_CPU_CAPABILITY": {"avx2": "avx2", "avx512": "avx512"},
    "OPENBLAS_CORETYPE": {
        "sandybridge": "avx",
        "haswell": "avx2",
        "zen": "avx2",
        "skylakex": "avx512",
        "cooperlake": "avx512",
        "sapphirerapids": "avx512",
    },
}
"""Variables that make a library run code for an instruction set without asking the CPU, by value in lower case.

ONEDNN_MAX_CPU_ISA, NPY_DISABLE_CPU_FEATURES and GLIBC_TUNABLES only lower what the CPU has, and MKL_CBWR falls back by itself.
Source: OpenBLAS driver/others/dynamic.c; facts/determinism.md section 3.
"""


@dataclass(frozen=True, slots=True)
class Needs:
    """What an image asks of its host; empty where neither lock nor config says."""

    platform: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    cuda: str | None = None
    driver_floor: str | None = None
    architectures: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()


def needs_of_lock(lock: Lock) -> Needs:
    """What an image of this lock asks for."""
    stack = lock.stack
    return Needs(stack.platform, lock.environment, stack.cuda, stack.driver_floor, stack.architectures, stack.gpus)


def needs_of_image(platform: str, environment: Mapping[str, str]) -> Needs:
    """What an image that has no lock of ours asks for, by its config alone."""
    match = re.match(r"\d+\.\d+", environment.get("CUDA_VERSION", ""))
    cuda = match[0] if match else None
    driver = driver_needs(cuda, load()) if cuda else None
    return Needs(platform, environment, cuda, driver.row.floor if driver else None)


def examine(host: Host, needs: Needs | None = None) -> tuple[Finding, ...]:
    """All findings: about the host alone, and about the host against what an image needs."""
    found = [*_gpu_trouble(host), *_gpu_remarks(host), *_room(host)]
    if needs is not None:
        found += [*_platform(host, needs), *_cpu(host, needs)]
        found += [*_gpu_access(host, needs), *_driver(host, needs), *_requirements(host, needs), *_architectures(host, needs)]
    elif host.gpus_are_here:
        found += _gpu_access(host, Needs(cuda="any"))
    order = {"error": 0, "warning": 1, "info": 2}
    return tuple(sorted(found, key=lambda finding: order[finding.severity]))


def _gpu_trouble(host: Host) -> Iterator[Finding]:
    if host.nvidia.trouble:
        diagnosis = diagnose(host.nvidia.trouble)
        if diagnosis is not None:
            yield diagnosis.finding
        else:
            yield Finding(
                "driver-trouble", "error", "the NVIDIA driver's tools fail", host.name, host.nvidia.trouble[-400:], "try `nvidia-smi`"
            )


def _gpu_remarks(host: Host) -> Iterator[Finding]:
    gpus = host.nvidia.gpus
    for gpu in gpus:
        where = f"GPU {gpu.index} {gpu.name}"
        if gpu.mig and not gpu.mig_devices:
            hint = "make one with `sudo nvidia-smi mig -cgi 0 -C`, or turn MIG off with `sudo nvidia-smi -mig 0`"
            yield Finding("mig-without-devices", "error", "MIG is on and no MIG device exists, so nothing can run on it", where, hint=hint)
        if len(gpu.mig_devices) > 1:
            profiles = ", ".join(device.profile for device in gpu.mig_devices)
            why = "CUDA uses one MIG device per process; references are keyed by its profile"
            hint = f"choose it with --gpus device={gpu.mig_devices[0].uuid}"
            yield Finding("mig-devices", "info", f"{len(gpu.mig_devices)} MIG devices: {profiles}", where, why, hint)
        if gpu.ecc is False:
            yield Finding(
                "ecc-off",
                "info",
                "ECC is off, so a flipped bit in GPU memory goes unseen",
                where,
                hint="sudo nvidia-smi -e 1, then restart",
            )
        if gpu.persistence is False:
            why = "the driver is started anew for each process, which takes seconds"
            yield Finding("persistence-off", "info", "persistence mode is off", where, why, "sudo nvidia-smi -pm 1")
    if len({(gpu.name, gpu.sm_count) for gpu in gpus}) > 1:
        why = "results are only equal between GPUs of one model; fingerprints are kept apart by model"
        yield Finding(
            "mixed-gpus", "warning", "the GPUs of this host are not all of one model", host.name, why, "choose with --gpus device=N"
        )
    if host.wsl2:
        yield Finding("wsl2", "info", "this is WSL2: the Windows driver counts, and pinned memory is limited", host.name)
    if host.runtime is not None and host.runtime.remote:
        what = "the engine is on another host, whose GPUs and CPU count; what is read here describes this host"
        yield Finding("remote-engine", "info", what, host.runtime.endpoint)


def _room(host: Host) -> Iterator[Finding]:
    if host.shared_memory is not None and host.shared_memory < SMALL_SHARED_MEMORY:
        what = f"/dev/shm of this host has {human_bytes(host.shared_memory)}"
        yield Finding("shm-small", "info", what, host.name, hint="containers have their own: give it with --shm-size 8g")


def _platform(host: Host, needs: Needs) -> Iterator[Finding]:
    here = host.platform
    if needs.platform and needs.platform.split("/")[:2] != here.split("/")[:2]:
        what = f"the image is for {needs.platform}, this host is {here}"
        hint = f"set `target.platform: {here}` in the spec and build again, or use a host of the image's platform"
        yield Finding(
            "wrong-platform", "warning", what, host.name, "it needs emulation (qemu-user), under which no GPU can be reached", hint
        )


def _cpu(host: Host, needs: Needs) -> Iterator[Finding]:
    if (host.runtime is not None and host.runtime.remote) or not host.cpu.flags or host.cpu.machine != "x86_64":
        return
    for variable, sets in FORCED_SETS.items():
        value = needs.environment.get(variable, "")
        wanted = INSTRUCTION_SETS.get(sets.get(value.lower(), ""), frozenset())
        missing = sorted(wanted - host.cpu.flags)
        if missing:
            what = f"the image runs code for {sets[value.lower()]} ({variable}={value}), which this CPU does not have"
            why = f"{host.cpu.model} is {host.cpu.isa_level} and lacks {', '.join(missing)}: processes would die of an illegal instruction"
            yield Finding("cpu-too-old", "error", what, host.name, why, "use a newer host, or lock the spec with a lower value in `env`")


def describe(host: Host) -> tuple[tuple[str, str], ...]:
    """What a person sees of a host: a label and its text, line by line."""
    cpu, runtime = host.cpu, host.runtime
    rows = [
        ("host", " · ".join(part for part in (host.name, host.system, f"kernel {host.kernel}", "WSL2" if host.wsl2 else "") if part)),
        ("cpu", f"{cpu.model} · {cpu.isa_level} · {cpu.cores} cores"),
        ("memory", " · ".join(_sizes(("", host.memory), ("/dev/shm", host.shared_memory), ("disk free", host.disk_free)))),
    ]
    if runtime is not None:
        ways = [*(["NVIDIA runtime"] if runtime.nvidia_runtime else []), *(["CDI"] if runtime.cdi_devices else [])]
        kind = [*(["rootless"] if runtime.rootless else []), *(["remote"] if runtime.remote else [])]
        gives = f"GPUs by {' or '.join(ways)}" if ways else "cannot give GPUs"
        rows.append(("engine", " · ".join([runtime.version, runtime.platform, *kind, gives])))
    driver = host.nvidia.driver
    rows.append(("driver", f"{driver} · CUDA {host.nvidia.cuda or '?'} · read by {host.nvidia.source}" if driver else "none"))
    rows += [(f"gpu {gpu.index}", _gpu_text(gpu)) for gpu in host.nvidia.gpus]
    return tuple(rows)


def as_json(host: Host) -> dict[str, Any]:
    """A host as plain data."""
    return {**asdict(host), "cpu": {**asdict(host.cpu), "flags": sorted(host.cpu.flags), "isa_level": host.cpu.isa_level}}


def _sizes(*sizes: tuple[str, int | None]) -> Iterator[str]:
    for label, size in sizes:
        if size is not None:
            yield f"{label} {human_bytes(size)}".strip()


def _gpu_text(gpu: Gpu) -> str:
    switches = {"ECC": gpu.ecc, "persistence": gpu.persistence}
    parts = [gpu.name, gpu.capability and f"capability {gpu.capability}", gpu.sm_count and f"{gpu.sm_count} SMs"]
    parts += [gpu.memory and human_bytes(gpu.memory), gpu.max_sm_clock and f"SM clock {gpu.sm_clock or '?'} of {gpu.max_sm_clock} MHz"]
    parts += [f"{name} {'on' if on else 'off'}" for name, on in switches.items() if on is not None]
    parts += [f"MIG {', '.join(device.profile for device in gpu.mig_devices) or 'without devices'}" if gpu.mig else "", gpu.uuid]
    return " · ".join(str(part) for part in parts if part)


def _gpu_access(host: Host, needs: Needs) -> Iterator[Finding]:
    if not needs.cuda:
        return
    runtime = host.runtime
    if runtime is not None and runtime.remote:
        if not runtime.gives_gpus:
            yield Finding("no-gpu-runtime", "warning", "the engine names no way to give a container GPUs", runtime.endpoint, hint=_TOOLKIT)
        return
    if not host.nvidia.gpus:
        if not host.nvidia.trouble:
            what = "this host has no NVIDIA GPU that can be seen, so nothing of the image's CUDA part can run"
            yield Finding("no-gpu", "warning", what, host.name, hint="use a GPU host; CPU checks can run here with --allow-partial")
        return
    if runtime is not None and not runtime.gives_gpus:
        why = "the NVIDIA Container Toolkit is not set up for it"
        yield Finding("no-gpu-runtime", "error", "the engine cannot give this host's GPUs to a container", runtime.endpoint, why, _TOOLKIT)
    if runtime is not None and runtime.rootless and not runtime.cdi_devices:
        what = "the engine is rootless: the toolkit must be told not to touch cgroups"
        hint = "set no-cgroups = true in the toolkit's config.toml, or use CDI: `nvidia-ctk cdi generate`"
        yield Finding("rootless-gpu", "info", what, runtime.endpoint, hint=hint)


_TOOLKIT = "install it, run `sudo nvidia-ctk runtime configure --runtime=docker` and restart the engine"


def _driver(host: Host, needs: Needs) -> Iterator[Finding]:
    driver, floor = host.nvidia.driver, needs.driver_floor
    if not host.gpus_are_here or driver is None:
        return
    if floor and older(driver, floor):
        what = f"the NVIDIA driver {driver} is too old: the image needs {floor} or later"
        why = f"its CUDA is {needs.cuda}" + (f", the driver's is {host.nvidia.cuda}" if host.nvidia.cuda else "")
        yield Finding(
            "driver-too-old", "error", what, host.name, why, "update the driver, or lock a stack for it (target.driver in the spec)"
        )
    elif needs.cuda and host.nvidia.cuda and _numbers(host.nvidia.cuda) < _numbers(needs.cuda):
        what = f"the image's CUDA {needs.cuda} is newer than the driver's {host.nvidia.cuda}; minor-version compatibility carries it"
        why = "the driver cannot compile PTX of the newer version, and features new in it are missing"
        yield Finding("minor-version-window", "info", what, host.name, why, "update the driver to have all of it")


def _requirements(host: Host, needs: Needs) -> Iterator[Finding]:
    if not host.gpus_are_here:
        return
    for requirement in requirements_of(needs.environment):
        for gpu in host.nvidia.gpus:
            facts = _facts(host, gpu)
            if not requirement.met_by(facts):
                yield _unmet(requirement, facts, gpu)
                break


def _facts(host: Host, gpu: Gpu) -> dict[str, str]:
    facts = {"cuda": host.nvidia.cuda, "driver": host.nvidia.driver, "arch": gpu.capability, "brand": gpu.brand}
    return {name: value for name, value in facts.items() if value}


def _unmet(requirement: Requirement, facts: Mapping[str, str], gpu: Gpu) -> Finding:
    failing = requirement.unmet(facts)
    first = failing[0]
    what = f"the image requires {first}, this host has {first.property} {facts[first.property]} ({requirement.variable})"
    others = [alternative for alternative in requirement.alternatives if first not in alternative]
    why = "the container runtime would refuse to start it"
    if others:
        ways = "; ".join(" and ".join(str(condition) for condition in alternative) for alternative in others[:6])
        here = ", ".join(f"{name} {value}" for name, value in facts.items())
        why += f"; what would do too: {ways}{' …' if len(others) > 6 else ''}. This GPU: {here}"
    hint = "update the driver, or use an image for the CUDA version that this driver has"
    return Finding("requirement-unsatisfied", "error", what, f"GPU {gpu.index} {gpu.name}", why, hint)


def _architectures(host: Host, needs: Needs) -> Iterator[Finding]:
    if not host.gpus_are_here:
        return
    for gpu in host.nvidia.gpus:
        if gpu.capability is None:
            continue
        where = f"GPU {gpu.index} {gpu.name}"
        if needs.architectures and not runs_on(needs.architectures, gpu.capability, needs.cuda):
            what = f"torch in this image has no code for compute capability {gpu.capability}"
            why = f"it was built for {' '.join(needs.architectures)}"
            yield Finding(
                "no-kernel-image", "error", what, where, why, "lock a stack whose torch is built for this GPU: see `envlock stacks`"
            )
        elif needs.targets and f"sm_{gpu.capability.replace('.', '')}" not in needs.targets:
            what = f"this GPU (compute capability {gpu.capability}) is not among the spec's targets: {' '.join(needs.targets)}"
            yield Finding("not-a-target", "info", what, where, "torch has code for it; what fails on it is not the image's fault")


def runs_on(architectures: tuple[str, ...], capability: str, cuda: str | None) -> bool:
    """Whether code for these architectures (sm_XX, compute_XX), compiled by this CUDA, runs on a GPU of this capability.

    Machine code by the catalogue's rules; PTX is compiled by the driver for anything as new or newer.
    """
    catalogue = load()
    device = numbers(capability)
    for architecture in architectures:
        ptx = re.fullmatch(r"compute_(\d+)(\d)", architecture)
        if ptx and (int(ptx[1]), int(ptx[2])) <= device:
            return True
        if architecture.startswith("sm_") and runs_code(architecture, device, numbers(cuda or "0"), catalogue):
            return True
    return False


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
