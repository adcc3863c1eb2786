"""Figures of repeats become mean, spread and an interval."""

import json
import statistics

import pytest

from envlock.errors import FileUnreadable
from envlock.metrics import as_json, read_metrics, summarise


def test_mean_deviation_and_interval():
    (metric,) = summarise([{"acc": value} for value in (0.90, 0.92, 0.91, 0.93, 0.89)])
    assert metric.mean == pytest.approx(0.91)
    assert metric.deviation == pytest.approx(statistics.stdev(metric.values))
    assert metric.half_width == pytest.approx(2.776 * metric.deviation / 5**0.5)
    assert metric.text == "0.91 ± 0.02 (95 %, n = 5, s = 0.016)"


def test_equal_runs_have_no_spread():
    (metric,) = summarise([{"acc": 0.1}] * 3)
    assert (metric.deviation, metric.half_width, metric.text) == (0.0, 0.0, "0.1 in all 3 runs")


def test_one_run_has_no_interval():
    (metric,) = summarise([{"acc": 0.5}])
    assert (metric.half_width, metric.text) == (None, "0.5 (n = 1)")


def test_many_runs_come_near_the_normal_interval():
    runs = [{"x": float(number % 2)} for number in range(1000)]
    (metric,) = summarise(runs)
    assert metric.half_width == pytest.approx(1.96 * metric.deviation / 1000**0.5, rel=0.01)


def test_only_figures_that_all_runs_have_count():
    assert [metric.name for metric in summarise([{"a": 1.0, "b": 2.0}, {"b": 3.0}])] == ["b"]
    assert summarise([]) == ()


def test_numbers_are_found_by_their_path(tmp_path):
    (tmp_path / "m.json").write_text('{"test": {"acc": 0.9, "name": "x", "ok": true}, "per_class": [1, 2.5], "bad": NaN}')
    assert read_metrics(tmp_path / "m.json") == {"test.acc": 0.9, "per_class[0]": 1.0, "per_class[1]": 2.5}


@pytest.mark.parametrize("text", [None, "{", "[" * 100_000])
def test_unreadable_metrics_are_told(tmp_path, text):
    if text is not None:
        (tmp_path / "m.json").write_text(text)
    with pytest.raises(FileUnreadable):
        read_metrics(tmp_path / "m.json")


def test_json_carries_the_text():
    assert json.loads(json.dumps(as_json(summarise([{"x": 1.0}, {"x": 1.0}])[0])))["text"] == "1 in all 2 runs"
