"""What people read: one form for every finding, colour only where it is wanted, JSON and tables."""

from __future__ import annotations

import io
import json

import pytest

from envlock import console
from envlock.errors import Finding
from envlock.progress import Bars, Lines, Silent, human_bytes

FINDING = Finding("file-gone", "error", "torch 2.5.1 is gone", "x.yaml:3:5", "no source has it", "lock the spec again")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "CI", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_the_form_of_a_finding() -> None:
    assert console.render_finding(FINDING, io.StringIO()).splitlines() == [
        "error: torch 2.5.1 is gone  [file-gone]",
        "  where: x.yaml:3:5",
        "  why:   no source has it",
        "  do:    lock the spec again",
    ]
    assert console.render_finding(Finding("x", "warning", "what"), io.StringIO()) == "warning: what  [x]"


def test_long_text_is_wrapped_but_paths_and_hashes_are_not_broken() -> None:
    path = "/a" * 80
    rendered = console.render_finding(Finding("x", "error", "what", path, f"{'word ' * 40}{'f' * 64}"), io.StringIO())
    assert f"  where: {path}" in rendered.splitlines()
    assert any("f" * 64 in line for line in rendered.splitlines())
    assert all(len(line) <= 110 for line in rendered.splitlines() if path not in line)


def test_lines_of_a_cause_stay_lines() -> None:
    rendered = console.render_finding(Finding("x", "error", "what", why="-a\n+b"), io.StringIO())
    assert rendered.splitlines()[1:] == ["  why:   -a", "         +b"]


@pytest.mark.parametrize(
    ("stream", "settings", "wanted"),
    [
        (Terminal(), {}, True),
        (io.StringIO(), {}, False),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"FORCE_COLOR": "1"}, True),
        (Terminal(), {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
    ],
)
def test_colour_where_it_is_wanted(stream: io.StringIO, settings: dict[str, str], wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert ("\x1b[" in console.render_finding(FINDING, stream)) == wanted


@pytest.mark.parametrize(
    ("terminal", "settings", "kind"),
    [(True, {}, Bars), (True, {"CI": "true"}, Lines), (True, {"TERM": "dumb"}, Lines), (False, {}, Lines)],
)
def test_bars_on_a_terminal_and_lines_elsewhere(
    terminal: bool, settings: dict[str, str], kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stderr", Terminal() if terminal else io.StringIO())
    assert type(console.progress_for(quiet=False)) is kind
    assert type(console.progress_for(quiet=True)) is Silent


def test_annotations_for_githubs_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    assert console.github_annotation(FINDING) == (
        "::error file=x.yaml,line=3,col=5::torch 2.5.1 is gone no source has it lock the spec again"
    )
    assert console.github_annotation(Finding("x", "info", "100%\nmore", "step")) == "::notice::100%25%0Amore"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    out = io.StringIO()
    console.show_findings([FINDING], out)
    assert out.getvalue().splitlines()[-1].startswith("::error file=")


def test_a_finding_as_data_has_only_what_is_there() -> None:
    assert console.finding_data(Finding("x", "info", "what", hint="do")) == {"id": "x", "severity": "info", "what": "what", "hint": "do"}


def test_a_table() -> None:
    assert console.table([("a", "1"), ("long one", "22")], ("NAME", "N")) == "NAME      N\na         1\nlong one  22"


def test_json_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_json({"é": [1]})
    out = capsys.readouterr().out
    assert json.loads(out) == {"é": [1]}
    assert "é" in out


def test_plain_lines_tell_bytes_and_seconds() -> None:
    out = io.StringIO()
    with Lines(out).track("fetched torch", 3_000_000) as advance:
        advance(1_000_000)
        advance(2_000_000)
    assert out.getvalue().startswith("fetched torch  3.0 MB  0.0 s")


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2_900_000_000, "2.9 GB"), (10**13, "10000.0 GB")]
)
def test_byte_counts_as_people_read_them(count: int, text: str) -> None:
    assert human_bytes(count) == text
