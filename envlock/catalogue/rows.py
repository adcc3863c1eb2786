"""The catalogue's rows: one frozen type a table, and the versions that they are compared by.

A row says where its facts come from: `source`, `date` (ISO: when the wheel was uploaded, or when the source was read) and `how`
it was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

Numbers = tuple[int, ...]
MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
"""What wheels and markers call the machine of each platform."""


@cache
def numbers(version: str) -> Numbers:
    """A dotted version as numbers: `550.54.14` is (550, 54, 14)."""
    return tuple(int(part) for part in version.split("."))


@dataclass(frozen=True, slots=True)
class Row:
    """Where a row's facts come from."""

    source: str
    date: str
    how: str


@dataclass(frozen=True, slots=True)
class Build(Row):
    """One build of one torch release for one platform.

    `variant` is `cpu` or as in `cu124`; `index` is where it is published (`default`, or `pytorch` for PyTorch's own index). `glibc`
    is the oldest that it runs on. Versions of cuDNN, NCCL and triton are bare where torch pins them exactly and specifiers where
    not; None is for what it does not bring, or (with `requires` None) what is not known. `numpy_abi` is the NumPy major version
    whose headers it was compiled with. `architectures` are `sm_XX` (code) and `compute_XX` (PTX). `requires` holds its pins of
    CUDA's libraries and triton; None where its metadata could not be read.
    """

    torch: str
    platform: str
    index: str
    variant: str
    cuda: str | None
    python: tuple[str, ...]
    glibc: str
    cudnn: str | None
    nccl: str | None
    triton: str | None
    numpy_abi: int
    architectures: tuple[str, ...]
    requires: tuple[str, ...] | None

    @property
    def title(self) -> str:
        """How messages name it: `torch 2.5.1 (CUDA 12.4)`."""
        return f"torch {self.torch} ({'CPU only' if self.cuda is None else f'CUDA {self.cuda}'})"

    @property
    def release(self) -> Numbers:
        return numbers(self.torch)

    @property
    def requirement(self) -> str:
        """The exact requirement; builds of PyTorch's own index carry their variant."""
        return f"torch=={self.torch}" + (f"+{self.variant}" if self.index == "pytorch" else "")


@dataclass(frozen=True, slots=True)
class Family(Row):
    """The release of a sister project (torchvision, torchaudio) that belongs to a torch release.

    `pinned` says whether its metadata pins that torch; where not, it is built for any torch from that release on.
    """

    torch: str
    project: str
    version: str
    pinned: bool


@dataclass(frozen=True, slots=True)
class Toolkit(Row):
    """What a release of the cuda-toolkit metapackage pins: requirement texts of its libraries."""

    version: str
    requires: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CudaRelease(Row):
    """A CUDA toolkit release, the Linux driver it came with, and the oldest driver that runs its major version."""

    cuda: str
    driver: str
    floor: str


@dataclass(frozen=True, slots=True)
class Branch(Row):
    """A driver branch, and the month (`2028-06`) in which its support ends."""

    branch: str
    kind: str
    end_of_life: str


@dataclass(frozen=True, slots=True)
class Generation(Row):
    """A GPU generation: its compute capabilities, the first CUDA that knows it, and the last CUDA major and driver branch that do."""

    name: str
    capabilities: tuple[str, ...]
    first_cuda: str
    last_cuda_major: str | None
    last_driver: str | None


@dataclass(frozen=True, slots=True)
class CodeRule(Row):
    """Devices that run code compiled for `sm_{code}`: capabilities from `start` up to below `end`, or `only` these.

    `excluded` devices (integrated GPUs) cannot; those of a rule with `excluded_before_cuda` can from that CUDA release on.
    """

    code: str
    start: str | None
    end: str | None
    only: tuple[str, ...]
    excluded: tuple[str, ...]
    excluded_before_cuda: str | None


@dataclass(frozen=True, slots=True)
class GpuModel(Row):
    """A GPU model, its compute capability, and the platform of its hosts where only one is possible."""

    name: str
    capability: str
    kind: str
    host: str | None


@dataclass(frozen=True, slots=True)
class Distribution(Row):
    """A release of a Linux distribution: its glibc, its own Python and those that its archive has.

    `packages` is the kind of packages it installs (`debian` or `rpm`); `debian_base` says whether envlock can bootstrap it.
    """

    distribution: str
    version: str
    names: tuple[str, ...]
    glibc: str
    python: str | None
    pythons: tuple[str, ...]
    packages: str
    debian_base: bool

    @property
    def title(self) -> str:
        return f"{self.distribution} {self.names[0] if self.names else self.version}"


@dataclass(frozen=True, slots=True)
class PythonImage(Row):
    """The image taken as a base for a Python that no Debian release has as its own."""

    python: str
    image: str


@dataclass(frozen=True, slots=True)
class NumpyAbi(Row):
    """The NumPy versions that code compiled for an ABI can be imported with; `newest` is the last of them."""

    abi: int
    constraint: str
    newest: str
