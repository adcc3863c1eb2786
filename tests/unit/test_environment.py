"""The image's ENV: what the base leaves, the determinism settings, what the spec adds."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from envlock.environment import SYSTEM_PATH, image_environment
from envlock.lock import Stack
from envlock.runtime import settings
from envlock.spec import parse_spec

CPU = Stack(torch="2.13.0", variant="cpu", python="3.11", platform="linux/amd64")
CUDA = Stack(torch="2.5.1", variant="cu124", python="3.11", platform="linux/amd64", cuda="12.4")


def environment(spec: str = "", stack: Stack = CPU, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    parsed = parse_spec(f"name: x\nstack: {{torch: 2.13.0}}\n{spec}".encode(), "x.yaml")
    return image_environment(parsed, stack, "2.2.6", inherited or {})


def test_python_of_the_environment_comes_first_on_path() -> None:
    assert environment()["PATH"] == f"/opt/venv/bin:{SYSTEM_PATH}"
    assert environment(inherited={"PATH": "/usr/local/cuda/bin:/usr/bin"})["PATH"] == "/opt/venv/bin:/usr/local/cuda/bin:/usr/bin"


def test_nothing_of_this_process_gets_in(monkeypatch: pytest.MonkeyPatch) -> None:
    before = environment()
    for name in ("HOME", "USER", "LANG", "TZ", "PATH", "OMP_NUM_THREADS", "PYTHONHASHSEED"):
        monkeypatch.setenv(name, "of-the-builder")
    assert environment() == before
    assert list(before) == sorted(before)


def test_what_breaks_the_promise_is_not_taken_from_the_base() -> None:
    overrides = {override.name: "1" for override in settings.overrides()}
    inherited = {
        "CUDA_VERSION": "12.4.1",
        "LD_LIBRARY_PATH": "/usr/local/cuda/lib64",
        "PYTHONPATH": "/x",
        "LD_PRELOAD": "/x.so",
        **overrides,
    }
    made = environment('determinism: {level: "off"}\n', inherited=inherited)
    assert made["CUDA_VERSION"] == "12.4.1"
    assert not (inherited.keys() - {"CUDA_VERSION"}) & made.keys()


def test_gpus_are_asked_for_where_the_stack_uses_them() -> None:
    assert environment(stack=CUDA)["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert environment(stack=CUDA)["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert "NVIDIA_VISIBLE_DEVICES" not in environment()


def test_the_level_decides_and_the_spec_adds() -> None:
    strict = environment("determinism: {seed: 11, threads: 3}\nenv: {HF_HOME: /data/hf}\n")
    assert (strict["PYTHONHASHSEED"], strict["OMP_NUM_THREADS"], strict["HF_HOME"]) == ("11", "3", "/data/hf")
    assert "PYTHONHASHSEED" not in environment('determinism: {level: "off"}\n')
