"""What tests of fresh processes share: the package's folder, and the type of the fixture `fresh`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import envlock

LIB = str(Path(envlock.__file__).parents[1])
Fresh = Callable[..., subprocess.CompletedProcess[str]]
