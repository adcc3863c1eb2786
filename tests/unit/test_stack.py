"""The solver's choices and refusals, by kind: input in, outcome out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from envlock import catalogue, yamlfile
from envlock.errors import Exit, Finding, Problems, exit_code_of
from envlock.spec import Spec, parse_spec
from envlock.stack import BaseFacts, Solution, describe, located_problems, solve, stack_rows

CATALOGUE = catalogue.load()
UBUNTU_CUDA = "nvidia/cuda:12.4.1-base-ubuntu22.04"


def spec_of(torch: str, **fields: Any) -> Spec:
    stack = {"torch": torch, **fields.pop("stack", {})}
    return parse_spec(yaml.safe_dump({"name": "x", "stack": stack, **fields}).encode(), "x.yaml")


def accepted(torch: str, base_facts: BaseFacts | None = None, **fields: Any) -> Solution:
    return solve(spec_of(torch, **fields), CATALOGUE, base_facts)


def refused(torch: str, **fields: Any) -> Problems:
    with pytest.raises(Problems) as error:
        solve(spec_of(torch, **fields), CATALOGUE)
    return error.value


def told(findings: tuple[Finding, ...], id_: str) -> str:
    return "\n".join(" ".join((f.what, f.why, f.hint)) for f in findings if f.id == id_)


def ids(findings: tuple[Finding, ...]) -> set[str]:
    return {finding.id for finding in findings}


# which build ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("torch", "stack", "requirement", "index_path"),
    [
        ("2.5.1", {}, "torch==2.5.1", ""),
        ("2.5.1", {"cuda": "12.4"}, "torch==2.5.1", ""),
        ("2.5.1", {"cuda": "12.4.1"}, "torch==2.5.1", ""),
        ("2.5.1", {"cuda": "12.1"}, "torch==2.5.1+cu121", "whl/cu121"),
        ("2.5.1+cu121", {}, "torch==2.5.1+cu121", "whl/cu121"),
        ("2.5.1+cu124", {}, "torch==2.5.1", ""),
        ("2.13.0", {"cuda": "cpu"}, "torch==2.13.0+cpu", "whl/cpu"),
        ("2.13.0+cpu", {}, "torch==2.13.0+cpu", "whl/cpu"),
        ("2.5", {}, "torch==2.5.1", ""),
    ],
)
def test_the_build_that_a_spec_means(torch: str, stack: dict[str, str], requirement: str, index_path: str) -> None:
    solution = accepted(torch, stack=stack)
    assert (solution.torch_requirement, solution.torch_index_path) == (requirement, index_path)
    assert not any(finding.severity == "warning" for finding in solution.findings)


def test_an_arm_cpu_wheel_of_the_default_index_serves_a_cpu_stack() -> None:
    solution = accepted("2.5.1", stack={"cuda": "cpu"}, target={"platform": "linux/arm64"})
    assert (solution.torch_requirement, solution.torch_index) == ("torch==2.5.1", "default")


def test_cuda_left_out_takes_the_build_that_serves_the_gpu() -> None:
    solution = accepted("2.7.0", target={"gpus": ["rtx5090"]})
    assert solution.torch_requirement == "torch==2.7.0+cu128"
    assert "does not serve the targets" in solution.origins["cuda"]


def test_cuda_left_out_takes_the_build_that_runs_on_the_driver() -> None:
    assert accepted("2.5.1", target={"driver": "470.86"}).stack.cuda == "11.8"


@pytest.mark.parametrize(
    ("torch", "stack", "id_", "says"),
    [
        ("2.5.1+cu121", {"cuda": "12.4"}, "torch-cuda", ["12.1", "12.4"]),
        ("2.5.1", {"cuda": "12.8"}, "torch-cuda", ["12.4", "2.7"]),
        ("2.6.1", {}, "torch-unknown", ["2.6.0", "2.7.0"]),
        ("2", {}, "torch-unknown", ["2.0.0"]),
        ("99.0.0", {}, "torch-unsupported", ["2.15.0"]),
        ("1.13.0", {}, "torch-unsupported", ["1.13.1"]),
        ("2.9.0rc1", {}, "torch-nightly", ["2.9.1"]),
        ("2.3.0a0+ebedce2", {}, "torch-nightly", ["2.3.1"]),
        ("2.5.1+rocm6.2", {}, "torch-unsupported", ["+cu121"]),
    ],
)
def test_no_such_build(torch: str, stack: dict[str, str], id_: str, says: list[str]) -> None:
    findings = refused(torch, stack=stack).findings
    assert all(words in told(findings, id_) for words in says), findings


def test_two_gpus_that_no_build_serves_together() -> None:
    findings = refused("2.5.1", target={"gpus": ["K80", "rtx5090"]}).findings
    assert "no single build serves all of these GPUs" in told(findings, "gpu-arch")


def test_two_gpus_that_another_build_serves_together() -> None:
    findings = refused("2.13.0", target={"gpus": ["v100", "rtx5090"]}).findings
    assert "torch 2.10.0 built for CUDA 12.8" in told(findings, "gpu-arch")
    assert "sm_70 (V100)" in told(findings, "gpu-arch")


@pytest.mark.parametrize(
    ("gpu", "driver", "says"),
    [("rtx5090", "550.54.15", ["R", "570.26"]), ("v100", "595.71.05", ["R580"])],
)
def test_a_driver_that_does_not_know_the_gpu(gpu: str, driver: str, says: list[str]) -> None:
    findings = refused("2.8.0", target={"gpus": [gpu], "driver": driver}).findings
    assert all(words in told(findings, "gpu-driver") for words in says)


def test_the_driver_floor_is_that_of_the_newest_gpu() -> None:
    assert accepted("2.8.0").stack.driver_floor == "525.60.13"
    assert accepted("2.8.0", target={"gpus": ["a100", "b200"]}).stack.driver_floor == "570.26"


@pytest.mark.parametrize(
    ("driver", "id_", "severity"),
    [("550.54.14", "gpu-ptx", "warning"), (None, "gpu-ptx", "warning"), ("535.104.05", "gpu-arch", "error")],
)
def test_ptx_alone_is_a_warning_and_needs_a_driver_that_compiles_it(driver: str | None, id_: str, severity: str) -> None:
    with_ptx = [replace(build, architectures=("sm_80", "compute_80")) for build in CATALOGUE.builds if build.torch == "2.5.1"]
    target = {"gpus": ["h100"], **({"driver": driver} if driver else {})}
    try:
        found = solve(spec_of("2.5.1", stack={"cuda": "12.4"}, target=target), replace(CATALOGUE, builds=tuple(with_ptx))).findings
    except Problems as error:
        found = error.findings
    assert (id_, severity) in {(finding.id, finding.severity) for finding in found}


def test_a_gpu_of_arm_hosts_on_another_platform() -> None:
    assert "linux/arm64" in told(refused("2.13.0", target={"gpus": ["gh200"]}).findings, "gpu-platform")


def test_gpus_of_a_cpu_stack() -> None:
    asked = accepted("2.13.0", stack={"cuda": "cpu"}, target={"gpus": ["a100"]})
    assert ids(asked.findings) == {"cpu-only-wheel"}
    assert "cpu-only-wheel" in ids(refused("2.4.0", target={"gpus": ["h100"], "platform": "linux/arm64"}).findings)


# Python and base ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("torch", "fields", "python", "base"),
    [
        ("2.5.1", {}, "3.11", "bookworm"),
        ("2.13.0", {}, "3.13", "trixie"),
        ("2.0.1", {}, "3.11", "bookworm"),
        ("2.5.1", {"python": "3.9"}, "3.9", "bullseye"),
        ("2.5.1", {"base": {"debian": "bullseye"}}, "3.9", "bullseye"),
        ("2.5.1", {"python": "3.12"}, "3.12", "python:3.12-slim-bookworm"),
        ("2.5.1", {"base": {"image": UBUNTU_CUDA}}, "3.10", UBUNTU_CUDA),
        ("2.5.1", {"base": {"image": "python:3.12.4-slim-bookworm"}}, "3.12", "python:3.12.4-slim-bookworm"),
    ],
)
def test_python_and_base(torch: str, fields: dict[str, Any], python: str, base: str) -> None:
    solution = accepted(torch, **fields)
    assert solution.stack.python == python
    assert base in (getattr(solution.base, "debian", None), getattr(solution.base, "image", None))


@pytest.mark.parametrize(
    ("fields", "id_", "says"),
    [
        ({"python": "3.12", "base": {"debian": "bookworm"}}, "base-python", ["3.11"]),
        ({"python": "3.9", "base": {"debian": "bookworm"}}, "base-python", ["bullseye"]),
        ({"base": {"debian": "buster"}}, "debian-unknown", ["bookworm (Python 3.11)"]),
        ({"python": "3.12", "base": {"image": UBUNTU_CUDA}}, "base-python", ["3.10 or 3.11", "noble"]),
        ({"python": "3.11", "base": {"image": "python:3.12-slim-bookworm"}}, "base-python", ["3.12"]),
        ({"base": {"image": "python:3.11-alpine"}}, "base-glibc", ["musl"]),
        ({"python": "3.11", "base": {"image": "mine:1-rockylinux8"}, "apt": ["git"]}, "base-apt", ["rockylinux"]),
    ],
)
def test_a_base_that_cannot_serve(fields: dict[str, Any], id_: str, says: list[str]) -> None:
    findings = refused("2.5.1", **fields).findings
    assert all(words in told(findings, id_) for words in says), findings


def test_an_old_glibc() -> None:
    old = {"base": {"image": "mine:1-ubuntu18.04"}, "python": "3.9"}
    assert "2.27" in told(refused("2.8.0", **old).findings, "base-glibc")
    assert "base-old-glibc" in ids(accepted("2.5.1", **old).findings)


def test_the_packages_that_bring_python_to_a_bare_base() -> None:
    assert accepted("2.5.1", python="3.11", base={"image": UBUNTU_CUDA}).python_packages == ("python3.11",)
    assert accepted("2.5.1", base={"image": "python:3.11-slim-bookworm"}).python_packages == ()


@pytest.mark.parametrize(
    ("image", "warned"),
    [
        ("nvidia/cuda", {"base-moving-tag", "python-unknown"}),
        ("python:latest", {"base-moving-tag", "python-unknown"}),
        ("debian:bookworm", set()),
        ("nvidia/cuda@sha256:" + "0" * 64, {"python-unknown"}),
        ("localhost:5000/team/base:1.0-ubuntu22.04", set()),
        ("nvcr.io/nvidia/cuda:12.6.3-cudnn-runtime-ubuntu22.04", {"base-cuda", "two-cudnn"}),
        ("docker.io/nvidia/cuda:12.4.1-runtime-ubuntu22.04", set()),
        ("pytorch/pytorch:2.3.1-cuda12.1-cudnn8-runtime", {"two-torch", "base-cuda", "two-cudnn", "python-unknown"}),
        ("nvcr.io/nvidia/pytorch:24.02-py3", {"two-torch", "python-unknown"}),
    ],
)
def test_what_an_image_reference_tells(image: str, warned: set[str]) -> None:
    findings = accepted("2.5.1", base={"image": image}).findings
    assert {finding.id for finding in findings if finding.severity == "warning"} == warned


def test_what_an_image_config_tells() -> None:
    facts = BaseFacts.of_config(
        {
            "CUDA_VERSION": "12.8.0",
            "NV_CUDNN_VERSION": "9.7.0.66-1",
            "NV_LIBNCCL_PACKAGE_VERSION": "2.25.1-1",
            "LD_LIBRARY_PATH": "/usr/local/cuda/lib64",
            "NVIDIA_REQUIRE_CUDA": "cuda>=12.8 brand=tesla,driver>=470,driver<471",
        },
        {"ID": "ubuntu", "VERSION_ID": '"24.04"'},
    )
    solution = accepted("2.5.1", facts, base={"image": "mine:1"}, target={"driver": "550.54.15"})
    assert solution.stack.python == "3.12"
    assert solution.glibc == (2, 39)
    for id_, says in (
        ("base-cuda", ["12.8.0", "12.4"]),
        ("two-cudnn", ["9.7.0.66", "9.1.0.70"]),
        ("two-nccl", ["2.25.1", "2.21.5"]),
        ("base-loader-path", ["/usr/local/cuda/lib64"]),
        ("base-require-cuda", ["cuda>=12.8", "550.54.15", "12.4"]),
    ):
        assert all(words in told(solution.findings, id_) for words in says), id_


@pytest.mark.parametrize(("driver", "warned"), [("470.82.01", False), ("570.26", False), ("550.54.15", True)])
def test_require_cuda_against_the_driver(driver: str, warned: bool) -> None:
    facts = BaseFacts(require_cuda="cuda>=12.8 brand=tesla,driver>=470,driver<471", python="3.11")
    findings = accepted("2.5.1", facts, stack={"cuda": "11.8"}, base={"image": "mine:1"}, target={"driver": driver}).findings
    assert ("base-require-cuda" in ids(findings)) is warned


# packages -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("torch", "package", "family"),
    [
        ("2.5.1", "torchvision", ("torchvision==0.20.1",)),
        ("2.5.1", "torchvision>=0.15", ("torchvision==0.20.1",)),
        ("2.5.1+cu121", "torchvision", ("torchvision==0.20.1+cu121",)),
        ("2.5.1+cu121", "torchvision==0.20.1+cu121", ("torchvision==0.20.1+cu121",)),
        ("2.0.0", "torchaudio", ("torchaudio==2.0.1",)),
        ("2.5.1", "torch==2.5.1", ()),
        ("2.5.1", "torch>=2", ()),
        ("2.14.1", "torchvision", ("torchvision==0.29.2",)),
        ("2.14.1", "torchvision==0.30.0", ("torchvision==0.30.0",)),
        ("2.14.1+cu126", "torchvision", ("torchvision",)),
        ("2.13.0", "torchaudio", ("torchaudio==2.11.1",)),
        ("2.5.1", "torch==2.5.1+cu124", ()),
        ("2.5.1", 'torchvision==0.1; python_version < "3.9"', ()),
        ("2.5.1", "numpy>=2", ()),
        ("2.0.1", "numpy>=1.20", ()),
    ],
)
def test_packages_beside_torch(torch: str, package: str, family: tuple[str, ...]) -> None:
    assert accepted(torch, python="3.11", packages=[package]).family == family


@pytest.mark.parametrize(
    ("torch", "package", "id_", "says"),
    [
        ("2.5.1", "torch==2.4.0", "package-conflict", ["2.5.1", "2.4.0"]),
        ("2.5.1", "torch==2.5.1+cu121", "package-conflict", ["2.5.1"]),
        ("2.5.1", "torchvision<0.20", "torch-family", ["0.20.1"]),
        ("2.5.1+cu121", "torchvision==0.20.1+cu118", "torch-family", ["0.20.1"]),
        ("2.5.1", "torchaudio==2.4.0", "torch-family", ["2.5.1", "2.4.0"]),
        ("2.5.1", "nvidia-cudnn-cu12==9.5.1.17", "package-conflict", ["9.1.0.70"]),
        ("2.15.0", "triton==3.8.0", "package-conflict", ["~=3.9.0"]),
        ("2.14.1", "torchvision==0.28.0", "torch-family", ["0.29.2", "2.13.0"]),
        ("2.10.0", "torchaudio==2.11.1", "torch-family", ["2.10.0"]),
        ("2.0.1", "numpy>=2", "numpy-abi", ["numpy<2", "2.3.0"]),
        ("2.5.1", "cupy-cuda11x", "second-cuda", ["CUDA 11", "CUDA 12"]),
        ("2.13.0", "jax[cuda12]", "second-cuda", ["CUDA 12", "CUDA 13"]),
    ],
)
def test_packages_that_cannot_stand_beside_torch(torch: str, package: str, id_: str, says: list[str]) -> None:
    findings = refused(torch, python="3.11", packages=[package]).findings
    assert all(words in told(findings, id_) for words in says), findings


def test_torch_without_triton_for_this_python_is_told() -> None:
    assert "no-triton" in ids(accepted("2.5.1", python="3.13").findings)
    assert accepted("2.5.1", python="3.13").stack.triton is None


def test_the_libraries_that_the_spec_names_are_held() -> None:
    held = accepted("2.5.1", stack={"nccl": "2.21", "cudnn": "9"}).constraints
    assert {"nvidia-nccl-cu12==2.21.5", "nvidia-cudnn-cu12==9.1.0.70"} <= set(held)
    assert not any(text.startswith("nvidia") for text in accepted("2.5.1").constraints)


# form -----------------------------------------------------------------------------------------------------------------


def test_all_reasons_come_at_once_each_at_its_place() -> None:
    text = (
        "name: x\npython: '3.12'\nstack: {torch: 2.0.1, cuda: '11.7'}\n"
        "target:\n  gpus: [a100, h1000, rtx5090]\n  driver: '440.33'\npackages: [einops, numpy==2.0.0]\n"
    )
    with pytest.raises(Problems) as error:
        solve(parse_spec(text.encode(), "x.yaml"), CATALOGUE)
    found = located_problems(error.value, yamlfile.parse_text(text.encode(), "x.yaml")).findings
    assert {(f.id, f.where) for f in found if f.severity == "error"} == {
        ("torch-python", "x.yaml:2:9"),
        ("gpu-unknown", "x.yaml:5:16"),
        ("gpu-arch", "x.yaml:5:23"),
        ("driver-too-old", "x.yaml:6:11"),
        ("gpu-driver", "x.yaml:6:11"),
        ("numpy-abi", "x.yaml:7:20"),
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"target": {"driver": "9" * 5000}},
        {"stack": {"cuda": "12." + "9" * 5000}},
        {"packages": ["numpy==" + "9" * 5000]},
        {"base": {"image": "python:" + "9" * 5000 + ".1"}},
    ],
)
def test_a_number_without_end_is_a_fault_of_the_spec(fields: dict[str, Any]) -> None:
    error = refused("2.0.1", **fields)
    assert (ids(error.findings), exit_code_of(error)) == ({"spec-value"}, Exit.USAGE)


def test_a_version_that_is_none_is_left_to_the_resolver() -> None:
    accepted("2.0.1", python="3.11", packages=["triton===2.0.0", "einops===x"])


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"env": {"CUBLAS_WORKSPACE_CONFIG": ":1"}}, Exit.USAGE),
        ({"target": {"gpus": ["h1000"]}}, Exit.USAGE),
        ({"target": {"driver": "300.1"}, "stack": {"cuda": "12.4"}}, Exit.NO_STACK),
        ({"target": {"gpus": ["h1000"]}, "stack": {"cuda": "13.0"}}, Exit.NO_STACK),
    ],
)
def test_exit_status(fields: dict[str, Any], status: Exit) -> None:
    assert exit_code_of(refused("2.5.1", **fields)) == status


def test_description_names_every_value_and_where_it_came_from() -> None:
    text = describe(accepted("2.5.1", target={"gpus": ["h100"]}))
    for words in ("torch         2.5.1 (cu124)", "9.1.0.70", "debian bookworm", "sm_90", "torch-2.5.1-cp311-cp311-manylinux1_x86_64.whl"):
        assert words in text


# table ----------------------------------------------------------------------------------------------------------------


def test_the_table_is_what_works_for_the_hardware_newest_first() -> None:
    rows = stack_rows(CATALOGUE, ["h100"], "535.104.05", "3.11")
    assert rows[0].torch == "2.14.1"
    assert rows[0].cuda == "12.6"
    assert rows[-1].torch == "2.0.0"
    assert all(row.cuda != "cpu" and "3.11" in row.python for row in rows)
    assert {bool(row.note) for row in rows if row.cuda == "12.4"} == {True}


def test_the_table_without_filters_has_every_build_of_the_platform() -> None:
    assert len(stack_rows(CATALOGUE)) == sum(build.platform == "linux/amd64" for build in CATALOGUE.builds)


def test_the_table_for_a_driver_has_no_cpu_builds() -> None:
    assert all(row.cuda != "cpu" for row in stack_rows(CATALOGUE, driver="580.95.05"))


@pytest.mark.parametrize("filters", [{"gpus": ["h1000"]}, {"driver": "abc"}])
def test_a_filter_that_is_none(filters: dict[str, Any]) -> None:
    with pytest.raises(Problems) as error:
        stack_rows(CATALOGUE, **filters)
    assert exit_code_of(error.value) == Exit.USAGE
