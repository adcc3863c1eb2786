"""Every situation in tests/data/cases gives its outcome."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from envlock import catalogue
from envlock.errors import EnvlockError, Finding
from envlock.spec import Spec, parse_spec
from envlock.stack import Solution, solve

DATA = Path(__file__).parents[1] / "data" / "cases"
NEEDS_AN_INDEX = {"source-package"}
CASES = [case for case in yaml.safe_load((DATA / "stacks.yaml").read_text()) if case["case"] not in NEEDS_AN_INDEX]


def spec_of(case: dict[str, Any]) -> Spec:
    if "text" in case:
        return parse_spec(case["text"].encode(), "envlock.yaml")
    return parse_spec(yaml.safe_dump({"name": "case", **case["spec"]}).encode(), "envlock.yaml")


def outcome(case: dict[str, Any]) -> tuple[str, tuple[Finding, ...], Solution | None]:
    try:
        solution = solve(spec_of(case), catalogue.load())
    except EnvlockError as error:
        return "refuse", error.findings, None
    warned = any(finding.severity == "warning" for finding in solution.findings)
    return "warn" if warned else "ok", solution.findings, solution


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_case_gives_its_outcome(case: dict[str, Any]) -> None:
    result, findings, _ = outcome(case)
    assert result == case["outcome"], findings
    if "id" in case:
        assert case["id"] in {finding.id for finding in findings}, findings
    told = "\n".join(" ".join((f.where, f.what, f.why, f.hint)) for f in findings if f.id == case.get("id", f.id))
    for words in case.get("says", ()):
        assert words in told


@pytest.mark.parametrize("path", sorted((DATA / "specs").glob("*.yaml")), ids=lambda path: path.stem)
def test_real_spec_is_accepted(path: Path) -> None:
    solve(parse_spec(path.read_bytes(), path.name), catalogue.load())
