"""Every form of a report says the same, and none can be broken by what a container printed."""

import io
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from sample_report import FAILING, HOST_REMARK, MEASUREMENTS, NOT_RUN, check, report

from envlock.report_charts import CHART, cost_chart, spread_chart
from envlock.report_forms import counted, markdown_cell, to_github, to_html, to_junit, to_markdown, to_text, write_all

FULL = report(FAILING, NOT_RUN, remarks=(HOST_REMARK,))
HOSTILE = "</script><script>alert(1)</script> & \x1b[31m\x00 | `x` %0A::error::"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_text_has_the_verdict_first_and_fits_100_columns():
    text = to_text(FULL)
    assert text.startswith("DOES NOT HOLD  resnet-cifar:latest\n")
    assert max(len(line) for line in text.splitlines()) <= 100


def test_text_names_what_failed_and_what_to_do():
    text = to_text(FULL)
    assert "TF32 is on" in text
    assert "do: remove NVIDIA_TF32_OVERRIDE=1" in text
    assert "envlock verify resnet-cifar:latest" in text


@pytest.mark.parametrize("needle", ["a" * 64, "c" * 64, "gpu-box", "550.54.15", "NVIDIA H100 80GB HBM3", "self-test 1"])
@pytest.mark.parametrize("form", [to_text, to_markdown, to_html])
def test_every_form_for_people_names_image_lock_host_driver_gpu_and_selftest(form, needle):
    assert needle in form(FULL)


def test_colour_is_for_terminals_only(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert "\x1b[" not in to_text(FULL, io.StringIO())
    assert "\x1b[" in to_text(FULL, Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in to_text(FULL, Terminal())


def test_counts_use_the_words_of_the_table():
    assert counted(FULL.checks) == {"ok": 5, "FAIL": 1, "raises": 1, "not run": 1}


def test_junit_counts_failures_and_what_could_not_run():
    suite = ElementTree.fromstring(to_junit(FULL)).find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped"), suite.get("errors")) == ("8", "1", "2", "1")
    assert suite.find("testcase[@name='Full precision <b> [cuda:0]']/failure").get("type") == "image"
    assert suite.find("testcase[@name='Convolution [cuda:0]']/skipped") is not None


def test_github_annotations_are_one_line_each():
    lines = to_github(FULL).splitlines()
    assert lines[0].startswith("::error::resnet-cifar:latest: does not hold")
    assert all(re.match(r"::(error|warning|notice)( [^:]*)?::", line) for line in lines)


def test_html_is_self_contained():
    page = to_html(FULL)
    assert "<script" not in page
    assert "http://" not in page
    assert "https://" not in page
    assert not re.search(r"<(?:link|img|iframe)|url\(", page)


def test_html_is_balanced_and_shows_both_charts():
    class Balance(HTMLParser):
        def __init__(self):
            super().__init__()
            self.open = []

        def handle_starttag(self, tag, attributes):
            if tag not in ("meta", "line", "rect"):
                self.open.append(tag)

        def handle_endtag(self, tag):
            if tag not in ("meta", "line", "rect"):
                assert self.open.pop() == tag

    page = to_html(FULL)
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    assert page.count('<svg class="chart"') == 2


def test_html_without_measurements_has_no_empty_chart():
    assert "<svg" not in to_html(report(measurements={}))


def test_a_hostile_container_cannot_break_a_form():
    made = report(check("x", title=HOSTILE, status="fail", why=HOSTILE, hint=HOSTILE, fault="image"))
    assert "<script" not in to_html(made)
    assert not re.search(r"(?<!\\)<script|(?<!\\)\| `x", to_markdown(made))
    assert ElementTree.fromstring(to_junit(made)).find("testsuite").get("failures") == "1"
    assert len(to_github(made).splitlines()) == 2


def test_markdown_cells_stay_in_their_table():
    assert markdown_cell("a | b\n`c` <d>") == r"a \| b \`c\` \<d\>"


def test_all_forms_are_written(tmp_path):
    written = write_all(FULL, tmp_path / "new" / "folder")
    assert sorted(path.name for path in written) == ["junit.xml", "report.html", "report.json", "report.md", "report.txt"]
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == [path.name for path in sorted(written)]


def test_cost_rows_lie_on_their_axis_the_dearest_first():
    chart = cost_chart(MEASUREMENTS)
    assert [row.name for row in chart.rows] == ["conv2d, cuda:0", "index_add, cuda:0", "training conv, cuda:0"]
    assert [row.tone for row in chart.rows] == ["bad", "warn", "good"]
    assert all(0 <= row.interval[0] <= row.end <= row.interval[1] <= CHART for row in chart.rows)
    assert "grid_sample2d, cuda:0" in chart.more


def test_spread_rows_are_what_varies():
    chart = spread_chart(MEASUREMENTS)
    assert [row.label for row in chart.rows] == ["2.0e-06  7 results in 10 runs"]
    assert chart.more == "1 of 2 operations gave the same bits in every repeat"
    assert [tick.label for tick in chart.ticks] == ["1e-9", "1e-6", "1e-3", "1e0"]
    assert chart.ticks[1].at < chart.rows[0].end < chart.ticks[2].at


NO_FIGURES = (
    {"cpu": "no mapping"},
    {"cpu": {"operations": [1, None]}},
    {"cpu": {"error": "the process died"}},
    {"cpu": {"operations": {"x": {"cost": {"ratio": "nan"}, "spread": {"relative": float("inf")}}}}},
    {"cpu": {"operations": {"x": {"cost": {"ratio": -1}, "spread": {"relative": True}}}}},
)


@pytest.mark.parametrize("measurements", NO_FIGURES)
def test_charts_pass_over_what_is_no_figure(measurements):
    assert cost_chart(measurements).rows == ()
    assert spread_chart(measurements).rows == ()
