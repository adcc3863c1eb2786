"""The rules asked again of a locked closure: what is wrong is named, and the right closure passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envlock import catalogue
from envlock.errors import Finding
from envlock.lock import Wheel
from envlock.spec import parse_spec
from envlock.stack import Solution, check_closure, completed, solve

CATALOGUE = catalogue.load()


def solution_of(torch: str, **stack: str) -> Solution:
    data: dict[str, Any] = {"name": "x", "python": "3.11", "stack": {"torch": torch, **stack}, "packages": ["torchvision", "numpy"]}
    return solve(parse_spec(yaml.safe_dump(data).encode(), "x.yaml"), CATALOGUE)


def wheel(name: str, version: str, index: str = "default") -> Wheel:
    return Wheel(name=name, version=version, file=f"{name}-{version}-py3-none-any.whl", sha256="0" * 64, size=1, index=index)


def pinned_version(text: str) -> tuple[str, str]:
    requirement = Requirement(text)
    single = next(part.version for part in requirement.specifier if part.operator in ("==", "~=", ">=")).replace(".*", ".1")
    return canonicalize_name(requirement.name), single


def right_closure(solution: Solution) -> list[Wheel]:
    """One wheel for each thing that the solution asks for, in the version it asks for."""
    requirement = Requirement(solution.torch_requirement)
    wheels = [wheel("torch", next(iter(requirement.specifier)).version, solution.torch_index)]
    wheels += [wheel(*pinned_version(text), solution.torch_index) for text in solution.family]
    wheels += [wheel(*pinned_version(text)) for text in solution.requires or ()]
    toolkit = next((w for w in wheels if w.name == "cuda-toolkit"), None)
    row = next((row for row in CATALOGUE.toolkits if toolkit and row.version == toolkit.version), None)
    wheels += [wheel(*pinned_version(text)) for text in (row.requires if row else ()) if "cublas" in text or "runtime" in text]
    return [*wheels, wheel("numpy", "1.26.4")]


def changed(wheels: Sequence[Wheel], *others: Wheel) -> list[Wheel]:
    names = {other.name for other in others}
    return [w for w in wheels if w.name not in names] + list(others)


def ids(findings: Sequence[Finding]) -> list[str]:
    return [finding.id for finding in findings]


STACKS = [("2.5.1", {}), ("2.13.0", {}), ("2.0.1", {}), ("2.5.1", {"cuda": "12.1"}), ("2.13.0", {"cuda": "cpu"}), ("2.15.0", {})]


@pytest.mark.parametrize(("torch", "stack"), STACKS)
def test_the_right_closure_passes(torch: str, stack: dict[str, str]) -> None:
    solution = solution_of(torch, **stack)
    assert check_closure(right_closure(solution), solution, CATALOGUE) == ()


@pytest.mark.parametrize(
    ("other", "id_", "says"),
    [
        (wheel("torch", "2.5.0"), "torch-moved", ["2.5.0", "2.5.1"]),
        (wheel("torch", "2.5.1+cpu", "local"), "cpu-only-wheel", ["cpu", "cu124"]),
        (wheel("torch", "2.5.1+cu121", "pytorch"), "torch-cuda", ["cu121", "cu124"]),
        (wheel("nvidia-cudnn-cu12", "9.5.1.17"), "closure-pin", ["9.1.0.70", "9.5.1.17"]),
        (wheel("triton", "3.2.0"), "closure-pin", ["3.1.0", "3.2.0"]),
        (wheel("nvidia-cudnn-cu11", "9.1.0.70"), "second-cuda", ["nvidia-cudnn-cu11", "CUDA 11", "12.4"]),
        (wheel("nvidia-cublas", "13.1.0.3"), "second-cuda", ["CUDA 13"]),
        (wheel("cupy-cuda11x", "13.3.0"), "second-cuda", ["cupy-cuda11x"]),
        (wheel("torchvision", "0.19.0"), "torch-family", ["0.19.0", "0.20.1"]),
        (wheel("torchvision", "0.20.1+cu121"), "torch-family", ["0.20.1+cu121"]),
    ],
)
def test_a_wrong_wheel_is_named(other: Wheel, id_: str, says: list[str]) -> None:
    solution = solution_of("2.5.1")
    findings = check_closure(changed(right_closure(solution), other), solution, CATALOGUE)
    assert id_ in ids(findings)
    text = "\n".join(" ".join((f.what, f.why, f.hint)) for f in findings if f.id == id_)
    assert all(words in text for words in says), text


def test_a_sister_from_another_index_is_named() -> None:
    solution = solution_of("2.5.1", cuda="12.1")
    findings = check_closure(changed(right_closure(solution), wheel("torchvision", "0.20.1")), solution, CATALOGUE)
    assert ids(findings) == ["torch-family"]


def test_a_build_of_the_wrong_index_is_named() -> None:
    solution = solution_of("2.5.1", cuda="12.1")
    assert "torch-cuda" in ids(check_closure(changed(right_closure(solution), wheel("torch", "2.5.1")), solution, CATALOGUE))


def test_a_library_twice_is_named() -> None:
    solution = solution_of("2.5.1")
    twice = [*right_closure(solution), wheel("nvidia-cudnn-cu12", "9.5.1.17")]
    assert "closure-twice" in ids(check_closure(twice, solution, CATALOGUE))


def test_a_missing_library_is_named() -> None:
    solution = solution_of("2.5.1")
    without = [w for w in right_closure(solution) if w.name != "nvidia-nccl-cu12"]
    assert ids(check_closure(without, solution, CATALOGUE)) == ["closure-pin"]


def test_a_cpu_closure_is_named_where_cuda_was_asked_for() -> None:
    solution = solution_of("2.5.1")
    bare = [w for w in right_closure(solution) if not w.name.startswith("nvidia")]
    assert "cpu-only-wheel" in ids(check_closure(bare, solution, CATALOGUE))


def test_libraries_that_the_toolkit_pins_by_wildcard_are_checked() -> None:
    solution = solution_of("2.13.0")
    moved = changed(right_closure(solution), wheel("nvidia-cublas", "13.4.0.1"))
    findings = check_closure(moved, solution, CATALOGUE)
    assert ids(findings) == ["closure-pin"]
    assert "cuda-toolkit 13.0.3" in findings[0].what


def test_numpy_of_the_other_abi_is_named() -> None:
    solution = solution_of("2.0.1")
    assert ids(check_closure(changed(right_closure(solution), wheel("numpy", "2.1.0")), solution, CATALOGUE)) == ["numpy-abi"]


def test_cuda_libraries_in_a_cpu_stack_are_a_warning() -> None:
    solution = solution_of("2.13.0", cuda="cpu")
    findings = check_closure([*right_closure(solution), wheel("nvidia-nccl-cu12", "2.21.5")], solution, CATALOGUE)
    assert [(finding.id, finding.severity) for finding in findings] == [("second-cuda", "warning")]


def test_no_torch_at_all() -> None:
    assert ids(check_closure([], solution_of("2.5.1"), CATALOGUE)) == ["torch-missing"]


def test_the_locked_stack_has_what_only_locking_tells() -> None:
    solution = solution_of("2.15.0")
    assert solution.stack.triton is None
    assert completed(solution.stack, [wheel("triton", "3.9.2")]).triton == "3.9.2"
    variant = solution_of("2.5.1", cuda="12.1")
    assert completed(variant.stack, [wheel("nvidia-nccl-cu12", "2.21.5")]).nccl == "2.21.5"
