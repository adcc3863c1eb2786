"""How the self-test's container really is: no network, read-only root, scratch to write and execute in, shared memory, user.

A small program takes the self-test's place in the image and says what it finds there.
"""

import hashlib
import io
import os
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import tar_of
from python_base import PythonBase, python_base  # noqa: F401
from relay import relayed
from stand_in_nvidia import NvidiaEngine, nvidia_engine, why_not

from envlock.config import LOCK_LABEL
from envlock.engine import Engine, connect
from envlock.errors import Exit
from envlock.host import Host, container_runtime, read_host
from envlock.image import Settings, make_image
from envlock.layers import Layer
from envlock.nvidia import Gpu, Nvidia
from envlock.progress import Silent
from envlock.report import Report
from envlock.selftest_run import Options
from envlock.verify import verify, verify_on

sys.path.append(str(Path(__file__).parents[1] / "unit"))
from stand_in_engine import sample_lock

TAG = f"envlock-test-verify:{os.getpid()}"
PROGRAM = b"""
import json, os, subprocess, sys, time
def tell(event, **more): print(json.dumps({"event": event, **more}), flush=True)
def writable(path):
    try: open(path, "w").close(); return True
    except OSError: return False
def runs(path):
    open(path, "w").write("#!/bin/sh\\nexit 7\\n"); os.chmod(path, 0o755)
    return subprocess.run([path]).returncode == 7
shared = os.statvfs("/dev/shm")
facts = {"user": os.getuid(), "root": writable("/x"), "tmp": writable("/tmp/x"), "runs": runs("/tmp/y"),
         "links": sorted(os.listdir("/sys/class/net")), "shm": shared.f_frsize * shared.f_blocks,
         "inductor": os.environ.get("TORCHINDUCTOR_CACHE_DIR"), "arguments": sys.argv[1:],
         "visible": os.environ.get("NVIDIA_VISIBLE_DEVICES")}
checks = [{"id": name, "group": "g", "title": name, "needs": []} for name in ("one", "two")]
tell("start", selftest="1", settings={"level": "strict"}, facts={"gpus": []}, checks=checks)
tell("check", **checks[0], status="pass", evidence=facts)
print("a library's narration", file=sys.stderr)
if os.environ.get("ODD") == "die": os._exit(137)  # as a killed process is reported; the first process of a container cannot kill itself
if os.environ.get("ODD") == "hang": time.sleep(600)
tell("check", **checks[1], status="pass")
tell("report", facts={}, measurements={})
"""
LAUNCHER = b'#!/bin/sh\nexec python%b "$@"\n'


def world_writable(folder: str) -> bytes:
    """A folder as every distribution has /tmp; engines give a tmpfs on it the same mode."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        header = tarfile.TarInfo(folder)
        header.type, header.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(header)
    return buffer.getvalue()


def layer_of(raw: bytes, folder: Path) -> tuple[Layer, Path]:
    digest = hashlib.sha256(raw).hexdigest()
    (folder / digest).write_bytes(raw)
    return Layer(f"sha256:{digest}", len(raw), "for a test"), folder / digest


@pytest.fixture(scope="module")
def parts(engine: Engine, base: PythonBase) -> list[bytes]:
    """The layers of an image that looks like one of ours, its lock left out."""
    files = {
        "opt/envlock/lib/envlock/__init__.py": b"",
        "opt/envlock/lib/envlock/selftest/__init__.py": b"",
        "opt/envlock/lib/envlock/selftest/__main__.py": PROGRAM,
    }
    launcher = LAUNCHER % base.python.encode()
    exported = b"".join(engine.export(base.tag))
    return [exported, tar_of(files), tar_of({"opt/venv/bin/python": launcher}, mode=0o755), world_writable("tmp")]


@contextmanager
def loaded(engine: Engine, parts: list[bytes], folder: Path, cuda: str | None = None) -> Iterator[str]:
    """Such an image in an engine, by its tag."""
    environment = {"PATH": "/opt/venv/bin:/usr/bin:/bin", "PYTHONPATH": "/opt/envlock/lib", "PYTHONHASHSEED": "0"}
    stack = sample_lock().stack.model_copy(update={"cuda": cuda, "gpus": (), "driver_floor": None, "platform": engine.platform})
    lock = sample_lock(environment=environment, stack=stack)
    made = [layer_of(part, folder) for part in [*parts, tar_of({"opt/envlock/lock.json": lock.json_bytes})]]
    paths = {layer.diff_id: path for layer, path in made}
    settings = Settings(engine.platform, 0, environment, {LOCK_LABEL: lock.digest}, command=("python",))
    engine.load(make_image([layer for layer, _ in made], settings), [TAG], lambda layer: paths[layer.diff_id].open("rb"), Silent())
    try:
        yield TAG
    finally:
        engine.untag(TAG)


@pytest.fixture(scope="module")
def image(engine: Engine, parts: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Such an image in this host's engine."""
    with loaded(engine, parts, tmp_path_factory.mktemp("verify")) as tag:
        yield tag


def seen(report: Report) -> dict:
    return next(check.evidence for check in report.checks if check.id == "one")


def test_the_container_is_closed_and_has_room_to_work(engine, image):
    report = verify(engine, image, Options(shm_size="96m", nproc=2), Silent())
    assert report.verdict == "pass", report.summary
    found = seen(report)
    assert (found["root"], found["tmp"], found["runs"], found["links"]) == (False, True, True, ["lo"])
    assert found["shm"] == 96 * 2**20
    assert found["inductor"] == "/tmp/inductor"
    assert found["arguments"] == ["--nproc", "2"]
    assert [check.id for check in report.checks] == ["image.lock", "image.environment", "one", "two"]


def test_another_user_can_run_it(engine, image):
    report = verify(engine, image, Options(user="1234:1234"), Silent())
    found = seen(report)
    assert (found["user"], found["tmp"], found["runs"]) == (1234, True, True)


def test_a_killed_self_test_keeps_its_first_results(engine, image):
    report = verify(engine, image, Options(environment={"ODD": "die"}), Silent())
    assert [check.status for check in report.checks if check.group == "g"] == ["pass", "not-run"]
    assert report.remarks[-1].id == "out-of-memory"
    assert report.exit_code(allow_partial=True) == Exit.HOST


def test_a_hanging_self_test_is_stopped(engine, image):
    report = verify(engine, image, Options(environment={"ODD": "hang"}, timeout=5), Silent())
    assert report.remarks[-1].id == "selftest-late"
    assert report.verdict == "inconclusive"


def test_an_image_without_torch_is_told(engine, base):
    report = verify(engine, base.tag, Options(), Silent())
    assert [remark.id for remark in report.remarks if remark.severity == "error"] == ["torch-missing"]


def test_an_image_without_a_shell_is_told(engine, tmp_path):
    layer, path = layer_of(tar_of({"file": b"nothing runs here"}), tmp_path)
    tag = f"{TAG}-empty"
    engine.load(make_image([layer], Settings(engine.platform, 0, {}, {})), [tag], lambda _: path.open("rb"), Silent())
    try:
        report = verify(engine, tag, Options(), Silent())
    finally:
        engine.untag(tag)
    assert report.exit_code(allow_partial=True) == Exit.DOES_NOT_HOLD
    assert report.remarks[-1].id == "program-missing"


def test_an_engine_over_tcp_runs_it_too(engine, image):
    if engine.endpoint.socket is None:
        pytest.skip("the engine is remote already")
    with relayed(engine.endpoint.socket) as url, connect(url) as remote:
        report = verify(remote, image, Options(), Silent())
    assert (report.verdict, report.host.remote) == ("pass", True), report.summary


def with_gpu(engine: Engine) -> Host:
    """This host as if it had a GPU: what a driver would tell, for an engine that is asked for real."""
    host = read_host(container_runtime(engine.info, engine.endpoint))
    return replace(host, nvidia=Nvidia("550.54.15", "12.4", (Gpu(0, "NVIDIA H100 80GB HBM3", "GPU-1", capability="9.0"),), "nvml"))


def test_an_engine_without_nvidias_hook_is_the_hosts_matter(engine, parts, tmp_path):
    host = with_gpu(engine)
    runtime = replace(host.runtime, nvidia_runtime=True)
    with loaded(engine, parts, tmp_path, cuda="12.4") as tag:
        report = verify_on(replace(host, runtime=runtime), engine, tag, Options(), Silent())
    assert "no-gpu-runtime" in [remark.id for remark in report.remarks]
    assert report.exit_code(allow_partial=True) == Exit.HOST


@pytest.fixture(scope="module")
def nvidia() -> Iterator[NvidiaEngine]:
    if reason := why_not():
        pytest.skip(reason)
    with nvidia_engine() as running:
        yield running


REFUSALS = {
    "": None,
    "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4, please update your driver": "requirement-unsatisfied",
    "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch": "driver-library-mismatch",
    "nvidia-container-cli: initialization error: nvml error: driver not loaded": "driver-not-loaded",
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_gpus_are_asked_for_and_refusals_understood(nvidia, parts, tmp_path, monkeypatch, refusal):
    nvidia.refuse(refusal)
    monkeypatch.setenv("PATH", f"{nvidia.folder}:{os.environ['PATH']}")
    with connect(nvidia.url) as engine, loaded(engine, parts, tmp_path, cuda="12.4") as tag:
        report = verify_on(with_gpu(engine), engine, tag, Options(), Silent())
    assert nvidia.asked
    errors = [remark.id for remark in report.remarks if remark.severity == "error"]
    if refusal:
        assert errors == [REFUSALS[refusal]]
        assert report.exit_code(allow_partial=True) == Exit.HOST
    else:
        assert errors == []
        assert seen(report)["visible"] == "all"
        assert report.run.gpus == "nvidia"
