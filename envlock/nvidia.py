"""What an NVIDIA driver says about itself and its GPUs: through NVML where its Python module is there, else from nvidia-smi's output.

Reading (`read_nvml`, `ask_smi`) and understanding (`parse_*`) are apart, so that the latter is tested on recorded output.
"""

from __future__ import annotations

import importlib
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from xml.etree import ElementTree

SMI_SECONDS = 60
"""nvidia-smi initialises every GPU without persistence mode, which takes seconds each."""

CORES_PER_SM = {5: 128, 6: 128, 7: 64, 8: 128, 9: 128, 10: 128, 11: 128, 12: 128}
"""FP32 cores of one multiprocessor by the capability's major; exceptions below. Source: cuda-samples helper_cuda.h."""
CORES_PER_SM_EXCEPTIONS = {"6.0": 64, "8.0": 64}

BRANDS = (
    *("unknown", "quadro", "tesla", "nvs", "grid", "geforce", "titan", "vapps", "vpc", "vcs", "vws", "cloudgaming"),
    *("quadrortx", "nvidiartx", "nvidia", "geforcertx", "titanrtx"),
)
"""NVML's nvmlBrandType_t by number, spelled as NVIDIA_REQUIRE_CUDA does. Source: nvml.h, libnvidia-container nvc_info.c."""


@dataclass(frozen=True, slots=True)
class MigDevice:
    """One slice of a GPU in MIG mode."""

    profile: str
    uuid: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. Memory in bytes, clocks in MHz; None is what the driver did not tell."""

    index: int
    name: str
    uuid: str
    capability: str | None = None
    sm_count: int | None = None
    memory: int | None = None
    brand: str = "unknown"
    ecc: bool | None = None
    mig: bool = False
    mig_devices: tuple[MigDevice, ...] = ()
    sm_clock: int | None = None
    max_sm_clock: int | None = None
    persistence: bool | None = None
    vbios: str | None = None


@dataclass(frozen=True, slots=True)
class Nvidia:
    """The driver and its GPUs. `trouble` is what the driver's tools printed where they failed."""

    driver: str | None = None
    cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()
    source: str = ""
    trouble: str = ""


def read_nvidia() -> Nvidia:
    """The driver of this host; all fields empty where there is none."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return read_smi(ask_smi)
    try:
        return read_nvml(nvml)
    except nvml.NVMLError as error:
        from_smi = read_smi(ask_smi)
        return from_smi if from_smi.driver or from_smi.trouble else replace(from_smi, trouble=nvml_trouble(nvml, error))


def nvml_trouble(nvml: Any, error: Exception) -> str:
    """Why NVML does not work, in nvidia-smi's words; empty where there simply is no driver."""
    absent = (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED)
    return "" if getattr(error, "value", None) in absent else f"Failed to initialize NVML: {error}"


def read_nvml(nvml: Any) -> Nvidia:
    """The driver through NVML (the `pynvml` module of nvidia-ml-py). Raises its NVMLError where NVML does not start."""

    def ask(call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except nvml.NVMLError:
            return None

    nvml.nvmlInit()
    try:
        number = ask(nvml.nvmlSystemGetCudaDriverVersion_v2)
        gpus = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = ask(nvml.nvmlDeviceGetHandleByIndex, index)
            if handle is not None:
                gpus.append(_nvml_gpu(nvml, ask, index, handle))
        cuda = f"{number // 1000}.{number % 1000 // 10}" if number else None
        return Nvidia(_text(ask(nvml.nvmlSystemGetDriverVersion)) or None, cuda, tuple(gpus), "nvml")
    finally:
        nvml.nvmlShutdown()


def _nvml_gpu(nvml: Any, ask: Callable[..., Any], index: int, handle: Any) -> Gpu:
    capability = ask(nvml.nvmlDeviceGetCudaComputeCapability, handle)
    dotted = f"{capability[0]}.{capability[1]}" if capability else None
    memory, ecc, mig = (
        ask(nvml.nvmlDeviceGetMemoryInfo, handle),
        ask(nvml.nvmlDeviceGetEccMode, handle),
        ask(nvml.nvmlDeviceGetMigMode, handle),
    )
    brand, persistence = ask(nvml.nvmlDeviceGetBrand, handle), ask(nvml.nvmlDeviceGetPersistenceMode, handle)
    return Gpu(
        index=index,
        name=_text(ask(nvml.nvmlDeviceGetName, handle)),
        uuid=_text(ask(nvml.nvmlDeviceGetUUID, handle)),
        capability=dotted,
        sm_count=sm_count(dotted, ask(nvml.nvmlDeviceGetNumGpuCores, handle)),
        memory=None if memory is None else int(memory.total),
        brand=BRANDS[brand] if brand is not None and brand < len(BRANDS) else "unknown",
        ecc=None if ecc is None else bool(ecc[0]),
        mig=bool(mig and mig[0]),
        mig_devices=tuple(_nvml_slices(nvml, ask, handle)) if mig and mig[0] else (),
        sm_clock=ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
        max_sm_clock=ask(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
        persistence=None if persistence is None else bool(persistence),
        vbios=_text(ask(nvml.nvmlDeviceGetVbiosVersion, handle)) or None,
    )


def _nvml_slices(nvml: Any, ask: Callable[..., Any], handle: Any) -> list[MigDevice]:
    slices = []
    for number in range(ask(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        device = ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
        if device is not None:
            name = _text(ask(nvml.nvmlDeviceGetName, device))
            profile = re.search(r"\d+g\.\d+gb\S*", name)
            slices.append(MigDevice(profile[0] if profile else name, _text(ask(nvml.nvmlDeviceGetUUID, device))))
    return slices


def sm_count(capability: str | None, cores: int | None) -> int | None:
    """Multiprocessors from the number of CUDA cores, which is what NVML tells."""
    if capability is None or not cores:
        return None
    per_sm = CORES_PER_SM_EXCEPTIONS.get(capability) or CORES_PER_SM.get(int(capability.split(".")[0]))
    return cores // per_sm if per_sm else None


def ask_smi(*arguments: str) -> tuple[int, str]:
    """nvidia-smi's exit status and output; 127 where it is not installed, 124 where it does not answer."""
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments], capture_output=True, text=True, errors="replace", timeout=SMI_SECONDS, check=False
        )
    except FileNotFoundError:
        return 127, ""
    except subprocess.TimeoutExpired:
        return 124, "nvidia-smi does not answer: the GPU has fallen off the bus or the driver hangs"
    except OSError as error:
        return 126, str(error)
    return done.returncode, done.stdout + done.stderr


def read_smi(ask: Callable[..., tuple[int, str]]) -> Nvidia:
    """The driver through nvidia-smi; `ask` runs it with arguments."""
    status, text = ask("-q", "-x")
    if status == 127:
        return Nvidia()
    if status != 0:
        return Nvidia(source="nvidia-smi", trouble=text.strip() or f"nvidia-smi ended with status {status}")
    found = parse_smi_xml(text)
    status, text = ask("--query-gpu=uuid,compute_cap", "--format=csv,noheader")
    capabilities = parse_smi_capabilities(text) if status == 0 else {}
    slices: dict[str, tuple[MigDevice, ...]] = {}
    if any(gpu.mig for gpu in found.gpus):
        status, text = ask("-L")
        slices = parse_smi_list(text) if status == 0 else {}
    gpus = tuple(replace(gpu, capability=capabilities.get(gpu.uuid), mig_devices=slices.get(gpu.uuid, ())) for gpu in found.gpus)
    return replace(found, gpus=gpus)


def parse_smi_xml(text: str) -> Nvidia:
    """`nvidia-smi -q -x`: everything but compute capability and MIG profiles."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return Nvidia(source="nvidia-smi", trouble="nvidia-smi printed something that is not its XML")
    gpus = []
    for index, gpu in enumerate(root.findall("gpu")):
        gpus.append(
            Gpu(
                index=index,
                name=_field(gpu, "product_name"),
                uuid=_field(gpu, "uuid"),
                memory=_mebibytes(_field(gpu, "fb_memory_usage/total")),
                brand=_field(gpu, "product_brand").lower().replace(" ", "") or "unknown",
                ecc=_switch(_field(gpu, "ecc_mode/current_ecc")),
                mig=_switch(_field(gpu, "mig_mode/current_mig")) is True,
                sm_clock=_leading_number(_field(gpu, "clocks/sm_clock")),
                max_sm_clock=_leading_number(_field(gpu, "max_clocks/sm_clock")),
                persistence=_switch(_field(gpu, "persistence_mode")),
                vbios=_field(gpu, "vbios_version") or None,
            )
        )
    cuda = _field(root, "cuda_version")
    return Nvidia(_field(root, "driver_version") or None, cuda or None, tuple(gpus), "nvidia-smi")


def parse_smi_capabilities(text: str) -> dict[str, str]:
    """`nvidia-smi --query-gpu=uuid,compute_cap --format=csv,noheader`: capability by UUID."""
    rows = (line.split(",") for line in text.splitlines())
    return {row[0].strip(): row[1].strip() for row in rows if len(row) == 2 and re.fullmatch(r"\d+\.\d+", row[1].strip())}


def parse_smi_list(text: str) -> dict[str, tuple[MigDevice, ...]]:
    """`nvidia-smi -L`: the MIG devices of each GPU, by the GPU's UUID."""
    found: dict[str, tuple[MigDevice, ...]] = {}
    parent = ""
    for line in text.splitlines():
        if gpu := re.match(r"GPU \d+: .*\(UUID: (?P<uuid>[^)]+)\)", line):
            parent = gpu["uuid"]
            found[parent] = ()
        elif parent and (part := re.match(r"\s+MIG (?P<profile>\S+)\s+Device\s+\d+: \(UUID: (?P<uuid>[^)]+)\)", line)):
            found[parent] = (*found[parent], MigDevice(part["profile"], part["uuid"]))
    return found


def _field(element: ElementTree.Element, path: str) -> str:
    text = (element.findtext(path) or "").strip()
    return "" if text in ("N/A", "[N/A]", "Not Supported", "[Not Supported]") else text


def _switch(text: str) -> bool | None:
    return {"Enabled": True, "Disabled": False}.get(text)


def _leading_number(text: str) -> int | None:
    match = re.match(r"\d+", text)
    return int(match[0]) if match else None


def _mebibytes(text: str) -> int | None:
    number = _leading_number(text)
    return None if number is None else number * 2**20


def _text(value: Any) -> str:
    """NVML's strings, which older releases of the module give as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
