"""Each error and finding that no other test provokes is provoked here; and none is without a test."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_doctor import CUDA, HOST, RUNTIME, gpu_host
from test_doctor import ids as doctor_ids

from envlock import errors, explanations, lock
from envlock.catalogue import load
from envlock.doctor import Needs
from envlock.errors import EnvlockError, Problems
from envlock.progress import Silent
from envlock.resolve.apt import refuse_drivers
from envlock.resolve.closure import choose
from envlock.selftest_run import Options, SelfTestRun
from envlock.spec import parse_spec
from envlock.stack import solve

TESTS = Path(__file__).parents[1]
RAISED_NOWHERE = {
    "envlock-error": "the base of all others",
    "problems": "it stands for several others",
}


def test_a_release_without_wheels_for_a_platform_provokes() -> None:
    catalogue = replace(load(), builds=tuple(build for build in load().builds if build.platform == "linux/amd64"))
    with pytest.raises(Problems) as caught:
        solve(parse_spec(b"name: x\nstack: {torch: 2.5.1}\ntarget: {platform: linux/arm64}\n", "s.yaml"), catalogue)
    assert "torch-platform" in {finding.id for finding in caught.value.findings}


def test_a_self_test_that_stops_provokes() -> None:
    stopped = SelfTestRun(None, None, None, None, Options(), Silent(), Needs())  # type: ignore[arg-type]
    assert [remark.id for remark in stopped._ended(3, late=False)] == ["selftest-broken"]
    assert [remark.id for remark in stopped._ended(0, late=True)] == ["selftest-late"]


def found_in(text: str) -> set[str]:
    """Ids of all that parsing and solving a spec complains about or remarks."""
    try:
        return {finding.id for finding in solve(parse_spec(text.encode(), "s.yaml"), load()).findings}
    except Problems as problems:
        return {finding.id for finding in problems.findings}


@pytest.mark.parametrize(
    ("id_", "text"),
    [
        ("spec-missing-key", "name: x\nstack: {torch: 2.5.1}\nfiles: [{to: /x}]\n"),
        ("driver-row", "name: x\npython: 3.11\nstack: {torch: 2.5.1, cuda: 12.4.9}\n"),
        ("driver-support", "name: x\npython: 3.11\nstack: {torch: 2.5.1, cuda: 12.4}\ntarget: {driver: 580.95.05}\n"),
        ("base-chosen", "name: x\npython: 3.10\nstack: {torch: 2.5.1, cuda: 12.4}\n"),
        ("two-cuda", "name: x\npython: 3.10\nbase: {image: 'nvidia/cuda:12.4.1-runtime-ubuntu22.04'}\nstack: {torch: 2.5.1, cuda: 12.4}\n"),
    ],
)
def test_a_spec_provokes(id_: str, text: str) -> None:
    assert id_ in found_in(text)


@pytest.mark.parametrize(("id_", "text"), [("lock-syntax", "a: [\n"), ("lock-duplicate-key", "version: 1\nversion: 1\n")])
def test_a_lock_provokes(id_: str, text: str) -> None:
    with pytest.raises(Problems) as caught:
        lock.parse(text.encode(), "x.lock.yaml")
    assert [finding.id for finding in caught.value.findings] == [id_]


def test_a_host_provokes() -> None:
    assert "ecc-off" in doctor_ids(gpu_host(ecc=False))
    assert "persistence-off" in doctor_ids(gpu_host(persistence=False))
    assert "shm-small" in doctor_ids(replace(HOST, shared_memory=2**26))
    assert "rootless-gpu" in doctor_ids(replace(HOST, runtime=replace(RUNTIME, rootless=True)), CUDA)
    assert "driver-trouble" in doctor_ids(replace(HOST, nvidia=replace(HOST.nvidia, trouble="something new")))


def test_apt_provokes() -> None:
    said = SimpleNamespace(returncode=100, stdout="", stderr="E: Unable to locate package nosuch\n")
    with pytest.raises(Problems) as caught:
        choose(SimpleNamespace(run=lambda *words: said), [], ["nosuch"], "debian bookworm")  # type: ignore[arg-type]
    assert [finding.id for finding in caught.value.findings] == ["package-unknown"]
    with pytest.raises(Problems) as caught:
        refuse_drivers([SimpleNamespace(name="nvidia-driver")], ["nvidia-cuda-toolkit"])  # type: ignore[list-item]
    assert [finding.id for finding in caught.value.findings] == ["apt-driver"]


def classes(kind: type[EnvlockError]) -> dict[str, str]:
    found = {kind.id: kind.__name__}
    for inner in kind.__subclasses__():
        found |= classes(inner)
    return found


def test_none_is_without_a_test() -> None:
    sources = (path for path in sorted(TESTS.rglob("*")) if path.suffix in (".py", ".yaml") and path != Path(__file__))
    text = "\n".join(path.read_text() for path in sources) + Path(__file__).read_text().partition("RAISED_NOWHERE = ")[2].partition("}")[2]
    names = classes(errors.EnvlockError)

    def is_tested(id_: str) -> bool:
        return any(re.search(rf"(?<![\w-]){word}(?![\w-])", text) for word in (id_, names.get(id_, id_)))

    untested = {id_ for id_ in explanations.load() if id_ not in RAISED_NOWHERE and not is_tested(id_)}
    assert untested == set()
