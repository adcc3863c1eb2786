"""Every situation in tests/data/cases gives its outcome."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from envlock import catalogue
from envlock.errors import EnvlockError, Finding
from envlock.progress import Silent
from envlock.resolve.python import PythonWish, resolve_wheels
from envlock.spec import Spec, parse_spec
from envlock.stack import Solution, solve
from envlock.store import Store

DATA = Path(__file__).parents[1] / "data" / "cases"
ALL = yaml.safe_load((DATA / "stacks.yaml").read_text())
# Whether a package has a wheel is known to its index alone.
FOUND_BY_RESOLVING = [case for case in ALL if case.get("id") == "needs-compiling"]
CASES = [case for case in ALL if case not in FOUND_BY_RESOLVING]


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


@pytest.mark.network
@pytest.mark.parametrize("case", FOUND_BY_RESOLVING, ids=lambda case: case["case"])
def test_case_that_the_index_decides(case: dict[str, Any], tmp_path: Path) -> None:
    spec = spec_of(case)
    solution = solve(spec, catalogue.load())
    wish = PythonWish((solution.torch_requirement, *spec.packages), solution.constraints, python=solution.stack.python)
    with pytest.raises(EnvlockError) as error:
        resolve_wheels(wish, Store(tmp_path), Silent())
    assert [finding.id for finding in error.value.findings] == [case["id"]]
    told = " ".join((error.value.what, error.value.why, error.value.hint))
    assert all(words in told for words in case["says"])


REAL = {
    "cpu-classifier": ("torch==2.13.0+cpu", None, set()),
    "fold-mismatch": ("torch==2.5.1", "12.4", {"base-cuda", "two-cudnn"}),
    "hopper-llm": ("torch==2.13.0", "13.0", set()),
    "llava-like": ("torch==2.0.1", "11.7", set()),
    "segmentation": ("torch==2.3.1", "12.1", set()),
}


@pytest.mark.parametrize("path", sorted((DATA / "specs").glob("*.yaml")), ids=lambda path: path.stem)
def test_real_spec_gets_the_stack_of_its_first_comment(path: Path) -> None:
    solution = solve(parse_spec(path.read_bytes(), path.name), catalogue.load())
    warned = {finding.id for finding in solution.findings if finding.severity == "warning"}
    assert (solution.torch_requirement, solution.stack.cuda, warned) == REAL[path.stem]


def test_the_cases_are_those_that_the_project_was_given() -> None:
    given = Path(__file__).parents[3] / "shared" / "cases"
    if not given.is_dir():
        pytest.skip("no shared cases beside this checkout")
    for path in (given / "stacks.yaml", *(given / "specs").glob("*.yaml")):
        assert (DATA / path.relative_to(given)).read_text() == path.read_text()
