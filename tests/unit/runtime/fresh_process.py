"""The type of the fixture `fresh`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

Fresh = Callable[..., subprocess.CompletedProcess[str]]
