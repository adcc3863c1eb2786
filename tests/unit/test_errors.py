"""Every error is documented; none reaches a user as a traceback; messages have one form on every kind of output."""

from __future__ import annotations

import ast
import errno
import importlib.util
import io
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from envlock import cli, console, explanations
from envlock.errors import EnvlockError, Exit, Finding, Problems, UsageError, exit_code_of
from envlock.failures import understood
from envlock.progress import Bars, Lines, Silent

CHECKOUT = Path(__file__).parents[2]
FINDING = Finding("gpu-arch", "error", "no code for 100% of it", "s.yaml:3:7", "line one\nline two", "do this")


@pytest.fixture(scope="module")
def docs() -> ModuleType:
    path = CHECKOUT / "scripts" / "errordocs.py"
    found = importlib.util.spec_from_file_location("errordocs", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["errordocs"] = module
    found.loader.exec_module(module)
    return module


def test_every_id_in_the_code_is_explained(docs: ModuleType) -> None:
    missing = docs.collect().ids - explanations.load().keys()
    assert missing == set(), "explain these in envlock/explanations.yaml, then run `python scripts/errordocs.py`"


def test_every_explained_id_is_in_the_code(docs: ModuleType) -> None:
    code = "\n".join(path.read_text() for path in sorted((CHECKOUT / "envlock").rglob("*.py")))
    composed = {"spec", "lock"}
    gone = [
        id_
        for id_ in explanations.load()
        if f'"{id_}"' not in code and not (id_.partition("-")[0] in composed | {"cudnn", "nccl"} and f'-{id_.partition("-")[2]}"' in code)
    ]
    assert gone == []


def test_no_id_is_made_in_a_way_that_the_list_cannot_read(docs: ModuleType) -> None:
    source = (
        'def f(x):\n    Finding(x + "-y", "error", "")\n    Finding("one-two", "warning", "")\n    Finding(f"{x}-three", "error", "")\n'
    )
    found = docs.Found()
    docs._read(ast.parse(source), "m.py", found)
    assert (found.severities, list(found.patterns), found.unread) == ({"one-two": {"warning"}}, ["[a-z]+\\-three"], ["m.py:2"])


def test_page_is_current(docs: ModuleType) -> None:
    assert docs.PAGE.read_text() == docs.page(), "run `python scripts/errordocs.py`"


def test_explain_names_the_nearest() -> None:
    assert explanations.explain("gpu-arch").remedy
    with pytest.raises(UsageError, match="no error") as caught:
        explanations.explain("gpu-arhc")
    assert "gpu-arch" in caught.value.hint


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "envlock", *arguments],
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONPATH": str(CHECKOUT), **environment},
        timeout=60,
    )


@pytest.mark.parametrize(
    ("arguments", "status", "id_"),
    [
        (["foo"], Exit.USAGE, "usage"),
        (["check"], Exit.USAGE, "usage"),
        (["check", "--no-such"], Exit.USAGE, "usage"),
        (["check", "/nonexistent.yaml"], Exit.USAGE, "file-unreadable"),
        (["stacks", "--gpu", "h1000"], Exit.USAGE, "gpu-unknown"),
        (["stacks", "--torch", "9.9"], Exit.NO_STACK, "no-stack"),
        (["schema", "-o", "/proc/none/x"], Exit.HOST, "system-refused"),
        (["store", "--prune", "--store", "/nonexistent"], Exit.USAGE, "usage"),
        (["explain", "nothing"], Exit.USAGE, "usage"),
        (["fetch", "/nonexistent.lock.yaml"], Exit.LOCK, "lock-missing"),
        (["init", "--from", "/nonexistent.txt"], Exit.USAGE, "file-unreadable"),
    ],
)
def test_failures_are_sentences(arguments: list[str], status: Exit, id_: str) -> None:
    done = run(*arguments)
    assert done.returncode == status, done.stderr
    assert f"[{id_}]" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_help_without_a_command() -> None:
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    assert "Commands:" in done.stdout


def test_version_names_the_catalogue() -> None:
    done = run("--version")
    assert done.stdout.splitlines()[1].startswith("catalogue sha256:")


def test_interrupt_is_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("envlock.schema.schema_text", interrupted)
    monkeypatch.setattr(sys, "argv", ["envlock", "schema"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == Exit.INTERRUPTED
    assert "run the command again" in capsys.readouterr().err


def test_our_own_fault_is_a_sentence_and_verbose_shows_where(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> str:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("envlock.schema.schema_text", broken)
    monkeypatch.setattr("envlock.tracing.show_what_runs", lambda: None)
    for arguments, traceback in ((["schema"], False), (["schema", "--verbose"], True)):
        monkeypatch.setattr(sys, "argv", ["envlock", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        assert caught.value.code == Exit.INTERNAL
        said = capsys.readouterr().err
        assert "[internal-fault]" in said
        assert ("Traceback" in said) == traceback


@pytest.mark.parametrize(
    ("error", "id_", "status"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/x"), "disk-full", Exit.HOST),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), "system-refused", Exit.HOST),
        (RecursionError("deep"), "internal-fault", Exit.INTERNAL),
        (UsageError("x"), "usage", Exit.USAGE),
        (Problems([FINDING], Exit.NO_STACK), "problems", Exit.NO_STACK),
    ],
)
def test_whatever_is_raised_is_understood(error: Exception, id_: str, status: Exit) -> None:
    found: EnvlockError = understood(error)
    assert (found.id, exit_code_of(found)) == (id_, status)


@pytest.mark.parametrize(
    ("arguments", "moved"),
    [
        (["build", "x", "--verbose"], ["--verbose", "build", "x"]),
        (["run", "i", "--", "p", "--verbose"], ["run", "i", "--", "p", "--verbose"]),
        (["build"], ["build"]),
    ],
)
def test_verbose_stands_anywhere_before_the_users_own_command(arguments: list[str], moved: list[str]) -> None:
    assert cli.verbose_first(arguments) == moved


def test_verbose_shows_programs_without_secrets() -> None:
    script = (
        "import subprocess, sys\nfrom envlock.tracing import show_what_runs\nshow_what_runs()\n"
        "subprocess.run([sys.executable, '-c', '', 'https://me:hunter2@host.invalid/simple?token=hunter2'])\n"
        "import logging\nlog = logging.getLogger('urllib3.connectionpool')\n"
        "log.debug('%s \"%s %s %s\" %s', 'https://h', 'GET', '/a?t=hunter2', 'HTTP/1.1', 200)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=CHECKOUT, timeout=60)
    assert "runs: " in done.stderr
    assert "host.invalid/simple" in done.stderr
    assert "asks: " in done.stderr
    assert "hunter2" not in done.stderr


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "coloured"),
    [
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
        (io.StringIO(), {"FORCE_COLOR": "1"}, True),
    ],
)
def test_colour_only_where_it_is_wanted(
    stream: io.StringIO, environment: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert ("\x1b[" in console.render_finding(FINDING, stream)) == coloured


@pytest.mark.parametrize(
    ("terminal", "environment", "quiet", "kind"),
    [(True, {}, False, Bars), (True, {"CI": "true"}, False, Lines), (False, {}, False, Lines), (True, {}, True, Silent)],
)
def test_progress_by_output(terminal: bool, environment: dict[str, str], quiet: bool, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stderr", Terminal() if terminal else io.StringIO())
    assert isinstance(console.progress_for(quiet), kind)


def test_annotation_for_github() -> None:
    assert console.github_annotation(FINDING) == ("::error file=s.yaml,line=3,col=7::no code for 100%25 of it line one%0Aline two do this")


def test_annotations_only_in_its_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, count in (("true", 1), ("", 0)):
        monkeypatch.setenv("GITHUB_ACTIONS", value)
        out = io.StringIO()
        console.show_findings([FINDING], out)
        assert out.getvalue().count("::error file=") == count


@pytest.mark.parametrize(("typed", "offered"), [("envlock in", "init"), ("envlock init --fo", "--force")])
def test_shell_completion_offers_commands_and_options(typed: str, offered: str) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_ENVLOCK_COMPLETE": "complete_bash"}
    assert run(**words).stdout.split() == [offered]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion_has_a_script_for(shell: str) -> None:
    assert "_ENVLOCK_COMPLETE" in run(_ENVLOCK_COMPLETE=f"source_{shell}").stdout


def test_a_real_interrupt_ends_with_a_sentence() -> None:
    script = "import sys, time, envlock.schema\nenvlock.schema.schema_text = lambda: (print('up', flush=True), time.sleep(60))\n"
    script += "sys.argv = ['envlock', 'schema']\nfrom envlock.cli import main\nmain()\n"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=CHECKOUT)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == Exit.INTERRUPTED
    assert said.strip() == "interrupted; what was finished is kept, run the command again to go on"
