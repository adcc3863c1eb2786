"""A user's own command in a real engine: code read-only, results out, whoever the user is."""

from pathlib import Path

import pytest
from python_base import PythonBase, python_base  # noqa: F401
from relay import relayed

from envlock.engine import Engine, connect
from envlock.errors import Exit
from envlock.experiment import Experiment, Mount, run_experiment
from envlock.progress import Silent

PROGRAM = """
import json, os, random, sys
out = os.environ["ENVLOCK_OUTPUTS"]
try:
    open("/code/written", "w")
    kept = False
except OSError:
    kept = True
facts = {"code is read-only": kept, "user": os.getuid(), "links": os.listdir("/sys/class/net")}
json.dump({**facts, "image": os.environ["ENVLOCK_IMAGE_DIGEST"]}, open(f"{out}/facts.json", "w"))
os.makedirs(f"{out}/deep/folder")
open(f"{out}/deep/folder/model.bin", "wb").write(bytes(range(256)) * 8192)
if "noise" in sys.argv:
    json.dump({"loss": random.random()}, open(f"{out}/loss.json", "w"))
print("done")
sys.exit(3 if "fail" in sys.argv else 0)
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(PROGRAM)
    return tmp_path / "code"


def run(engine: Engine, base: PythonBase, code: Path, *arguments: str, **more: object):
    command = (f"python{base.python}", "/code/train.py", *arguments)
    shown: list[bytes] = []
    experiment = Experiment(command, mounts=(Mount(code, "/code"),), **more)  # type: ignore[arg-type]
    record, metrics = run_experiment(engine, base.tag, experiment, code.parent / "out", Silent(), lambda piece: shown.append(piece.data))
    return record, metrics, b"".join(shown)


@pytest.mark.parametrize("user", [None, "1234:1234"])
def test_results_come_out_and_repeat(engine, base, code, user):
    record, _, shown = run(engine, base, code, repeat=2, user=user)
    assert (record.verdict, record.exit) == ("identical", Exit.OK), record.summary
    assert (code.parent / "out/2/deep/folder/model.bin").read_bytes() == bytes(range(256)) * 8192
    facts = (code.parent / "out/1/facts.json").read_text()
    assert f'"code is read-only": true, "user": {user[:4] if user else 0}, "links": ["lo"], "image": "sha256:' in facts
    assert f'"image": "{record.image_digest}"' in facts
    assert shown == b"done\ndone\n"


def test_noise_is_found_and_summed_up(engine, base, code):
    record, metrics, _ = run(engine, base, code, "noise", repeat=3, metrics="loss.json")
    assert (record.verdict, record.exit) == ("different", Exit.DOES_NOT_HOLD)
    assert "loss.json (run 2): loss" in record.summary
    assert (metrics[0].name, len(metrics[0].values)) == ("loss", 3)


def test_a_failing_command_keeps_what_it_wrote(engine, base, code):
    record, *_ = run(engine, base, code, "fail")
    assert (record.verdict, record.runs[0].status) == ("failed", 3)
    assert (code.parent / "out/1/facts.json").exists()


def test_an_engine_over_tcp_gets_copies(engine, base, code):
    path = engine.endpoint.socket
    if path is None:
        pytest.skip("the engine is remote already")
    with relayed(path) as url, connect(url) as remote:
        record, *_ = run(remote, base, code)
    assert (record.verdict, record.host.remote) == ("done", True), record.summary
    assert (code.parent / "out/1/deep/folder/model.bin").stat().st_size == 256 * 8192
