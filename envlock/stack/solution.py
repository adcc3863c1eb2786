"""What solving a spec yields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from envlock import lock
from envlock.errors import Finding
from envlock.spec import ArchiveBase, DebianBase, ImageBase

Index = Literal["default", "pytorch"]
Base = DebianBase | ImageBase | ArchiveBase


@dataclass(frozen=True, slots=True)
class Solution:
    """A stack that fits together, and what locking needs to know of it.

    `torch_requirement` is exact; with `torch_index` `pytorch` it and `family` are taken from PyTorch's own index below
    `torch_index_path` (`whl/cu121`), and nothing else is. `family` are requirements of torchvision and torchaudio that replace those
    of the spec; `family_versions` are the releases that go with this torch alone. `constraints` hold for every package. `requires`
    are the pins of the torch build, None where its metadata could not be read. `glibc` is the base's, or the oldest that torch
    itself needs where the base is not known. `python_packages` are the Debian packages that bring the Python where the base has
    none. `origins` says for each value where it came from. `findings` are warnings and information; errors are raised instead.
    """

    stack: lock.Stack
    torch_requirement: str
    torch_index: Index
    torch_index_path: str
    family: tuple[str, ...]
    constraints: tuple[str, ...]
    base: Base
    glibc: tuple[int, int]
    python_packages: tuple[str, ...]
    origins: dict[str, str]
    findings: tuple[Finding, ...]
    requires: tuple[str, ...] | None = None
    family_versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BaseFacts:
    """What is known of a base image: read from its reference before it is pulled, and from its config afterwards.

    CUDA, cuDNN, NCCL, Python and torch are versions as far as known; `""` is one that is there in a version not known, None means
    none was seen. `distribution` is as in `ubuntu 22.04`. `loader_path` is its LD_LIBRARY_PATH, `require_cuda` its
    NVIDIA_REQUIRE_CUDA.
    """

    cuda: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    python: str | None = None
    torch: str | None = None
    distribution: str | None = None
    flavour: str | None = None
    loader_path: str = ""
    require_cuda: str = ""

    @staticmethod
    def of_config(environment: Mapping[str, str], facts: Mapping[str, str]) -> BaseFacts:
        """From an image's ENV and what else its config and os-release say (`ID`, `VERSION_ID`, or with an `OS_` prefix)."""
        known = {**facts, **environment}
        system = (known.get("ID") or known.get("OS_ID") or "").strip('"')
        version = (known.get("VERSION_ID") or known.get("OS_VERSION_ID") or "").strip('"')
        python = re.match(r"3\.\d+", known.get("PYTHON_VERSION", ""))
        return BaseFacts(
            cuda=_version(known.get("CUDA_VERSION")),
            cudnn=_version(known.get("NV_CUDNN_VERSION") or known.get("CUDNN_VERSION")),
            nccl=_version(known.get("NV_LIBNCCL_PACKAGE_VERSION") or known.get("NCCL_VERSION")),
            python=python[0] if python else None,
            torch=known.get("PYTORCH_VERSION") or None,
            distribution=f"{system} {version}".strip() or None,
            loader_path=known.get("LD_LIBRARY_PATH", ""),
            require_cuda=known.get("NVIDIA_REQUIRE_CUDA", ""),
        )

    def over(self, guess: BaseFacts) -> BaseFacts:
        """These facts, filled up from a guess where they say nothing."""
        return BaseFacts(
            cuda=self.cuda or guess.cuda,
            cudnn=self.cudnn or guess.cudnn,
            nccl=self.nccl or guess.nccl,
            python=self.python or guess.python,
            torch=self.torch or guess.torch,
            distribution=self.distribution or guess.distribution,
            flavour=self.flavour or guess.flavour,
            loader_path=self.loader_path,
            require_cuda=self.require_cuda,
        )


def _version(text: str | None) -> str | None:
    """The numbers at the front of what an image says (`8.9.0.131-1+cuda12.1` is 8.9.0.131); `""` where it says something else."""
    if not text:
        return None
    match = re.match(r"\d{1,9}(?:\.\d{1,9})*", text, re.ASCII)
    return match[0] if match else ""
