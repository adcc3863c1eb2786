"""NVIDIA_REQUIRE_*: the conditions that an image puts on its host, read as the NVIDIA container runtime reads them.

Terms parted by blanks are alternatives; conditions parted by commas must all hold; every NVIDIA_REQUIRE_ variable must be met.
Source: nvidia-container-toolkit, internal/requirements and internal/config/image (read 2026-11-29).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PROPERTIES = ("cuda", "driver", "arch", "brand")
_CONDITION = re.compile(r"(?P<property>[a-z]+)(?P<operator>[<>!]=|[<>=])(?P<value>[\w.+-]+)")


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison, such as `cuda>=12.4`."""

    property: str
    operator: str
    value: str

    def __str__(self) -> str:
        return f"{self.property}{self.operator}{self.value}"

    def holds(self, value: str) -> bool:
        """Whether a host with this value of the property meets the condition; brands compare as text, the rest as versions."""
        if self.property == "brand":
            return (value == self.value) if self.operator == "=" else (value != self.value) if self.operator == "!=" else False
        here, wanted = _version(value), _version(self.value)
        return {
            "=": here == wanted,
            "!=": here != wanted,
            "<": here < wanted,
            "<=": here <= wanted,
            ">": here > wanted,
            ">=": here >= wanted,
        }[self.operator]


Alternative = tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Requirement:
    """One variable: met when all conditions of any one alternative hold."""

    variable: str
    alternatives: tuple[Alternative, ...]

    def met_by(self, facts: Mapping[str, str]) -> bool:
        """Whether a host with these facts (cuda, driver, arch, brand) meets it; a fact that is not known is not held against it."""
        return not self.alternatives or any(all(_holds(c, facts) for c in alternative) for alternative in self.alternatives)

    def unmet(self, facts: Mapping[str, str]) -> Sequence[Condition]:
        """The conditions that fail in each alternative, in order."""
        return [condition for alternative in self.alternatives for condition in alternative if not _holds(condition, facts)]


def requirements_of(environment: Mapping[str, str]) -> tuple[Requirement, ...]:
    """The requirements in an image's ENV; none where NVIDIA_DISABLE_REQUIRE is true.

    An image that has CUDA_VERSION and no NVIDIA_REQUIRE_CUDA asks for that CUDA version, as old images do.
    """
    if environment.get("NVIDIA_DISABLE_REQUIRE", "").lower() in ("1", "t", "true"):
        return ()
    texts = {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith("NVIDIA_REQUIRE_") and not name.startswith("NVIDIA_REQUIRE_JETPACK") and value.strip()
    }
    legacy = re.match(r"\d+\.\d+", environment.get("CUDA_VERSION", ""))
    if legacy and "NVIDIA_REQUIRE_CUDA" not in texts:
        texts["CUDA_VERSION"] = f"cuda>={legacy[0]}"
    return tuple(Requirement(name, parse(text)) for name, text in texts.items())


def parse(text: str) -> tuple[Alternative, ...]:
    """The alternatives in one variable's value. Conditions on properties that the runtime does not know are passed over."""
    alternatives = []
    for term in text.split():
        conditions = []
        for factor in term.split(","):
            match = _CONDITION.fullmatch(factor.strip())
            if match and match["property"] in PROPERTIES:
                conditions.append(Condition(match["property"], match["operator"], match["value"]))
        if conditions:
            alternatives.append(tuple(conditions))
    return tuple(alternatives)


def _holds(condition: Condition, facts: Mapping[str, str]) -> bool:
    value = facts.get(condition.property)
    return value is None or condition.holds(value)


def _version(text: str) -> tuple[int, ...]:
    """Numbers of a version, without trailing zeros, so that 12.4 and 12.4.0 are the same."""
    numbers = [int(part) for part in re.findall(r"\d+", text)]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
