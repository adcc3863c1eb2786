"""A user's own command: run in fresh containers, its results taken out, compared and recorded."""

import io
import json
import tarfile
from contextlib import contextmanager
from dataclasses import replace

import pytest
from stand_in_engine import StandInContainer, StandInEngine, sample_image, sample_lock
from test_doctor import HOST

from envlock import run_record
from envlock.engine import Endpoint, EngineInfo, Output
from envlock.errors import Exit, FileUnreadable, NoGpuRuntime, Problems, UsageError
from envlock.experiment import Experiment, Mount, copy_of, repeat_command, run_on, writable_folder
from envlock.nvidia import Nvidia
from envlock.progress import Silent

CPU_STACK = sample_lock().stack.model_copy(update={"cuda": None, "gpus": (), "driver_floor": None})
LOCK = sample_lock(stack=CPU_STACK)
NO_GPU = replace(HOST, nvidia=Nvidia())
INFO = EngineInfo("26.1", "1.45", "overlay2", "graph", "linux/amd64", ("runc",), (), "/var/lib/docker", 8, 2**34, False)


def tar(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        for name, content in files.items():
            header = tarfile.TarInfo(f"outputs/{name}")
            header.size = len(content)
            made.addfile(header, io.BytesIO(content))
    return buffer.getvalue()


class WritingEngine(StandInEngine):
    """Each container ends with the next of the results that a test gave."""

    def __init__(self, *results, url="unix:///stand-in.sock", **how):
        super().__init__(sample_image(LOCK), LOCK, **how)
        self.info, self.endpoint = INFO, Endpoint(url, "--host")
        self.results = list(results)

    @contextmanager
    def container(self, image, command, **how):
        container = StandInContainer(self, {"command": tuple(command), **how})
        if "shm_size" in how:
            self.started.append(container)
            result = tar(self.results.pop(0))
            get = container.get
            container.get = lambda path: iter([result[:700], result[700:]]) if path == how["environment"]["ENVLOCK_OUTPUTS"] else get(path)
        yield container


def run(tmp_path, engine, expected=None, **more):
    shown = []
    experiment = Experiment(("python", "train.py"), **more)
    record, metrics = run_on(NO_GPU, engine, "sample:latest", experiment, tmp_path / "out", Silent(), shown.append, expected)
    return record, metrics, shown


def test_one_run_is_recorded(tmp_path):
    engine = WritingEngine({"a/model.bin": b"x"}, prints=[Output("stdout", b"hello\n")])
    record, _, shown = run(tmp_path, engine)
    assert (record.verdict, record.exit) == ("done", Exit.OK)
    assert (tmp_path / "out/1/a/model.bin").read_bytes() == b"x"
    assert (tmp_path / "out/1.log").read_bytes() == b"hello\n" == shown[0].data
    assert run_record.read(tmp_path / "out") == record
    assert (record.image_digest, record.lock_digest) == ("sha256:" + "a" * 64, LOCK.digest)
    assert [output.path for output in record.runs[0].outputs] == ["a/model.bin"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["1", "1.log", "record.json"]


def test_the_container_is_closed_and_told_where_results_go(tmp_path):
    engine = WritingEngine({}, prints=())
    run(tmp_path, engine, environment={"A": "b"}, user="1000", workdir="/work")
    how = engine.started[0].how
    assert (how["network"], how["user"], how["workdir"], how["command"]) == ("none", "1000", "/work", ("python", "train.py"))
    assert how["environment"]["ENVLOCK_OUTPUTS"] == "/outputs"
    assert how["environment"]["A"] == "b"
    assert how["gpus"] is None


@pytest.mark.parametrize(
    ("results", "verdict", "exit_"),
    [
        ([{"m.json": b'{"a": 1}'}] * 3, "identical", Exit.OK),
        ([{"m.json": b'{"a": 1}'}, {"m.json": b'{"a":1.0}'}], "same-values", Exit.OK),
        ([{"m.json": b'{"a": 1}'}, {"m.json": b'{"a": 2}'}], "different", Exit.DOES_NOT_HOLD),
        ([{"m.json": b"1"}, {}], "different", Exit.DOES_NOT_HOLD),
        ([{}, {"m.json": b"1"}], "different", Exit.DOES_NOT_HOLD),
    ],
)
def test_repeats_are_compared(tmp_path, results, verdict, exit_):
    record, *_ = run(tmp_path, WritingEngine(*results), repeat=len(results))
    assert (record.verdict, record.exit) == (verdict, exit_)


def test_what_differs_first_is_named(tmp_path):
    record, *_ = run(tmp_path, WritingEngine({"m.json": b'{"loss": 0.5}'}, {"m.json": b'{"loss": 0.75}'}), repeat=2)
    assert "m.json (run 2): loss 0.5 against 0.75, by 0.25" in record.summary
    assert "different    m.json (run 2)" in run_record.to_text(record)


def test_a_result_is_held_against_an_earlier_record(tmp_path):
    earlier, *_ = run(tmp_path / "a", WritingEngine({"m.json": b'{"x": 1}', "gone": b""}))
    same, *_ = run(tmp_path / "b", WritingEngine({"m.json": b'{"x": 1}', "gone": b"", "new": b""}), earlier)
    assert (same.verdict, same.exit) == ("identical", Exit.OK)
    values, *_ = run(tmp_path / "c", WritingEngine({"m.json": b'{"x": 1.0}', "gone": b""}), earlier)
    assert (values.verdict, values.exit) == ("same-values", Exit.OK)
    other, *_ = run(tmp_path / "d", WritingEngine({"m.json": b'{"x": 2}'}), earlier)
    assert (other.verdict, other.exit) == ("different", Exit.DOES_NOT_HOLD)
    assert {difference.path: difference.same for difference in other.differences} == {"gone": "missing", "m.json": "different"}


def test_metrics_are_summed_up_over_repeats(tmp_path):
    results = [{"m.json": json.dumps({"acc": acc}).encode()} for acc in (0.5, 0.75)]
    record, metrics, _ = run(tmp_path, WritingEngine(*results), repeat=2, metrics="m.json")
    assert metrics[0].mean == 0.625
    assert record.metrics[0]["name"] == "acc"
    assert "acc: 0.625 ±" in run_record.to_text(record, metrics)


def test_metrics_that_were_not_written_are_told(tmp_path):
    with pytest.raises(FileUnreadable, match=r"m\.json"):
        run(tmp_path, WritingEngine({}), metrics="m.json")


def test_a_command_that_fails_stops_the_repeats(tmp_path):
    engine = WritingEngine({"a": b""}, {"a": b""}, status=3)
    record, *_ = run(tmp_path, engine, repeat=2)
    assert (record.verdict, record.exit, len(engine.started)) == ("failed", Exit.DOES_NOT_HOLD, 1)
    assert "status 3" in record.summary


def test_a_break_of_the_host_is_told_apart(tmp_path):
    printed = [Output("stderr", b"Failed to initialize NVML: Unknown Error\n")]
    record, *_ = run(tmp_path, WritingEngine({}, status=1, prints=printed))
    assert (record.verdict, record.exit, record.remarks[0].id) == ("host-not-ready", Exit.HOST, "gpu-lost")


def test_what_the_host_lacks_is_noted(tmp_path):
    engine = WritingEngine({})
    lock = sample_lock()
    engine._image, engine.files = sample_image(lock), {"/opt/envlock/lock.json": lock.json_bytes}
    record, *_ = run(tmp_path, engine)
    assert record.verdict == "done"
    assert "no-gpu" in [remark.id for remark in record.remarks]


def test_an_engine_that_refuses_is_told(tmp_path):
    record, *_ = run(tmp_path, WritingEngine({}, refuses=NoGpuRuntime("the engine cannot hand a GPU to a container")))
    assert (record.verdict, record.exit, record.runs) == ("host-not-ready", Exit.HOST, ())


def test_a_run_that_takes_too_long_is_stopped(tmp_path):
    record, *_ = run(tmp_path, WritingEngine({}, status=137, late=True), timeout=5)
    assert (record.verdict, record.remarks[0].id) == ("failed", "run-late")


@pytest.mark.parametrize("environment", [{"NVIDIA_TF32_OVERRIDE": "1"}, {"CUBLAS_WORKSPACE_CONFIG": ""}])
def test_variables_that_undo_the_level_are_refused(tmp_path, environment):
    engine = WritingEngine({})
    with pytest.raises(Problems) as caught:
        run(tmp_path, engine, environment=environment)
    assert caught.value._exit_code == Exit.USAGE
    assert engine.started == []


def test_results_of_two_runs_never_mix(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").touch()
    with pytest.raises(UsageError, match="not empty"):
        run(tmp_path, WritingEngine({}))


def test_inputs_are_recorded_by_their_content(tmp_path):
    code = tmp_path / "code"
    (code / "sub").mkdir(parents=True)
    (code / "train.py").write_text("print()")
    (code / "sub" / "x").write_text("x")
    mount = Mount(code, "/code")
    first, *_ = run(tmp_path / "a", WritingEngine({}), mounts=(mount,))
    second, *_ = run(tmp_path / "b", WritingEngine({}), mounts=(mount,))
    (code / "sub" / "x").write_text("y")
    third, *_ = run(tmp_path / "c", WritingEngine({}), mounts=(mount,))
    assert first.inputs == second.inputs != third.inputs
    assert (first.inputs[0].target, first.inputs[0].files) == ("/code", 2)
    with pytest.raises(UsageError, match="does not exist"):
        run(tmp_path / "d", WritingEngine({}), mounts=(Mount(tmp_path / "missing", "/x"),))


def test_a_remote_engine_gets_copies(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print()")
    engine = WritingEngine({}, url="tcp://10.0.0.5:2376")
    run(tmp_path, engine, mounts=(Mount(tmp_path / "code", "/code"),))
    assert engine.started[0].how["binds"] == []
    assert b"code/train.py" in engine.started[0].copied


def test_copies_do_not_carry_this_hosts_users(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "file").chmod(0o600)
    with tarfile.open(fileobj=io.BytesIO(b"".join(copy_of(Mount(tmp_path / "file", "/data/file"))))) as made:
        (member,) = made.getmembers()
    assert (member.name, member.uid, member.uname, oct(member.mode)) == ("data/file", 0, "", "0o644")


@pytest.mark.parametrize("name", ["../../escaped", "/etc/escaped", "a/../../escaped"])
def test_results_cannot_leave_their_folder(tmp_path, name):
    run(tmp_path, WritingEngine({name: b"x", "fine": b""}))
    assert all(tmp_path / "out/1" in path.parents for path in tmp_path.rglob("escaped"))
    assert not (tmp_path.parent / "escaped").exists()
    assert (tmp_path / "out/1/fine").exists()


def test_the_outputs_folder_is_for_everybody():
    with tarfile.open(fileobj=io.BytesIO(writable_folder("/outputs"))) as made:
        (member,) = made.getmembers()
    assert (member.name, member.isdir(), oct(member.mode)) == ("outputs", True, "0o1777")


def test_the_command_repeats_the_run(tmp_path):
    experiment = Experiment(("python", "a b.py"), mounts=(Mount(tmp_path, "/code"),), repeat=3, environment={"A": "1"}, metrics="m.json")
    expected = f"envlock run --mount {tmp_path}:/code --repeat 3 --metrics m.json --env A=1 x:1 -- python 'a b.py'"
    assert repeat_command("x:1", experiment) == expected


def test_what_is_no_record_is_told(tmp_path):
    (tmp_path / "record.json").write_text("{}")
    with pytest.raises(UsageError, match="not the record"):
        run_record.read(tmp_path)
    with pytest.raises(FileUnreadable):
        run_record.read(tmp_path / "missing.json")
