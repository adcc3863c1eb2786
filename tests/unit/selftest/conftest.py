"""Runs of the self-test in environments as an image gives them, and in broken ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from selftest_run import Run

import envlock
from envlock.runtime.hook import pth_line
from envlock.runtime.settings import environment

LIB = str(Path(envlock.__file__).parents[1])
SEED, THREADS = 7, 2
RunSelftest = Callable[..., Run]


@pytest.fixture(scope="session")
def image_env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment that an image with the level strict gives, hook included."""
    folder = tmp_path_factory.mktemp("hooked")
    (folder / "sitecustomize.py").write_text(pth_line(LIB))
    base = {name: value for name, value in os.environ.items() if not name.startswith(("ENVLOCK_", "PYTHON", "OMP_", "LD_", "COV_"))}
    level = environment("strict", seed=SEED, threads=THREADS, torch_version=torch.__version__, numpy_version=numpy.__version__)
    return {**base, **level, "PYTHONPATH": str(folder)}


@pytest.fixture(scope="session")
def selftest(image_env: dict[str, str]) -> RunSelftest:
    """Run the self-test with arguments; keyword arguments change the environment, None removes a variable."""

    def run(*arguments: str, **changes: str | None) -> Run:
        env = {name: value for name, value in {**image_env, **changes}.items() if value is not None}
        # As it runs in an image that has the package but no hook, where the hook is taken away.
        env["PYTHONPATH"] = os.pathsep.join(part for part in (env.get("PYTHONPATH", ""), LIB) if part)
        command = [sys.executable, "-m", "envlock.selftest", *arguments]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=900)
        lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
        return Run(done.returncode, lines, done.stderr)

    return run


@pytest.fixture(scope="session")
def good_run(selftest: RunSelftest) -> Run:
    """The usual groups, in an environment as an image gives it."""
    return selftest()
