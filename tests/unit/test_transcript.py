"""A self-test's output is read as it comes, and nothing that an image prints can break or fill the reader."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envlock.transcript import MOST_CHECKS, MOST_LINE, MOST_STRAY, MOST_TEXT, Begun, Done, Started, Transcript

PLANNED = [{"id": "a", "group": "g", "title": "A", "proves": "p", "needs": []}, {"id": "b", "group": "g", "title": "B", "needs": ["gpu"]}]
START = {"event": "start", "selftest": "1", "settings": {"level": "strict"}, "facts": {"torch": "2.5.1"}, "checks": PLANNED}
FINGERPRINT = {"name": "sum", "value": "0" * 64, "depends": {"level": "strict"}}
CHECK = {
    "event": "check",
    "id": "a",
    "group": "g",
    "title": "A",
    "needs": [],
    "status": "pass",
    "outcome": "equal",
    "seconds": 1.5,
    "fingerprints": [FINGERPRINT],
}
REPORT = {"event": "report", "facts": {"torch": "2.5.1"}, "measurements": {"cost": [{"name": "x", "ratio": 1.5}]}}


def lines(*events):
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def read(data, size=None):
    transcript = Transcript(device="cuda:0")
    size = size or max(len(data), 1)
    events = [event for start in range(0, len(data), size) for event in transcript.feed(data[start : start + size])]
    return transcript, events


@pytest.mark.parametrize("size", [1, 7, 4096, None])
def test_events_come_out_whole_however_they_arrive(size):
    transcript, events = read(lines(START, {"event": "begin", "id": "a"}, CHECK, REPORT), size)
    assert [type(event) for event in events] == [Started, Begun, Done]
    assert transcript.finished
    assert transcript.checks["a"].outcome == "equal"
    assert transcript.checks["a"].fingerprints[0].depends == {"level": "strict"}
    assert transcript.measurements == {"cost": [{"name": "x", "ratio": 1.5}]}


def test_checks_that_need_a_gpu_are_placed_on_it():
    transcript, _ = read(lines(START))
    assert [check.device for check in transcript.started.planned] == ["cpu", "cuda:0"]


def test_a_stream_that_is_cut_off_keeps_what_was_said():
    transcript, _ = read(lines(START, CHECK, {"event": "begin", "id": "b"}) + b'{"event": "check", "id": "b", "sta')
    assert not transcript.finished
    assert list(transcript.checks) == ["a"]
    assert transcript.running == "b"


def test_unknown_events_and_keys_are_passed_over():
    transcript, events = read(lines({"event": "new", "x": 1}, {**CHECK, "colour": "red"}))
    assert [type(event) for event in events] == [Done]
    assert transcript.stray == b""


def test_other_output_is_kept_for_the_diagnosis():
    transcript, events = read(b"Traceback (most recent call last):\nImportError: libcudnn.so.9: cannot open shared object file\n")
    assert events == []
    assert b"libcudnn.so.9" in transcript.stray


def test_an_unknown_status_is_a_failure_not_a_pass():
    transcript, _ = read(lines({**CHECK, "status": "splendid"}))
    assert transcript.checks["a"].status == "fail"


def test_endless_lines_and_texts_are_bounded():
    transcript = Transcript()
    for _ in range(40):
        assert list(transcript.feed(b"x" * 2**20)) == []
    assert len(transcript._rest) <= MOST_LINE + 2**20
    assert len(transcript.stray) <= MOST_STRAY
    (done,) = [event for event in transcript.feed(b"\n" + lines({**CHECK, "why": "y" * 10**6})) if isinstance(event, Done)]
    assert len(done.check.why) == MOST_TEXT + 1


def test_endless_checks_are_bounded():
    transcript = Transcript()
    for start in range(0, MOST_CHECKS + 500, 500):
        list(transcript.feed(lines(*({**CHECK, "id": str(number)} for number in range(start, start + 500)))))
    assert len(transcript.checks) == MOST_CHECKS


def test_deep_and_wide_data_is_bounded():
    deep = json.loads("[" * 50 + "]" * 50)
    transcript, _ = read(lines({**CHECK, "evidence": {"deep": deep, "wide": list(range(10**5))}}))
    evidence = transcript.checks["a"].evidence
    assert len(evidence["wide"]) == 2000
    assert str(evidence["deep"]).count("[") < 10


@pytest.mark.parametrize(
    "line", [b"{" * 100_000, b'{"event": "check"}', b'{"event": "check", "id": 5}', b'{"event": "start", "checks": 5}', b"{}", b"null"]
)
def test_malformed_lines_are_no_checks(line):
    transcript, _ = read(line + b"\n")
    assert transcript.checks == {}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=5,
)


@given(st.fixed_dictionaries({}, optional={key: json_values for key in CHECK if key not in ("event", "id")}))
def test_any_check_line_gives_a_check(fields):
    transcript, _ = read(json.dumps({**fields, "event": "check", "id": "a"}).encode() + b"\n")
    assert transcript.checks["a"].model_dump_json()


@given(st.binary(max_size=500))
def test_any_bytes_are_read(data):
    read(data, 13)
