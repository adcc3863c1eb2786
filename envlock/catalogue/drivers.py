"""Which driver runs which CUDA: the driver a toolkit came with, the floor of its major version, and branches.

Driver versions are compared on the parts that were written: `550` stands for its branch and is not older than `550.54.14`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from envlock.catalogue.loader import Catalogue
from envlock.catalogue.rows import Branch, CudaRelease, Numbers, numbers

Reach = Literal["too-old", "minor-version", "full"]


@dataclass(frozen=True, slots=True)
class CudaDriver:
    """What a CUDA release asks of a driver. `row` is the release whose row was taken, `exact` whether it is the release itself."""

    cuda: str
    row: CudaRelease
    exact: bool


def older(driver: str, than: str) -> bool:
    """Whether a driver is older, on the parts that both have."""
    left, right = numbers(driver), numbers(than)
    common = min(len(left), len(right))
    return left[:common] < right[:common]


def needs(cuda: str, catalogue: Catalogue) -> CudaDriver | None:
    """The driver row of a CUDA release (`12.4` stands for 12.4.0), or of the nearest earlier one of the same major version."""
    wanted: Numbers = (*numbers(cuda), 0)[:3]
    rows = [row for row in catalogue.drivers if numbers(row.cuda)[0] == wanted[0] and numbers(row.cuda) <= wanted]
    return CudaDriver(cuda, rows[-1], numbers(rows[-1].cuda) == wanted) if rows else None


def reach(driver: str, row: CudaRelease) -> Reach:
    """How far a driver serves a CUDA release: not at all, by minor-version compatibility, or fully."""
    if older(driver, row.floor):
        return "too-old"
    return "minor-version" if older(driver, row.driver) else "full"


def newest_cuda(driver: str, catalogue: Catalogue) -> str | None:
    """The newest CUDA release (`12.4`) that a driver serves fully, or None for a driver older than the table."""
    served = [row.cuda for row in catalogue.drivers if not older(driver, row.driver)]
    return ".".join(served[-1].split(".")[:2]) if served else None


def branch(driver: str, catalogue: Catalogue) -> Branch | None:
    """The branch that a driver belongs to, where the table has it."""
    return next((row for row in catalogue.branches if row.branch == driver.split(".")[0]), None)
