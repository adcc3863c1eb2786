"""CPU and container runtime are read as they are."""

from dataclasses import replace

import pytest

from envlock.engine import Endpoint, EngineInfo
from envlock.host import container_runtime, parse_cpuinfo, read_cpu, read_host
from envlock.nvidia import Nvidia

X86_V3 = "vendor_id : GenuineIntel\nmodel name : Intel(R) Xeon(R) CPU E5-2680 v4\nflags : cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3 avx avx2 bmi1 bmi2 f16c fma abm movbe xsave\n"  # noqa: E501
ARM = "CPU implementer : 0x41\nCPU part : 0xd40\nFeatures : fp asimd sve\n"
LOCAL = Endpoint("unix:///var/run/docker.sock", "default socket")


@pytest.mark.parametrize(
    ("drop", "level"),
    [("", "x86-64-v3"), ("avx2", "x86-64-v2"), ("fma", "x86-64-v2"), ("popcnt", "x86-64-v1")],
)
def test_instruction_set_level_is_the_highest_complete_one(drop, level):
    text = X86_V3.replace(f" {drop} ", " ") if drop else X86_V3
    assert parse_cpuinfo(text, "x86_64", 8).isa_level == level


def test_arm_processors_are_named_by_their_parts():
    cpu = parse_cpuinfo(ARM, "aarch64", 4)
    assert (cpu.vendor, cpu.model, cpu.isa_level) == ("0x41", "0xd40", "aarch64")
    assert "sve" in cpu.flags


def test_an_unreadable_cpuinfo_is_an_unknown_cpu(tmp_path):
    assert read_cpu(tmp_path / "missing").vendor == "unknown"


def test_this_host_can_be_read():
    host = read_host()
    assert host.name
    assert host.cpu.cores >= 1
    assert isinstance(host.nvidia, Nvidia)


def info(**more):
    plain = EngineInfo("26.1.3", "1.45", "overlay2", "graph", "linux/amd64", ("runc",), (), "/var/lib/docker", 8, 2**34, False)
    return replace(plain, **more)


def test_nvidia_runtime_is_seen():
    found = container_runtime(info(runtimes=("nvidia", "runc")), LOCAL)
    assert (found.nvidia_runtime, found.gives_gpus, found.remote, found.rootless, found.platform) == (
        True,
        True,
        False,
        False,
        "linux/amd64",
    )


@pytest.mark.parametrize(("spec", "gives"), [("nvidia.yaml", True), ("other.yaml", False)])
def test_cdi_specs_in_the_engines_folders_are_seen(tmp_path, spec, gives):
    (tmp_path / spec).write_text("cdiVersion: 0.5.0\n")
    assert container_runtime(info(cdi_folders=(str(tmp_path), str(tmp_path / "missing"))), LOCAL).gives_gpus is gives


@pytest.mark.parametrize(("url", "remote"), [("tcp://10.0.0.5:2376", True), ("ssh://gpu-box", True), ("unix:///run/docker.sock", False)])
def test_an_engine_elsewhere_is_remote(url, remote):
    assert container_runtime(info(), Endpoint(url, "--host")).remote is remote


def test_a_rootless_engine_is_told():
    assert container_runtime(info(rootless=True), LOCAL).rootless
