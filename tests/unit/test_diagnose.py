"""What failing builds, containers and hosts print is told apart: whose fault, which exit status."""

from pathlib import Path

import pytest
import yaml

from envlock.diagnose import TABLE, Evidence, diagnose, diagnose_exit
from envlock.errors import Exit

CASES = Path(__file__).parents[1] / "data" / "cases"
ASKS_MORE = ("no-engine", "compat-driver-mismatch", "no-kernel-image")
DIAGNOSES = [case for case in yaml.safe_load((CASES / "diagnoses.yaml").read_text()) if case["id"] not in ASKS_MORE]


@pytest.mark.parametrize("case", DIAGNOSES, ids=lambda case: case["id"])
def test_case_is_diagnosed(case):
    found = diagnose(case["printed"])
    assert found is not None
    assert (found.id, found.fault, found.exit, found.retry) == (case["id"], case["fault"], case["exit"], case.get("retry", False))
    assert found.hint
    assert found.what


# The same kinds of fault in the words of other versions and programs.
@pytest.mark.parametrize(
    ("id_", "printed"),
    [
        ("shm-too-small", "Bus error. It is possible that dataloader's workers are out of shared memory."),
        ("shm-too-small", "RuntimeError: unable to write to file </torch_37_1834>: No space left on device (28)"),
        ("shm-too-small", "Error while creating shared memory segment /dev/shm/nccl-abc, error: No space left on device (28)"),
        ("disk-full", "OSError: [Errno 28] No space left on device: '/var/lib/x'"),
        ("disk-full", "failed to register layer: write /usr/lib/libtorch.so: disk quota exceeded"),
        ("registry-rate-limit", "toomanyrequests: You have reached your pull rate limit."),
        ("base-gone", "manifest for nvidia/cuda:11.0-base not found: manifest unknown: manifest unknown"),
        ("registry-auth", "pull access denied for foo, repository does not exist or may require 'docker login'"),
        ("apt-key", "W: GPG error: The following signatures were invalid: EXPKEYSIG F60F4B3D7FA2AF80 cudatools"),
        ("apt-mirror-sync", "E: Failed to fetch x.deb  Hash Sum mismatch"),
        ("engine-api", "client version 1.50 is too new. Maximum supported API version is 1.41"),
        ("no-gpu-runtime", 'Error response from daemon: unknown or invalid runtime name: nvidia'),
        ("cdi-unresolved", "failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=0"),
        ("driver-too-old", "CUDA driver version is insufficient for CUDA runtime version"),
        ("driver-library-mismatch", "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch"),
        ("driver-not-loaded", "nvidia-container-cli: initialization error: nvml error: driver not loaded"),
        ("driver-not-loaded", "RuntimeError: Found no NVIDIA driver on your system."),
        ("gpu-lost", "Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error"),
        ("gpu-lost", "RuntimeError: CUDA error: unspecified launch failure"),
        ("gpu-memory-error", "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
        ("gpu-out-of-memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB."),
        ("cudnn-shadowed", "cuDNN version incompatibility: PyTorch was compiled  against (8, 9, 2) but found (8, 7, 0)"),
        ("cudnn-missing", "Could not load library libcudnn_cnn_train.so.8. Error: libcudnn_cnn_train.so.8: cannot open shared object file"),
        ("cudnn-missing", "ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory"),
        ("nvjitlink-shadowed", "ImportError: libcusparse.so.12: undefined symbol: __nvJitLinkAddData_12_1, version libnvJitLink.so.12"),
        ("nccl-shadowed", "ImportError: libtorch_cuda.so: undefined symbol: ncclCommWindowRegister"),
        ("cuda-library-shadowed", "libcublas.so.12: undefined symbol: cublasLtGetEnvironmentMode, version libcublasLt.so.12"),
        ("torch-abi", "ImportError: flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi"),
        ("numpy-abi", "A module that was compiled using NumPy 1.x cannot be run in NumPy 2.1.0 as it may crash."),
        ("numpy-abi", "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, got 88"),
        ("no-kernel-image", "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation."),
        ("wrong-platform", "exec /opt/venv/bin/python: exec format error"),
        ("cpu-too-old", "Illegal instruction (core dumped)"),
    ],
)  # fmt: skip
def test_kind_is_diagnosed(id_, printed):
    found = diagnose(printed)
    assert found is not None
    assert found.id == id_


@pytest.mark.parametrize(
    "printed",
    ["", "Killed the process politely", "Successfully installed torch-2.5.1", "404 tests passed", "IndexError: list index out of range"],
)
def test_ordinary_output_is_not_diagnosed(printed):
    assert diagnose(printed) is None


def test_the_three_ways_of_no_engine_have_three_hints():
    refused = diagnose(
        "Error while fetching server API version: ('Connection aborted.', ConnectionRefusedError(111, 'Connection refused'))"
    )
    missing = diagnose(
        "Error while fetching server API version: ('Connection aborted.', FileNotFoundError(2, 'No such file or directory'))"
    )
    forbidden = diagnose("Got permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock")
    found = [diagnosis for diagnosis in (refused, missing, forbidden) if diagnosis is not None]
    assert [diagnosis.id for diagnosis in found] == ["no-engine"] * 3
    assert len({diagnosis.hint for diagnosis in found}) == 3


def test_version_numbers_are_shown_as_people_write_them():
    found = diagnose("The NVIDIA driver on your system is too old (found version 11040).")
    assert found is not None
    assert "CUDA 11.4" in found.why


@pytest.mark.parametrize(
    ("libcuda", "fault"),
    [("/usr/local/cuda-12.4/compat/libcuda.so.550.54.15", "image"), ("/usr/lib/x86_64-linux-gnu/libcuda.so.535.161.08", "host")],
)
def test_a_mismatched_libcuda_is_the_fault_of_who_brought_it(libcuda, fault):
    found = diagnose("Error 803: system has unsupported display driver / cuda driver combination", Evidence(libcuda=libcuda))
    assert found is not None
    assert (found.id, found.fault, found.exit) == ("compat-driver-mismatch", fault, Exit.DOES_NOT_HOLD)


@pytest.mark.parametrize(("gpu_is_target", "fault"), [(True, "image"), (False, "host"), (None, "image")])
def test_a_gpu_outside_the_targets_is_the_hosts_matter(gpu_is_target, fault):
    found = diagnose("CUDA error: no kernel image is available for execution on the device", Evidence(gpu_is_target=gpu_is_target))
    assert found is not None
    assert (found.fault, found.exit) == (fault, Exit.DOES_NOT_HOLD)


@pytest.mark.parametrize("status", [134, -6])
def test_a_crash_without_a_word_is_told_by_its_signal(status):
    found = diagnose_exit(status, "")
    assert found is not None
    assert (found.id, found.fault) == ("check-crashed", "image")


def test_a_killed_process_is_the_hosts_memory():
    found = diagnose_exit(137, "")
    assert found is not None
    assert (found.id, found.fault) == ("out-of-memory", "host")


def test_endless_output_is_looked_at_from_its_end():
    found = diagnose("x" * 3_000_000 + "\nno space left on device\n")
    assert found is not None
    assert found.id == "disk-full"


def test_every_row_has_what_a_reader_needs():
    for row in yaml.safe_load(TABLE.read_text()):
        assert {"id", "fault", "exit", "all", "what", "hint", "source"} <= set(row), row["id"]
