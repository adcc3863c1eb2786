"""Random specs: solving never fails but by our errors, and an accepted stack satisfies every rule."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from envlock import catalogue, yamlfile
from envlock.catalogue import drivers, gpus
from envlock.catalogue.rows import Build, numbers
from envlock.errors import EnvlockError, Exit, Problems, exit_code_of
from envlock.spec import Spec, parse_spec
from envlock.stack import BaseFacts, Solution, located, solve, stack_rows
from envlock.stack.base import debian_bases
from envlock.stack.packages import pins

CATALOGUE = catalogue.load()
RELEASES = CATALOGUE.releases()
CUDAS = sorted({build.cuda for build in CATALOGUE.builds if build.cuda})
MODELS = [model.name for model in CATALOGUE.gpus]
DRIVERS = sorted({row.driver for row in CATALOGUE.drivers} | {row.floor for row in CATALOGUE.drivers})

maybe = st.none()
version_text = st.from_regex(r"\d{1,2}(\.\d{1,2}){0,3}", fullmatch=True)
PACKAGES = """
    numpy numpy==1.26.4 numpy>=2 numpy==2.1.0 torchvision torchvision==0.20.1 torchaudio torch torch==2.5.1 triton triton==3.1.0
    nvidia-cudnn-cu12==9.1.0.70 cupy-cuda12x jax[cuda12] numpy<2;python_version<'3.9'
"""
IMAGES = """
    nvidia/cuda:12.1.1-cudnn8-devel-ubuntu22.04 nvidia/cuda:12.4.1-base-ubuntu20.04 nvidia/cuda:latest python:3.11-slim ubuntu:24.04
    pytorch/pytorch:2.3.1-cuda12.1-cudnn8-runtime nvcr.io/nvidia/pytorch:24.02-py3 debian:bookworm python:3.12-alpine
    nvidia/cuda:12.4.1-runtime-ubi8 localhost:5000/mine
"""
packages = st.sampled_from(PACKAGES.split())
images = st.sampled_from(IMAGES.split())
bases = st.one_of(
    st.builds(lambda suite: {"debian": suite}, st.sampled_from(["bullseye", "bookworm", "trixie", "buster", "nowhere"])),
    st.builds(lambda image: {"image": image}, images),
    st.just({"archive": "base.tar"}),
)


@st.composite
def likely_specs(draw: st.DrawFn) -> dict[str, Any]:
    """Specs around one build, most of which fit together."""
    build = draw(st.sampled_from(CATALOGUE.builds))
    served = [model.name for model in CATALOGUE.gpus if build.cuda and gpus.serves(build, [_gpu(model.name)], CATALOGUE)]
    served = [name for name in served if (_gpu(name).model or CATALOGUE.gpus[0]).host in (None, build.platform)]
    target: dict[str, Any] = {"platform": build.platform}
    if served:
        target["gpus"] = draw(st.lists(st.sampled_from(served), max_size=2))
        target |= draw(st.sampled_from([{}, {"driver": "580.95.05"}, {"driver": "595.71.05"}]))
    pythons = st.sampled_from([*build.python, "3.11"])
    named = draw(st.sampled_from([{}, {"cuda": build.cuda or "cpu"}]))
    return {
        "name": "likely",
        "stack": {"torch": draw(st.sampled_from([build.torch, f"{build.torch}+{build.variant}"])), **named},
        "target": target,
        "packages": draw(st.lists(st.sampled_from(["numpy", "torchvision", "torchaudio", "triton", "einops"]), max_size=3)),
        **draw(st.one_of(st.just({}), st.builds(lambda python: {"python": python}, pythons))),
        **draw(st.sampled_from([{}, {}, {"base": {"image": "nvidia/cuda:12.4.1-base-ubuntu22.04"}}, {"base": {"archive": "a.tar"}}])),
    }


def _gpu(name: str) -> gpus.Gpu:
    gpu = gpus.find(name, CATALOGUE)
    assert gpu is not None
    return gpu


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    stack: dict[str, Any] = {"torch": draw(st.one_of(st.sampled_from(RELEASES), version_text, st.sampled_from(["2.5", "2.5.1+cu121"])))}
    stack["cuda"] = draw(st.one_of(maybe, st.sampled_from([*CUDAS, "cpu", "12.4.1", "10.1"])))
    stack["cudnn"] = draw(st.one_of(maybe, maybe, st.sampled_from(["8", "9", "9.1.0.70", "7.6"])))
    stack["nccl"] = draw(st.one_of(maybe, maybe, st.sampled_from(["2.21.5", "2", "1.0"])))
    target: dict[str, Any] = {
        "gpus": draw(st.lists(st.one_of(st.sampled_from(MODELS), st.sampled_from(["sm_90", "h1000", "8.6"])), max_size=3)),
        "driver": draw(st.one_of(maybe, st.sampled_from([*DRIVERS, "535", "400.10", "999"]))),
        "platform": draw(st.sampled_from(["linux/amd64", "linux/amd64", "linux/arm64"])),
    }
    spec = {
        "name": "random",
        "python": draw(st.one_of(maybe, st.sampled_from([f"3.{minor}" for minor in range(6, 17)]))),
        "base": draw(st.one_of(maybe, maybe, bases)),
        "stack": {key: value for key, value in stack.items() if value is not None},
        "target": {key: value for key, value in target.items() if value is not None},
        "packages": draw(st.lists(packages, max_size=3)),
        "env": draw(st.sampled_from([{}, {}, {"HF_HOME": "/data"}, {"CUBLAS_WORKSPACE_CONFIG": ":4096"}])),
    }
    return {key: value for key, value in spec.items() if value is not None}


def solved(data: dict[str, Any]) -> Solution | Problems:
    try:
        return solve(parse(data), CATALOGUE)
    except Problems as error:
        return error


def parse(data: dict[str, Any]) -> Spec:
    return parse_spec(yaml.safe_dump(data).encode(), "random.yaml")


def build_of(solution: Solution) -> Build:
    stack = solution.stack
    same = [b for b in CATALOGUE.builds if (b.torch, b.platform, b.variant) == (stack.torch, stack.platform, stack.variant)]
    assert len(same) == 1
    return same[0]


@given(specs())
@settings(deadline=None, max_examples=150)
def test_a_refusal_is_ours_and_says_what_to_do(data: dict[str, Any]) -> None:
    error = solved(data)
    assume(isinstance(error, EnvlockError))
    assert isinstance(error, Problems)
    faults = [finding for finding in error.findings if finding.severity == "error"]
    assert exit_code_of(error) in (Exit.USAGE, Exit.NO_STACK)
    assert all(fault.what and fault.hint for fault in faults), faults
    document = yamlfile.parse_text(yaml.safe_dump(data).encode(), "random.yaml")
    for finding in located(error.findings, document):
        assert finding.where.startswith("random.yaml:")


@given(st.one_of(likely_specs(), specs()))
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.filter_too_much])
def test_an_accepted_stack_satisfies_every_rule(data: dict[str, Any]) -> None:
    solution = solved(data)
    assume(isinstance(solution, Solution))
    assert isinstance(solution, Solution)
    spec, stack, build = parse(data), solution.stack, build_of(solution)
    assert solution == solve(spec, CATALOGUE)
    assert stack.python in build.python
    assert spec.python in (None, stack.python)
    assert build.requirement == solution.torch_requirement
    assert (solution.torch_index_path != "") == (solution.torch_index == "pytorch") == ("+" in solution.torch_requirement)
    assert solution.glibc >= numbers(build.glibc)
    assert not any(finding.severity == "error" for finding in solution.findings)
    assert {"torch", "cuda", "python", "base", "platform"} <= solution.origins.keys()
    assert not any(":" in origin and not origin for origin in solution.origins.values())
    if stack.cuda is not None:
        need = drivers.needs(stack.cuda, CATALOGUE)
        assert need is not None
        if spec.target.driver:
            assert drivers.reach(spec.target.driver, need.row) != "too-old"
        for name in spec.target.gpus:
            gpu = gpus.find(name, CATALOGUE)
            assert gpu is not None
            assert gpus.serves(build, [gpu], CATALOGUE)
    if spec.stack.cuda:
        assert (stack.cuda or "cpu").split(".")[:2] == spec.stack.cuda.split(".")[:2]
    if spec.stack.cudnn and stack.cudnn:
        assert stack.cudnn.startswith(spec.stack.cudnn)
    if hasattr(solution.base, "debian"):
        own = {row.names[0]: row.python for row in debian_bases(CATALOGUE)}
        assert own[solution.base.debian] == stack.python
    if build.numpy_abi == 1:
        assert "numpy<2" in solution.constraints
        assert "numpy>=2" not in spec.packages
    assert ("triton" in pins(build, stack.python)) >= (stack.triton is not None)


words = st.one_of(st.text(max_size=12), version_text, st.sampled_from(["cuda>=12.8 brand=tesla,driver>=470", "9.1.0-1", "ubuntu", "3.x"]))
config_keys = st.sampled_from(
    ["CUDA_VERSION", "NV_CUDNN_VERSION", "NCCL_VERSION", "PYTHON_VERSION", "PYTORCH_VERSION", "NVIDIA_REQUIRE_CUDA", "LD_LIBRARY_PATH"]
)


@given(st.dictionaries(config_keys, words), st.dictionaries(st.sampled_from(["ID", "VERSION_ID"]), words))
@settings(deadline=None, max_examples=150)
def test_an_image_may_say_anything(environment: dict[str, str], facts: dict[str, str]) -> None:
    spec = parse({"name": "x", "stack": {"torch": "2.5.1"}, "base": {"image": "mine:1"}, "target": {"driver": "550.54.15"}})
    with suppress(Problems):
        solve(spec, CATALOGUE, BaseFacts.of_config(environment, facts))


@given(
    st.lists(st.sampled_from(MODELS), max_size=2),
    st.one_of(maybe, st.sampled_from(DRIVERS)),
    st.one_of(maybe, st.sampled_from(["3.9", "3.11", "3.13"])),
)
@settings(deadline=None, max_examples=40)
def test_each_row_of_the_table_is_a_spec_that_is_accepted(models: list[str], driver: str | None, python: str | None) -> None:
    hosts = {model.host for model in CATALOGUE.gpus if model.name in models}
    assume("linux/arm64" not in hosts)
    for row in stack_rows(CATALOGUE, models, driver, python)[:8]:
        target = {"gpus": models, **({"driver": driver} if driver else {})}
        spec = {"name": "row", "stack": {"torch": row.torch, "cuda": row.cuda}, "target": target, **({"python": python} if python else {})}
        found = solved(spec)
        if isinstance(found, Problems):
            assert {f.id for f in found.findings if f.severity == "error"} <= {"gpu-driver"}
        else:
            assert found.stack.variant == row.variant
