"""CPU and container runtime are read as they are."""

import pytest

from envlock.host import container_runtime, parse_cpuinfo, read_cpu, read_host
from envlock.nvidia import Nvidia

X86_V3 = "vendor_id : GenuineIntel\nmodel name : Intel(R) Xeon(R) CPU E5-2680 v4\nflags : cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3 avx avx2 bmi1 bmi2 f16c fma abm movbe xsave\n"  # noqa: E501
ARM = "CPU implementer : 0x41\nCPU part : 0xd40\nFeatures : fp asimd sve\n"
SOCKET = "unix:///var/run/docker.sock"


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


def test_nvidia_runtime_is_seen(tmp_path):
    found = container_runtime({"Runtimes": {"runc": {}, "nvidia": {}}, "ServerVersion": "26.1.3", "Architecture": "x86_64"}, SOCKET)
    assert (found.nvidia_runtime, found.remote, found.rootless, found.platform) == (True, False, False, "linux/amd64")


def test_cdi_devices_are_seen_where_the_engine_lists_them():
    info = {"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=all"}, {"Source": "cdi", "ID": "vendor.com/net=x"}]}
    assert container_runtime(info, SOCKET).cdi_devices == ("nvidia.com/gpu=all",)


@pytest.mark.parametrize(("spec", "devices"), [("nvidia.yaml", ("nvidia.com/gpu=all",)), ("other.yaml", ())])
def test_cdi_specs_in_the_engines_folders_are_seen(tmp_path, spec, devices):
    (tmp_path / spec).write_text("cdiVersion: 0.5.0\n")
    assert container_runtime({"CDISpecDirs": [str(tmp_path)]}, SOCKET).cdi_devices == devices


def test_an_engine_without_cdi_does_not_get_it_from_a_folder(tmp_path):
    (tmp_path / "nvidia.yaml").write_text("cdiVersion: 0.5.0\n")
    assert container_runtime({}, SOCKET, local_folders=(tmp_path,)).cdi_devices == ()


@pytest.mark.parametrize(("endpoint", "remote"), [("tcp://10.0.0.5:2376", True), ("ssh://gpu-box", True), (SOCKET, False)])
def test_an_engine_elsewhere_is_remote(endpoint, remote):
    assert container_runtime({}, endpoint).remote is remote


def test_rootless_and_desktop_engines_are_told():
    info = {"SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless"], "OperatingSystem": "Docker Desktop"}
    found = container_runtime(info, SOCKET)
    assert (found.rootless, found.desktop) == (True, True)
