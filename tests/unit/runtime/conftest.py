"""Fresh Python processes as an image would start them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fresh_process import LIB, Fresh

from envlock.runtime.hook import pth_line


@pytest.fixture(scope="session")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH that starts the hook, as the image's .pth file does."""
    folder = tmp_path_factory.mktemp("hooked")
    (folder / "sitecustomize.py").write_text(pth_line(LIB))
    return folder


@pytest.fixture
def fresh(hooked: Path) -> Fresh:
    """Run code in a fresh process in which the hook starts; keyword arguments are environment variables."""

    def run(code: str, *flags: str, **env: str) -> subprocess.CompletedProcess[str]:
        base = {name: value for name, value in os.environ.items() if not name.startswith(("ENVLOCK_", "PYTHON", "OMP_"))}
        command = [sys.executable, *flags, "-c", code]
        return subprocess.run(
            command, env={**base, "PYTHONPATH": str(hooked), **env}, capture_output=True, text=True, check=False, timeout=120
        )

    return run
