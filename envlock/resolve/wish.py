"""What is asked of the Python resolver."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from envlock.resolve.target import Target

TORCH_FAMILY = ("torch", "torchvision", "torchaudio")


@dataclass(frozen=True, slots=True)
class PythonWish:
    """What is to be resolved: requirements (torch's exact one among them), constraints, requirement files, and for which target.

    With `torch_index` `pytorch`, the packages of `family` come from PyTorch's index below `torch_index_path` ("whl/cu121"), and
    nothing else does.
    """

    requirements: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    requirement_files: tuple[Path, ...] = ()
    python: str = "3.11"
    platform: str = "linux/amd64"
    glibc: tuple[int, int] = (2, 36)
    torch_index: Literal["default", "pytorch"] = "default"
    torch_index_path: str = ""
    family: tuple[str, ...] = TORCH_FAMILY

    @property
    def target(self) -> Target:
        return Target(self.python, self.platform, self.glibc)

    @property
    def variant(self) -> str | None:
        """The local version label of PyTorch's own builds (cu121), None with the default index."""
        return self.torch_index_path.rpartition("/")[2] if self.torch_index == "pytorch" else None
