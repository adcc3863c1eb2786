"""NVIDIA_REQUIRE_CUDA is read as the container runtime reads it."""

import pytest

from envlock.requirement import parse, requirements_of

TESLA_470 = {"cuda": "11.4", "driver": "470.223.02", "brand": "tesla"}
GEFORCE_551 = {"cuda": "12.4", "driver": "551.23", "brand": "geforce"}


@pytest.mark.parametrize(
    ("text", "facts", "met"),
    [
        ("cuda>=12.8 brand=tesla,driver>=470,driver<471", GEFORCE_551, False),
        ("cuda>=12.8 brand=tesla,driver>=470,driver<471", TESLA_470, True),
        ("cuda>=12.8 brand=tesla,driver>=470,driver<471", {**TESLA_470, "driver": "510.1"}, False),
        ("cuda>=12.4", GEFORCE_551, True),
        ("cuda>=12.10", GEFORCE_551, False),
        ("cuda<=12.4.0", GEFORCE_551, True),
        ("driver!=551.23", GEFORCE_551, False),
        ("brand!=tesla", GEFORCE_551, True),
        ("arch>=8.0", {"arch": "7.5"}, False),
        ("cuda>=12.8", {}, True),
        ("gizmo>=3", GEFORCE_551, True),
        ("", GEFORCE_551, True),
        ("nonsense", GEFORCE_551, True),
    ],
)
def test_requirement_is_met(text, facts, met):
    (requirement,) = requirements_of({"NVIDIA_REQUIRE_CUDA": text}) or (None,)
    assert (requirement is None or requirement.met_by(facts)) is met


def test_every_variable_counts():
    environment = {"NVIDIA_REQUIRE_CUDA": "cuda>=12.4", "NVIDIA_REQUIRE_DRIVER": "driver>=560", "PATH": "/bin"}
    assert [requirement.met_by(GEFORCE_551) for requirement in requirements_of(environment)] == [True, False]


def test_old_images_ask_for_their_cuda_version():
    (requirement,) = requirements_of({"CUDA_VERSION": "12.8.1"})
    assert requirement.variable == "CUDA_VERSION"
    assert not requirement.met_by(GEFORCE_551)


@pytest.mark.parametrize("value", ["1", "true", "T"])
def test_requirements_can_be_turned_off(value):
    assert requirements_of({"NVIDIA_REQUIRE_CUDA": "cuda>=99", "NVIDIA_DISABLE_REQUIRE": value}) == ()


def test_alternatives_and_conditions_keep_their_order():
    assert [[str(c) for c in alternative] for alternative in parse("cuda>=12.8 brand=tesla,driver>=470,driver<471")] == [
        ["cuda>=12.8"],
        ["brand=tesla", "driver>=470", "driver<471"],
    ]
