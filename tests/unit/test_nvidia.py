"""What the driver's tools print is understood, whole or broken."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from envlock.diagnose import diagnose
from envlock.nvidia import nvml_trouble, parse_smi_capabilities, parse_smi_list, parse_smi_xml, read_nvml, read_smi, sm_count

DATA = Path(__file__).parents[1] / "data" / "nvidia"


def smi(name, capability, status=0):
    """A stand-in for nvidia-smi that answers from recorded output."""

    def ask(*arguments):
        if arguments == ("-q", "-x"):
            return status, (DATA / f"{name}.xml").read_text()
        if arguments == ("-L",):
            return 0, (DATA / f"{name}.list").read_text()
        uuids = [gpu.uuid for gpu in parse_smi_xml((DATA / f"{name}.xml").read_text()).gpus]
        return 0, "".join(f"{uuid}, {capability}\n" for uuid in uuids)

    return ask


def test_gpus_and_driver_are_read_from_nvidia_smi():
    found = read_smi(smi("h100", "9.0"))
    assert (found.driver, found.cuda, len(found.gpus), found.source) == ("550.54.15", "12.4", 2, "nvidia-smi")
    gpu = found.gpus[1]
    assert (gpu.index, gpu.name, gpu.capability, gpu.brand) == (1, "NVIDIA H100 80GB HBM3", "9.0", "nvidia")
    assert (gpu.memory, gpu.ecc, gpu.persistence, gpu.mig, gpu.max_sm_clock) == (81559 * 2**20, True, True, False, 1980)


def test_mig_devices_are_read_with_their_profiles():
    (gpu,) = read_smi(smi("a100-mig", "8.0")).gpus
    assert gpu.mig
    assert [device.profile for device in gpu.mig_devices] == ["3g.40gb", "3g.40gb"]
    assert gpu.mig_devices[0].uuid == "MIG-11111111-aaaa-5555-bbbb-222222222222"


def test_what_a_consumer_gpu_does_not_have_is_not_known():
    (gpu,) = read_smi(smi("geforce", "8.9")).gpus
    assert (gpu.brand, gpu.ecc, gpu.persistence, gpu.mig, gpu.vbios) == ("geforce", False, None, False, None)


def test_an_old_nvidia_smi_knows_no_capability():
    assert parse_smi_capabilities('Field "compute_cap" is not a valid field to query.\n') == {}


def test_no_nvidia_smi_means_no_driver():
    found = read_smi(lambda *arguments: (127, ""))
    assert (found.driver, found.gpus, found.trouble) == (None, (), "")


@pytest.mark.parametrize("text", ["<half", "", "No devices were found"])
def test_broken_output_is_trouble_not_a_crash(text):
    assert parse_smi_xml(text).trouble


def test_a_failing_nvidia_smi_is_diagnosed():
    found = read_smi(lambda *arguments: (18, "Failed to initialize NVML: Driver/library version mismatch\n"))
    diagnosis = diagnose(found.trouble)
    assert diagnosis is not None
    assert diagnosis.id == "driver-library-mismatch"


def test_a_list_without_mig_has_no_devices():
    assert parse_smi_list("GPU 0: NVIDIA L4 (UUID: GPU-1)\n") == {"GPU-1": ()}


@pytest.mark.parametrize(
    ("capability", "cores", "count"), [("9.0", 16896, 132), ("8.0", 6912, 108), ("8.9", 16384, 128), ("7.5", 2560, 40), (None, 1, None)]
)
def test_multiprocessors_follow_from_cores(capability, cores, count):
    assert sm_count(capability, cores) == count


class NvmlError(Exception):
    def __init__(self, value=3):
        super().__init__("Not Supported")
        self.value = value


def nvml_stand_in(**answers):
    """A module with NVML's functions; what is not given answers Not Supported."""

    class Module(SimpleNamespace):
        def __getattr__(self, name):
            def refuse(*arguments):
                raise NvmlError

            return refuse

    standard = {
        "NVMLError": NvmlError,
        "NVML_CLOCK_SM": 1,
        "NVML_ERROR_LIBRARY_NOT_FOUND": 12,
        "NVML_ERROR_DRIVER_NOT_LOADED": 9,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: b"550.54.15",
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 12040,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: "NVIDIA H100 80GB HBM3",
        "nvmlDeviceGetUUID": lambda handle: "GPU-1",
    }
    return Module(**standard, **answers)


def test_nvml_gives_the_same_facts():
    nvml = nvml_stand_in(
        nvmlDeviceGetCudaComputeCapability=lambda handle: (9, 0),
        nvmlDeviceGetNumGpuCores=lambda handle: 16896,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=85520809984),
        nvmlDeviceGetBrand=lambda handle: 14,
        nvmlDeviceGetEccMode=lambda handle: [1, 1],
    )
    found = read_nvml(nvml)
    (gpu,) = found.gpus
    assert (found.driver, found.cuda) == ("550.54.15", "12.4")
    assert (gpu.capability, gpu.sm_count, gpu.brand, gpu.ecc, gpu.memory) == ("9.0", 132, "nvidia", True, 85520809984)


def test_what_nvml_does_not_support_is_not_known():
    (gpu,) = read_nvml(nvml_stand_in()).gpus
    assert (gpu.capability, gpu.sm_count, gpu.ecc, gpu.mig, gpu.persistence, gpu.vbios) == (None, None, None, False, None, None)


def test_no_driver_is_not_trouble():
    assert nvml_trouble(nvml_stand_in(), NvmlError(12)) == ""
    assert nvml_trouble(nvml_stand_in(), NvmlError(999)).startswith("Failed to initialize NVML")
