"""The command line as a user meets it: help, options that reach what they are for, exit statuses, JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from sample_report import FAILING, check, fingerprint, report
from stand_in_engine import StandInEngine, sample_image, sample_lock

from envlock import cli
from envlock import lock as locks
from envlock.commands import running, verifying
from envlock.engine import Output
from envlock.errors import Exit
from envlock.experiment import Experiment
from envlock.lock import LockFile
from envlock.report import to_json
from envlock.run_record import Record
from envlock.selftest_run import Options

CHECKOUT = Path(__file__).parents[2]
COMMANDS = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str, str]:
    """What the command line ends with and prints."""
    monkeypatch.setattr(sys, "argv", ["envlock", *words])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    said = capsys.readouterr()
    return int(caught.value.code or 0), said.out, said.err


@pytest.fixture
def envlock(capsys, monkeypatch):
    return lambda *words: run(capsys, monkeypatch, *map(str, words))


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_command_has_an_example_and_a_short_help(name: str):
    command = COMMANDS[name]
    assert f"envlock {name}" in command.help
    assert "Example" in command.help
    assert command.short_help
    assert len(command.short_help) < 60


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_command_that_has_results_gives_json(name: str):
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    assert ("--json" in options) == (name not in ("render", "schema"))


def test_nobody_reading_on_is_no_error():
    command = [sys.executable, "-m", "envlock", "stacks"]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == cli.CLOSED_PIPE


@pytest.fixture
def verified(monkeypatch):
    """`verify` with a report that is there already; what it was asked for comes back."""
    asked: list[tuple[str, Options]] = []
    told = {"report": report()}

    def verify(engine, image, options, progress):
        asked.append((image, options))
        return told["report"]

    monkeypatch.setattr(verifying, "connect", lambda host, quiet: None)
    monkeypatch.setattr("envlock.verify.verify", verify)
    return asked, told


def test_options_reach_the_self_test(envlock, verified):
    words = "--level strict --repeats 3 --nproc 2 --measure --group repeat --gpus 0,1 --user 1:1 --shm-size 2g --env A=b --timeout 9"
    assert envlock("verify", "image:1", *words.split())[0] == Exit.OK
    (image, options), = verified[0]  # fmt: skip
    assert image == "image:1"
    assert options == Options(
        gpus=("0", "1"), shm_size="2g", user="1:1", nproc=2, groups=("repeat",), level="strict", repeats=3, extra=("--measure",),
        timeout=9, environment={"A": "b"},
    )  # fmt: skip


def test_a_reference_is_recorded_and_held_against(envlock, verified, tmp_path):
    path = tmp_path / "reference.json"
    assert envlock("verify", "x", "--record-reference", path)[2].endswith("has 2 fingerprints\n")
    status, out, _ = envlock("verify", "x", "--reference", path, "--json")
    assert status == Exit.OK
    assert [row["status"] for row in json.loads(out)["checks"] if row["group"] == "reference"] == ["pass", "pass"]
    verified[1]["report"] = report(checks=(check("repeat.matmul", fingerprints=(fingerprint("e"),)),))
    status, out, _ = envlock("verify", "x", "--reference", tmp_path)
    assert status == Exit.DOES_NOT_HOLD
    assert "differ from those recorded on gpu-box" in out


def test_what_does_not_hold_is_no_reference(envlock, verified, tmp_path):
    verified[1]["report"] = report(FAILING)
    status, _, err = envlock("verify", "x", "--record-reference", tmp_path / "r.json")
    assert status == Exit.DOES_NOT_HOLD
    assert "no reference" in err
    assert list(tmp_path.iterdir()) == []


def test_reports_are_compared_without_an_engine(envlock, monkeypatch, tmp_path):
    monkeypatch.setattr(verifying, "connect", lambda *_: pytest.fail("no engine is needed"))
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(to_json(report()))
    status, out, _ = envlock("verify", "--compare", tmp_path / "a.json", tmp_path / "b.json", "--json")
    assert (status, json.loads(out)["outcome"]) == (Exit.OK, "equal")
    assert envlock("verify", "--compare", tmp_path / "a.json")[0] == Exit.USAGE
    assert envlock("verify", "a", "b")[0] == Exit.USAGE


@pytest.mark.parametrize("words", [("--level", "hard"), ("--env", "x"), ("--repeats", "1"), ("--reference", "absent.json")])
def test_a_wrong_option_is_told_before_anything_runs(envlock, monkeypatch, words):
    monkeypatch.setattr(verifying, "connect", lambda *_: pytest.fail("nothing may run"))
    assert envlock("verify", "x", *words)[0] == Exit.USAGE


@pytest.fixture
def experiments(monkeypatch):
    """`run` with a record that is there already; what it was asked for comes back."""
    asked: list[tuple[Experiment, Path, Record | None]] = []
    record = Record(
        verdict="identical", summary="all", command=("x",), repeat_with="envlock run", image="i", image_digest=None, lock_digest=None,
        level="", host=report().host, environment={}, started="", inputs=(), runs=(), differences=(),
    )  # fmt: skip

    def run_experiment(engine, image, experiment, folder, progress, show, expected):
        asked.append((experiment, folder, expected))
        show(Output("stdout", b"printed\n"))
        return record, ()

    monkeypatch.setattr(running, "connect", lambda host, quiet: None)
    monkeypatch.setattr("envlock.experiment.run_experiment", run_experiment)
    return asked


def test_a_command_keeps_its_own_options(envlock, experiments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "--mount src:/code --repeat 3 --metrics m.json --outputs /out --gpus none --workdir /code --network host --timeout 5 -e A=b=c"
    status, out, _ = envlock("run", *words.split(), "image:1", "--", "python", "train.py", "--gpus", "--verbose", "-e")
    (experiment, folder, expected), = experiments  # fmt: skip
    assert status == Exit.OK
    assert experiment.command == ("python", "train.py", "--gpus", "--verbose", "-e")
    assert [(str(mount.source), mount.target) for mount in experiment.mounts] == [("src", "/code")]
    assert (experiment.repeat, experiment.metrics, experiment.outputs, experiment.gpus) == (3, "m.json", "/out", ("none",))
    assert (experiment.workdir, experiment.network, experiment.timeout, experiment.environment) == ("/code", "host", 5, {"A": "b=c"})
    assert (folder, expected) == (Path("envlock-runs/1"), None)
    assert out.startswith("IDENTICAL")


def test_each_run_has_a_folder_of_its_own(tmp_path):
    assert running._next_folder(tmp_path) == tmp_path / "1"
    (tmp_path / "1").mkdir()
    assert running._next_folder(tmp_path) == tmp_path / "2"


@pytest.mark.parametrize("words", ["image", "--mount src image -- x", "--mount a:b image -- x", "--outputs / image -- x"])
def test_a_run_that_cannot_be_right(envlock, experiments, words):
    assert envlock("run", *words.split())[0] == Exit.USAGE
    assert experiments == []


def test_an_option_of_ones_own_command_needs_two_dashes(envlock):
    assert "envlock run IMAGE -- COMMAND" in envlock("run", "image", "python", "--lr", "3")[2]


def test_doctor_says_whether_this_host_can_run_a_lock(envlock, monkeypatch, tmp_path):
    from envlock.doctor import Needs

    engine = StandInEngine(sample_image(sample_lock()), sample_lock())
    monkeypatch.setattr(verifying, "connect", lambda host, quiet: engine)
    monkeypatch.setattr("envlock.host.container_runtime", lambda info, endpoint: None)
    engine.info = None
    (tmp_path / "x.lock.yaml").write_bytes(locks.dump(LockFile(lock=sample_lock(environment={}))))
    status, out, _ = envlock("doctor", tmp_path / "x.lock.yaml", "--json")
    assert json.loads(out).keys() == {"ready", "host", "findings"}
    assert status == (Exit.OK if json.loads(out)["ready"] else Exit.HOST)
    monkeypatch.setattr(verifying, "_needs_of_image", lambda engine, name: Needs(environment={"ATEN_CPU_CAPABILITY": "avx512"}))
    assert envlock("doctor", "some/image:1")[0] in (Exit.OK, Exit.HOST)


def test_doctor_without_an_engine_says_what_is_wrong(envlock, monkeypatch):
    from envlock.errors import NoEngine

    def refuse(host, quiet):
        raise NoEngine("no engine answers", where="unix:///x")

    monkeypatch.setattr(verifying, "connect", refuse)
    status, out, err = envlock("doctor")
    assert status == Exit.HOST
    assert "no-engine" in err
    assert out.startswith("host")
    assert envlock("doctor", "image:1")[0] == Exit.HOST


def test_diff_ends_with_1_where_something_differs(envlock, tmp_path):
    for name, epoch in (("a", 0), ("b", 1)):
        (tmp_path / f"{name}.lock.yaml").write_bytes(locks.dump(LockFile(lock=sample_lock(epoch=epoch))))
    a, b = tmp_path / "a.lock.yaml", tmp_path / "b.lock.yaml"
    assert envlock("diff", a, a)[0] == Exit.OK
    status, out, _ = envlock("diff", a, b, "--json")
    assert (status, json.loads(out)["changes"][0]["name"]) == (Exit.DOES_NOT_HOLD, "epoch")


@pytest.mark.parametrize("words", [("build", "x.lock.yaml", "--via", "magic"), ("reproduce", "x.lock.yaml", "--via", "magic")])
def test_a_route_that_is_none(envlock, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.lock.yaml").write_bytes(locks.dump(LockFile(lock=sample_lock())))
    monkeypatch.setattr("envlock.commands.building.connect", lambda *_: pytest.fail("nothing may be asked for"))
    status, _, err = envlock(*words)
    assert status == Exit.USAGE
    assert "ways are assemble, dockerfile" in err


@pytest.mark.parametrize(
    "words", ["pin x:y -o a --load", "pin a --rebuild", "pin --check a -o b", "pin --seal a --push r/x:y", "pin --check --seal a"]
)
def test_pin_refuses_options_that_it_would_ignore(envlock, words):
    status, _, told = envlock(*words.split())
    assert status == Exit.USAGE
    assert "[usage]" in told


@pytest.mark.parametrize("size", ["G", "0G", "45", "45X", "²G"])
def test_a_size_that_is_none(envlock, size):
    status, _, err = envlock("pin", "image", "-o", "artifact", "--split", size)
    assert status == Exit.USAGE
    assert "--split" in err
