"""The command line: quick to start, helpful, exact in its exit status, and never a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envlock import __version__

CHECKOUT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "envlock"]
COMMANDS = ("init", "check", "lock", "fetch", "render", "build", "verify", "run", "doctor", "stacks", "images", "store", "schema")
HEAVY = ("torch", "numpy", "docker", "pydantic", "jinja2", "requests", "uv", "yaml")


def envlock(*words: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "COLUMNS": "100", **more.pop("env", {})}
    return subprocess.run([*COMMAND, *map(str, words)], env=environment, capture_output=True, text=True, timeout=120, check=False, **more)


def told(done: subprocess.CompletedProcess[str], status: int) -> str:
    assert "Traceback" not in done.stderr
    assert done.returncode == status, done.stderr
    return " ".join(done.stderr.split())


def spec(folder: Path, text: str) -> Path:
    path = folder / "envlock.yaml"
    path.write_text(text)
    return path


def test_help_lists_the_commands_and_imports_nothing_heavy() -> None:
    program = "import sys; sys.argv = ['envlock', '--help']; import envlock.cli\ntry: envlock.cli.main()\nfinally: print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    for command in COMMANDS:
        assert f"  {command} " in done.stdout
    assert set(HEAVY) & set(done.stdout.splitlines()[-1].split()) == set()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    done = envlock(command, "--help")
    assert done.returncode == 0
    assert f"envlock {command}" in done.stdout.partition("Usage:")[2].partition("\n")[2]


def test_without_words_it_helps() -> None:
    assert "Usage: envlock" in envlock().stdout


def test_the_version_is_told_with_the_catalogues_digest() -> None:
    first, second = envlock("--version").stdout.splitlines()
    assert first == f"envlock {__version__}"
    assert second.startswith("catalogue sha256:")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("buidl",), "buidl"),
        (("build",), "SPEC|LOCK"),
        (("build", "x.yaml", "--jsn"), "--json"),
        (("lock", "none.yaml"), "none.yaml"),
        (("lock", "."), "."),
    ],
)
def test_wrong_usage_is_a_sentence(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    assert said in told(envlock(*words, cwd=tmp_path), 2)


def test_all_faults_of_a_spec_are_told_with_their_places(tmp_path: Path) -> None:
    path = spec(tmp_path, "nam: x\nstack: {torhc: 2.5.1}\ndeterminism: {level: strictest}\napt: Git\n")
    done = envlock("check", path)
    text = told(done, 2)
    assert "did you mean `name`?" in text
    assert "did you mean `torch`?" in text
    places = [line.split()[1] for line in done.stderr.splitlines() if line.startswith("  where:")]
    assert {"envlock.yaml:1:1", "envlock.yaml:2:9", "envlock.yaml:3:22", "envlock.yaml:4:6"} <= set(places)
    assert done.stdout == ""


def test_no_stack_fits(tmp_path: Path) -> None:
    path = spec(tmp_path, 'name: x\nstack: {torch: "2.5.1", cuda: "9.0"}\n')
    assert "9.0" in told(envlock("check", path), 3)


def test_check_prints_its_result_as_json_on_stdout_alone(tmp_path: Path) -> None:
    path = spec(tmp_path, 'name: x\nstack: {torch: "2.5.1", cuda: "12.4"}\n')
    printed = json.loads(envlock("check", path, "--json").stdout)
    assert list(printed) == ["stack", "origins", "findings"]
    assert printed["stack"]["cuda"] == "12.4"


def test_a_missing_lock(tmp_path: Path) -> None:
    path = spec(tmp_path, 'name: x\nstack: {torch: "2.5.1"}\n')
    for words in (("fetch", path), ("render", path), ("lock", path, "--check"), ("fetch", tmp_path / "none.lock.yaml")):
        assert "[lock-missing]" in told(envlock(*words), 4)


def test_no_engine(tmp_path: Path) -> None:
    for words in (("images",), ("build", "x.lock.yaml"), ("verify", "x")):
        text = told(envlock(*words, "--host", f"unix://{tmp_path}/none.sock"), 5)
        assert "[no-engine]" in text
        assert "none.sock" in text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_said_and_has_its_status(number: signal.Signals, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "slow.yaml")
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    words = [*COMMAND, "check", str(tmp_path / "slow.yaml")]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        writer = os.open(tmp_path / "slow.yaml", os.O_WRONLY)  # waits until it is being read
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        os.close(writer)
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err


def test_nobody_reads_on() -> None:
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    text = f'"{sys.executable}" -m envlock stacks | true; exit "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", text], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_colour_only_where_it_is_wanted(tmp_path: Path) -> None:
    path = spec(tmp_path, "nam: x\n")
    assert "\x1b[" not in envlock("check", path).stderr
    assert "\x1b[" in envlock("check", path, env={"FORCE_COLOR": "1", "NO_COLOR": ""}).stderr
    assert "\x1b[" not in envlock("check", path, env={"FORCE_COLOR": "1", "NO_COLOR": "1"}).stderr
