"""Which GPU runs which native code. The rules are data, in architectures.json beside this file."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envlock.runtime.settings import release

if TYPE_CHECKING:
    from collections.abc import Iterable


@lru_cache
def rules() -> dict[str, dict[str, Any]]:
    """Rules by architecture: `sm_80`."""
    data = json.loads(Path(__file__).with_name("architectures.json").read_text(encoding="utf-8"))
    return {row["code"]: row for row in data["rules"]}


def native(code: str, capability: str, cuda: str) -> bool:
    """Whether a device of a capability (`8.9`) runs native code for an architecture (`sm_86`) of a wheel built with a CUDA version."""
    match = re.fullmatch(r"sm_(\d+)([a-z]?)", code)
    if match is None:
        return False
    number, letter = match.groups()
    device, built = release(capability), (int(number[:-1]), int(number[-1]))
    if letter:
        return device == built
    rule = rules().get(code)
    if rule is None:
        return device[0] == built[0] and device[1] >= built[1]
    if "only" in rule:
        return capability in rule["only"]
    barred = rule.get("except", [])
    if "except_until" in rule and release(cuda) >= release(rule["except_until"]):
        barred = []
    return release(rule["ge"]) <= device < release(rule["lt"]) and capability not in barred


def native_code(codes: Iterable[str], capability: str, cuda: str) -> str | None:
    """The architecture whose code a device runs, of those in a wheel; None where there is none, or PTX alone."""
    fitting = [code for code in codes if native(code, capability, cuda)]
    return max(fitting, key=lambda code: int(re.sub(r"\D", "", code)), default=None)
