"""A verdict follows from checks and remarks; a report is JSON with a published schema."""

import json

import jsonschema
import pytest
from sample_report import CHECKS, FAILING, HOST_REMARK, NOT_RUN, check, report

from envlock.errors import Exit, FileUnreadable, UsageError
from envlock.report import SCHEMA, judge, parse, read, schema, to_json

GPU_LOST = check("x", status="fail", fault="host", finding="gpu-lost", why="GPU is lost")
SHM_TOO_SMALL = check("x", status="fail", fault="host", finding="shm-too-small", why="Bus error")
IMAGE_REMARK = HOST_REMARK.model_copy(update={"fault": "image"})


@pytest.mark.parametrize(
    ("more", "remarks", "verdict", "exit_", "exit_partial"),
    [
        ((), (), "pass", Exit.OK, Exit.OK),
        ((FAILING,), (), "fail", Exit.DOES_NOT_HOLD, Exit.DOES_NOT_HOLD),
        ((NOT_RUN,), (), "inconclusive", Exit.INCONCLUSIVE, Exit.OK),
        ((FAILING, NOT_RUN), (), "fail", Exit.DOES_NOT_HOLD, Exit.DOES_NOT_HOLD),
        ((NOT_RUN,), (HOST_REMARK,), "host-not-ready", Exit.HOST, Exit.HOST),
        ((FAILING,), (HOST_REMARK,), "fail", Exit.DOES_NOT_HOLD, Exit.DOES_NOT_HOLD),
        ((GPU_LOST,), (), "host-not-ready", Exit.HOST, Exit.HOST),
        ((SHM_TOO_SMALL,), (), "fail", Exit.DOES_NOT_HOLD, Exit.DOES_NOT_HOLD),
        ((), (IMAGE_REMARK,), "fail", Exit.DOES_NOT_HOLD, Exit.DOES_NOT_HOLD),
    ],
)
def test_verdict_and_exit_status(more, remarks, verdict, exit_, exit_partial):
    made = report(*more, remarks=remarks)
    assert made.verdict == verdict
    assert made.exit_code(allow_partial=False) == exit_
    assert made.exit_code(allow_partial=True) == exit_partial


@pytest.mark.parametrize("checks", [(), CHECKS[:1]])
def test_nothing_checked_never_passes(checks):
    assert judge(checks)[0] == "inconclusive"


def test_an_operation_that_raises_under_strict_is_no_failure():
    assert judge([check("op", status="unsupported", outcome="raises")])[0] == "pass"


def test_an_operation_that_differs_where_it_may_is_named():
    verdict, summary = judge([check("op", outcome="differs")])
    assert verdict == "pass"
    assert "1 operation differs" in summary


def test_the_summary_says_what_could_not_run():
    assert "no GPU is visible here" in report(NOT_RUN).summary


def test_json_reads_back_as_the_same_report():
    made = report(FAILING, remarks=(HOST_REMARK,))
    assert parse(to_json(made).encode(), "report.json") == made


def test_json_fits_the_published_schema():
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(json.loads(to_json(report(FAILING, NOT_RUN, remarks=(HOST_REMARK,)))), json.loads(SCHEMA.read_text()))


def test_the_published_schema_is_current():
    assert json.loads(SCHEMA.read_text()) == schema(), "write envlock.report.schema_text() to it"


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"version": 2}', b"\xff", b'{"version": 1}', b"[" * 100_000])
def test_what_is_no_report_is_told(raw):
    with pytest.raises(UsageError, match="not a report"):
        parse(raw, "x.json")


def test_a_strangers_report_cannot_steer_the_terminal():
    raw = to_json(report(check("x", title="\x1b]0;owned\x07 \x9b31m", why="one\ntwo"))).encode()
    read_back = parse(raw, "x.json").checks[-1]
    assert read_back.title == "�]0;owned� �31m"
    assert read_back.why == "one\ntwo"


def test_a_folder_stands_for_the_report_in_it(tmp_path):
    (tmp_path / "report.json").write_text(to_json(report()))
    assert read(tmp_path).verdict == "pass"
    with pytest.raises(FileUnreadable):
        read(tmp_path / "missing.json")
