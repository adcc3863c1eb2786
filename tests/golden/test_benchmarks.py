"""The page of benchmarks is what its results make."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_current() -> None:
    spec = importlib.util.spec_from_file_location("results", ROOT / "benchmarks" / "results.py")
    assert spec is not None
    assert spec.loader is not None
    results = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(results)
    assert results.page() == results.PAGE.read_text(), "run: python benchmarks/results.py"
    assert {path.stem for path in results.RESULTS.glob("*.json")} == set(results.TITLES)
