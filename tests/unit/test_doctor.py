"""Whether a host can run an image is said before a container starts, with both numbers and a remedy."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from envlock.doctor import Needs, as_json, describe, examine, needs_of_image, runs_on
from envlock.host import ContainerRuntime, Cpu, Host
from envlock.nvidia import Gpu, MigDevice, Nvidia

CASES = {case["case"]: case for case in yaml.safe_load((Path(__file__).parents[1] / "data" / "cases" / "images.yaml").read_text())}
V3 = frozenset(
    ["cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"]
)
RUNTIME = ContainerRuntime("unix:///var/run/docker.sock", "26.1", "linux/amd64", nvidia_runtime=True)
H100 = Gpu(0, "NVIDIA H100 80GB HBM3", "GPU-1", capability="9.0", brand="nvidia", ecc=True, persistence=True)
HOST = Host(
    name="box",
    kernel="6.1.0",
    system="Debian GNU/Linux 12",
    wsl2=False,
    cpu=Cpu("x86_64", "GenuineIntel", "Xeon", V3, 8),
    memory=2**36,
    shared_memory=2**34,
    disk_free=2**40,
    nvidia=Nvidia("550.54.15", "12.4", (H100,), "nvml"),
    runtime=RUNTIME,
)
CUDA = Needs("linux/amd64", {}, "12.4", "525.60.13", ("sm_80", "sm_86", "sm_90"), ("sm_90",))


def gpu_host(**changes):
    return replace(HOST, nvidia=replace(HOST.nvidia, gpus=(replace(H100, **changes),)))


def ids(host, needs=CUDA, severity=None):
    return [finding.id for finding in examine(host, needs) if severity in (None, finding.severity)]


def test_a_fitting_host_has_nothing_to_complain_about():
    assert examine(HOST, CUDA) == ()


def test_a_driver_below_the_floor_is_told_with_both_numbers():
    host = replace(HOST, nvidia=replace(HOST.nvidia, driver="470.223.02", cuda="11.4"))
    finding = next(f for f in examine(host, CUDA) if f.id == "driver-too-old")
    assert finding.severity == "error"
    assert "470.223.02" in finding.what
    assert "525.60.13" in finding.what


def test_a_driver_inside_the_minor_version_window_is_fine_with_a_word():
    host = replace(HOST, nvidia=replace(HOST.nvidia, driver="535.161.08", cuda="12.2"))
    assert ids(host) == ["minor-version-window"]


def test_a_foreign_image_of_a_newer_major_cuda_cannot_run():
    assert ids(HOST, needs_of_image("linux/amd64", {"CUDA_VERSION": "13.0.1"}), "error") == ["driver-too-old", "requirement-unsatisfied"]


def test_requirement_of_the_image_is_held_against_the_host():
    case = CASES["require-cuda-against-host"]
    host = replace(HOST, nvidia=Nvidia(case["host"]["driver"], case["host"]["cuda"], (replace(H100, brand=case["host"]["brand"]),)))
    finding = next(f for f in examine(host, Needs(environment=case["config_env"])) if f.id == "requirement-unsatisfied")
    assert finding.severity == "error"
    assert "12.8" in finding.what
    assert "12.4" in finding.what
    assert "brand=tesla and driver>=470 and driver<471" in finding.why


def test_a_host_of_another_brand_can_meet_the_alternative():
    environment = CASES["require-cuda-against-host"]["config_env"]
    host = replace(HOST, nvidia=Nvidia("470.223.02", "11.4", (replace(H100, brand="tesla"),)))
    assert "requirement-unsatisfied" not in ids(host, Needs(environment=environment))


@pytest.mark.parametrize(("variable", "value"), [("ATEN_CPU_CAPABILITY", "avx2"), ("OPENBLAS_CORETYPE", "Haswell")])
def test_a_cpu_below_the_images_instruction_set_is_refused(variable, value):
    old = replace(HOST, cpu=replace(HOST.cpu, flags=V3 - {"avx2"}))
    needs = replace(CUDA, environment={variable: value})
    assert ids(old, needs, "error") == ["cpu-too-old"]
    assert ids(HOST, needs) == []


def test_capping_below_the_cpu_is_fine():
    assert ids(HOST, replace(CUDA, environment={"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"})) == []


def test_a_gpu_without_code_is_told():
    assert ids(gpu_host(capability="12.0"), CUDA, "error") == ["no-kernel-image"]


def test_a_gpu_outside_the_targets_is_said_and_allowed():
    assert ids(gpu_host(capability="8.6")) == ["not-a-target"]


@pytest.mark.parametrize(
    ("architectures", "capability", "runs"),
    [
        (("sm_80",), "8.6", True),
        (("sm_86",), "8.0", False),
        (("sm_90",), "10.0", False),
        (("sm_90", "compute_90"), "10.0", True),
        (("sm_90a",), "9.0", True),
        (("sm_100a",), "10.3", False),
        (("sm_100",), "10.3", True),
        (("sm_120",), "12.1", True),
    ],
)
def test_code_runs_on_a_gpu(architectures, capability, runs):
    assert runs_on(architectures, capability, "12.8") is runs


def test_no_gpu_at_all_is_a_warning():
    assert ids(replace(HOST, nvidia=Nvidia()), severity="warning") == ["no-gpu"]


def test_an_image_without_cuda_needs_no_gpu():
    assert ids(replace(HOST, nvidia=Nvidia()), Needs("linux/amd64")) == []


def test_gpus_that_the_engine_cannot_give_are_an_error():
    host = replace(HOST, runtime=replace(RUNTIME, nvidia_runtime=False))
    assert ids(host, CUDA, "error") == ["no-gpu-runtime"]


def test_a_broken_driver_is_diagnosed():
    host = replace(HOST, nvidia=Nvidia(source="nvidia-smi", trouble="Failed to initialize NVML: Driver/library version mismatch"))
    assert ids(host, CUDA, "error") == ["driver-library-mismatch"]


def test_an_image_for_another_platform_is_told():
    assert ids(HOST, replace(CUDA, platform="linux/arm64"), "warning") == ["wrong-platform"]


def test_two_mig_devices_are_named():
    host = gpu_host(mig=True, mig_devices=(MigDevice("3g.40gb", "MIG-1"), MigDevice("3g.40gb", "MIG-2")))
    finding = next(f for f in examine(host, CUDA) if f.id == "mig-devices")
    assert "3g.40gb, 3g.40gb" in finding.what


def test_mig_without_a_device_cannot_run_anything():
    assert ids(gpu_host(mig=True), CUDA, "error") == ["mig-without-devices"]


def test_gpus_of_two_models_are_told():
    host = replace(HOST, nvidia=replace(HOST.nvidia, gpus=(H100, replace(H100, index=1, name="NVIDIA A100"))))
    assert ids(host) == ["mixed-gpus"]


def test_a_remote_engine_is_not_judged_by_this_hosts_gpus():
    remote = replace(RUNTIME, endpoint="ssh://gpu-box", remote=True)
    host = replace(HOST, nvidia=Nvidia(), runtime=remote)
    assert ids(host) == ["remote-engine"]


def test_a_host_is_described_for_people():
    rows = dict(describe(gpu_host(sm_count=132, memory=85520809984, mig=True, mig_devices=(MigDevice("3g.40gb", "MIG-1"),))))
    assert rows["engine"] == "26.1 · linux/amd64 · GPUs by NVIDIA runtime"
    assert rows["driver"] == "550.54.15 · CUDA 12.4 · read by nvml"
    for part in ("capability 9.0", "132 SMs", "85.5 GB", "ECC on", "MIG 3g.40gb", "GPU-1"):
        assert part in rows["gpu 0"]
    assert dict(describe(replace(HOST, nvidia=Nvidia(), runtime=None)))["driver"] == "none"


def test_a_host_is_plain_data():
    data = json.loads(json.dumps(as_json(HOST)))
    assert data["cpu"]["isa_level"] == "x86-64-v3"
    assert data["nvidia"]["gpus"][0]["name"] == "NVIDIA H100 80GB HBM3"
    assert data["runtime"]["nvidia_runtime"]


def test_every_finding_says_what_to_do():
    host = replace(gpu_host(capability="12.0", ecc=False, persistence=False), runtime=replace(RUNTIME, nvidia_runtime=False))
    for finding in examine(host, replace(CUDA, environment={"NVIDIA_REQUIRE_CUDA": "cuda>=13"})):
        assert finding.hint, finding.id
