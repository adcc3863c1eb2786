"""The context beside a Dockerfile: what is in it, and that it goes only where it may."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_locks import cpu_lock, cuda_lock

from envlock.bundle import own_bundle, read_bundle
from envlock.context import require_current, texts
from envlock.dockerfile import render
from envlock.errors import LockStale

BUNDLE = read_bundle(own_bundle())


@pytest.mark.parametrize("lock", [cpu_lock(), cuda_lock()], ids=["cpu", "cuda"])
def test_the_texts_are_the_dockerfile_and_what_its_steps_read(lock) -> None:
    found = texts(lock, BUNDLE)
    dockerfile = render(lock, BUNDLE).decode()
    assert found["Dockerfile"].decode() == dockerfile
    read = {word.removeprefix("/dev/context/") for line in dockerfile.splitlines() if line.startswith("RUN") for word in line.split()}
    assert {name for name in read if name.startswith(("steps/", "lists/"))} <= found.keys()
    assert {name for name in found if name.startswith("lists/")} <= read


def test_every_step_that_another_calls_is_there() -> None:
    steps = {name: content.decode() for name, content in texts(cpu_lock(), BUNDLE).items() if name.startswith("steps/")}
    for name in steps:
        called = name.rpartition("/")[2]
        if called.endswith(".py"):
            assert any(called in other for path, other in steps.items() if path != name), f"nothing calls {name}"


def test_whether_a_dockerfile_is_current(tmp_path: Path) -> None:
    wanted = b"FROM scratch\nENV A=1\nUSER 0\n"
    path = tmp_path / "Dockerfile"
    with pytest.raises(LockStale, match="not what its lock renders to") as caught:
        require_current(path, wanted)
    assert caught.value.why == "there is no such file"
    path.write_bytes(b"FROM scratch\nENV A=2\nUSER 0\n")
    with pytest.raises(LockStale) as caught:
        require_current(path, wanted)
    assert caught.value.why.splitlines() == ["-ENV A=2", "+ENV A=1"]
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(LockStale):
        require_current(path, wanted)
    path.write_bytes(wanted)
    require_current(path, wanted)


def test_a_dockerfile_that_differs_only_in_its_last_line_break_is_not_current(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_bytes(b"FROM scratch")
    with pytest.raises(LockStale) as caught:
        require_current(path, b"FROM scratch\n")
    assert caught.value.why
