"""An image is verified as it is; the image's faults and the host's are told apart; what was seen before a break still counts."""

from dataclasses import replace

import pytest
from stand_in_engine import ENVIRONMENT, StandInEngine, lines, sample_image, sample_lock
from test_doctor import H100, HOST, RUNTIME

from envlock.config import LOCK_LABEL
from envlock.engine import Gpus, Output
from envlock.errors import Exit, ImageMissing, NoGpuRuntime, WrongPlatform
from envlock.nvidia import Nvidia
from envlock.progress import Silent
from envlock.selftest_run import NO_TORCH, Options, selftest_arguments
from envlock.verify import repeat_command, verify_on

LOCK = sample_lock()
USUAL = Options()
GPU = {"index": 0, "model": "NVIDIA H100 80GB HBM3", "capability": "9.0", "sm_count": 132, "memory": 85520809984, "mig": "none"}
FACTS = {"python": "3.11.2", "torch": "2.5.1+cu124", "cuda": "12.4", "numpy": "1.26.4", "driver": "550.54.15", "gpus": [GPU]}
PLANNED = [
    {"id": "repeat.cpu", "group": "repeatability", "title": "Sum", "proves": "…", "needs": []},
    {"id": "repeat.gpu", "group": "repeatability", "title": "Sum on a GPU", "proves": "…", "needs": ["gpu"]},
    {"id": "seeds.gpu", "group": "seeds", "title": "Numbers on a GPU", "proves": "…", "needs": ["gpu"]},
]
START = {"event": "start", "protocol": 1, "selftest": "1", "settings": {"level": "strict"}, "facts": FACTS, "checks": PLANNED}
END = {"event": "report", "facts": FACTS, "measurements": {}}
FINGERPRINT = {"name": "sum", "value": "0" * 64, "depends": {"level": "strict", "selftest": "1"}}


def done(number, status="pass", **more):
    return {"event": "check", **PLANNED[number], "status": status, "outcome": None, "fingerprints": [FINGERPRINT], "seconds": 0.1, **more}


def run(*events, host=HOST, lock=LOCK, image=None, options=USUAL, **how):
    engine = StandInEngine(image or sample_image(lock), lock, prints=[lines(*events)] if events else how.pop("prints", ()), **how)
    report = verify_on(host, engine, "sample:latest", options, Silent())
    return report, engine


def statuses(report):
    return {check.id: check.status for check in report.checks}


def exit_of(report, allow_partial=False):
    return report.exit_code(allow_partial=allow_partial)


ALL_GOOD = (START, done(0), done(1), done(2), END)


def test_a_sound_image_holds():
    report, _ = run(*ALL_GOOD)
    assert report.verdict == "pass"
    assert statuses(report) == dict.fromkeys(("image.lock", "image.environment", "repeat.cpu", "repeat.gpu", "seeds.gpu"), "pass")
    assert report.image.lock_digest == LOCK.digest
    assert report.image.image_digest == "sha256:" + "a" * 64
    assert (report.host.driver, report.host.gpus[0].name, report.host.gpus[0].sm_count) == ("550.54.15", "NVIDIA H100 80GB HBM3", 132)
    assert (report.run.selftest, report.image.level) == ("1", "strict")


def test_fingerprints_are_tied_to_the_image():
    report, _ = run(*ALL_GOOD)
    check = next(check for check in report.checks if check.id == "repeat.gpu")
    assert check.fingerprints[0].depends == {"level": "strict", "selftest": "1", "image": "sha256:" + "a" * 64}
    assert check.device == "cuda:0"


def test_the_container_has_no_network_a_read_only_root_and_its_own_scratch_folder():
    _, engine = run(*ALL_GOOD, options=Options(shm_size="2g", user="1000:1000", environment={"X": "1"}))
    how = engine.started[0].how
    assert (how["network"], how["read_only"], how["shm_size"], how["user"]) == ("none", True, "2g", "1000:1000")
    assert "exec" in how["tmpfs"]["/tmp"].split(",")
    assert how["environment"] == {"TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor", "TRITON_CACHE_DIR": "/tmp/triton", "X": "1"}
    assert how["gpus"] == Gpus(("all",), "nvidia")
    assert engine.started[0].copied == b""


def test_shared_memory_is_what_the_spec_asked_for():
    lock = sample_lock(run={"shm_size": "8g"})
    _, engine = run(*ALL_GOOD, lock=lock)
    assert engine.started[0].how["shm_size"] == "8g"


def test_an_image_of_somebody_else_gets_the_self_test():
    report, engine = run(*ALL_GOOD, lock=None)
    assert b"envlock-selftest/envlock/selftest/protocol.py" in engine.started[0].copied
    assert engine.started[0].how["entrypoint"][0] == "sh"
    assert report.image.lock_digest is None
    assert report.verdict == "pass"


def test_a_lock_that_is_not_the_labels_fails():
    image = sample_image(LOCK, labels={LOCK_LABEL: "sha256:" + "9" * 64})
    report, _ = run(*ALL_GOOD, image=image)
    assert statuses(report)["image.lock"] == "fail"
    assert exit_of(report) == Exit.DOES_NOT_HOLD


def test_a_label_without_a_lock_fails():
    engine = StandInEngine(sample_image(LOCK), prints=[lines(*ALL_GOOD)])
    report = verify_on(HOST, engine, "sample:latest", Options(), Silent())
    assert statuses(report)["image.lock"] == "fail"


@pytest.mark.parametrize("value", ["", ":4096:8 ", None])
def test_an_environment_that_is_not_the_locked_one_fails(value):
    environment = {**ENVIRONMENT, "CUBLAS_WORKSPACE_CONFIG": value} if value is not None else {"PATH": ENVIRONMENT["PATH"]}
    report, _ = run(*ALL_GOOD, image=sample_image(LOCK, environment=environment))
    assert statuses(report)["image.environment"] == "fail"
    assert not all(variable.holds for variable in report.environment)
    assert exit_of(report) == Exit.DOES_NOT_HOLD


def test_gpu_checks_that_could_not_run_make_it_inconclusive():
    no_gpu = replace(HOST, nvidia=Nvidia())
    missing = {"status": "not-run", "fault": "host", "why": "no GPU is visible here"}
    report, engine = run(START, done(0), done(1, **missing), done(2, **missing), END, host=no_gpu)
    assert engine.started[0].how["gpus"] is None
    assert report.verdict == "inconclusive"
    assert exit_of(report) == Exit.INCONCLUSIVE
    assert exit_of(report, allow_partial=True) == Exit.OK
    assert [remark.id for remark in report.remarks] == ["no-gpu"]


def test_a_host_that_cannot_run_it_is_told_before_a_container_starts():
    old = replace(HOST, nvidia=replace(HOST.nvidia, driver="470.82", cuda="11.4"))
    report, engine = run(*ALL_GOOD, host=old)
    assert engine.started == []
    assert report.verdict == "host-not-ready"
    assert exit_of(report, allow_partial=True) == Exit.HOST


def test_an_engine_that_cannot_give_gpus_is_the_hosts_matter():
    report, _ = run(refuses=NoGpuRuntime("the engine cannot hand a GPU to a container"))
    assert exit_of(report) == Exit.HOST


def test_an_image_for_another_processor_is_the_images_matter():
    report, _ = run(refuses=WrongPlatform("the image is for another processor"))
    assert exit_of(report) == Exit.DOES_NOT_HOLD


def test_under_emulation_no_gpu_is_asked_for():
    lock = sample_lock(stack=LOCK.stack.model_copy(update={"platform": "linux/arm64"}))
    missing = {"status": "not-run", "fault": "host", "why": "no GPU is visible here"}
    report, engine = run(START, done(0), done(1, **missing), done(2, **missing), END, lock=lock)
    assert engine.started[0].how["gpus"] is None
    assert exit_of(report) == Exit.INCONCLUSIVE
    assert "wrong-platform" in [remark.id for remark in report.remarks]


def test_a_gpu_that_is_lost_half_way_keeps_what_was_seen():
    lost = done(
        1, "fail", outcome="crashed", finding="check-crashed", fault="image", why="RuntimeError", evidence={"printed": "GPU is lost"}
    )
    report, _ = run(START, done(0), lost, done(2, "fail", fault="host", finding="gpu-lost", why="GPU is lost"), END)
    assert statuses(report)["repeat.cpu"] == "pass"
    failed = next(check for check in report.checks if check.id == "repeat.gpu")
    assert (failed.finding, failed.fault) == ("gpu-lost", "host")
    assert exit_of(report) == Exit.HOST


def test_a_container_that_dies_half_way_keeps_what_was_seen():
    report, _ = run(START, done(0), {"event": "begin", "id": "repeat.gpu"}, status=137)
    assert statuses(report)["repeat.cpu"] == "pass"
    assert statuses(report)["repeat.gpu"] == "not-run"
    assert [remark.id for remark in report.remarks] == ["out-of-memory"]
    assert exit_of(report) == Exit.HOST


@pytest.mark.parametrize(("targets", "fault"), [(("sm_90",), "image"), (("sm_80",), "host"), ((), "image")])
def test_code_that_lacks_the_gpu_is_the_hosts_matter_outside_the_targets(targets, fault):
    lock = sample_lock(stack=LOCK.stack.model_copy(update={"gpus": targets}))
    crashed = {"outcome": "crashed", "finding": "check-crashed", "fault": "image"}
    why = "CUDA error: no kernel image is available for execution on the device"
    report, _ = run(START, done(0), done(1, "fail", **crashed, why=why), done(2), END, lock=lock)
    failed = next(check for check in report.checks if check.status == "fail")
    assert (failed.finding, failed.fault) == ("no-kernel-image", fault)
    assert exit_of(report) == Exit.DOES_NOT_HOLD


def test_torch_that_cannot_start_is_diagnosed():
    piece = Output("stderr", b"ImportError: libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12\n")
    report, _ = run(prints=[piece], status=1)
    (remark,) = report.remarks
    assert (remark.id, remark.fault) == ("nvjitlink-shadowed", "image")
    assert exit_of(report) == Exit.DOES_NOT_HOLD


def test_an_unknown_break_shows_what_was_printed_last():
    report, _ = run(prints=[b"SyntaxError: odd\n"], status=1)
    assert "SyntaxError: odd" in report.remarks[0].why
    assert exit_of(report) == Exit.DOES_NOT_HOLD


def test_an_image_without_torch_is_told():
    report, _ = run(prints=[], status=NO_TORCH, lock=None)
    assert [remark.id for remark in report.remarks if remark.severity == "error"] == ["torch-missing"]


def test_a_self_test_that_takes_too_long_is_stopped_and_not_passed():
    report, _ = run(START, done(0), status=137, late=True)
    assert report.verdict == "inconclusive"
    assert "selftest-late" in [remark.id for remark in report.remarks]


def test_devices_are_tested_one_after_the_other():
    host = replace(HOST, nvidia=replace(HOST.nvidia, gpus=(H100, replace(H100, index=1, uuid="GPU-2"))))
    report, engine = run(*ALL_GOOD, host=host, options=Options(gpus=("0", "1")))
    assert [container.how["gpus"] for container in engine.started] == [Gpus(("0",), "nvidia"), Gpus(("1",), "nvidia")]
    assert [(check.id, check.device) for check in report.checks if check.device != "cpu"] == [
        ("repeat.gpu", "cuda:0"), ("seeds.gpu", "cuda:0"), ("repeat.gpu", "cuda:1"), ("seeds.gpu", "cuda:1"),
    ]  # fmt: skip
    assert [(gpu.device, gpu.uuid) for gpu in report.host.gpus] == [("cuda:0", "GPU-1"), ("cuda:1", "GPU-2")]


@pytest.mark.parametrize("gpus", ["all", "0"])
def test_gpus_asked_for_by_name_are_requested_in_any_case(gpus):
    host = replace(HOST, nvidia=Nvidia(), runtime=replace(RUNTIME, nvidia_runtime=False))
    _, engine = run(*ALL_GOOD, host=host, options=Options(gpus=(gpus,)))
    assert engine.started[0].how["gpus"] == Gpus((gpus,), "nvidia")


def test_cdi_is_used_where_there_is_no_hook():
    host = replace(HOST, runtime=replace(RUNTIME, nvidia_runtime=False, cdi_devices=("nvidia.com/gpu=all",)))
    _, engine = run(*ALL_GOOD, host=host)
    assert engine.started[0].how["gpus"] == Gpus(("all",), "cdi")


def test_a_missing_image_is_told():
    engine = StandInEngine(sample_image())
    with pytest.raises(ImageMissing):
        verify_on(HOST, engine, "other:latest", Options(), Silent())


def test_the_command_repeats_the_run():
    options = Options(gpus=("none",), shm_size="2g", level="seeded", nproc=4, groups=("seeds",), environment={"A": "b c"})
    assert (
        repeat_command("x:1", options)
        == "envlock verify x:1 --gpus none --shm-size 2g --level seeded --nproc 4 --group seeds --env 'A=b c'"
    )
    assert repeat_command("x:1", Options()) == "envlock verify x:1"
    assert repeat_command("x:1", Options(timeout=60.0)) == "envlock verify x:1 --timeout 60.0"


def test_options_reach_the_self_test():
    options = Options(groups=("seeds", "kernels"), level="seeded", nproc=2, repeats=5)
    assert selftest_arguments(options) == ("--group", "seeds", "--group", "kernels", "--level", "seeded", "--nproc", "2", "--repeats", "5")
