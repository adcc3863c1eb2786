"""`envlock stacks`: the catalogue as rows of a table, filtered by hardware and Python, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from envlock.catalogue import Catalogue, drivers
from envlock.errors import Exit, Finding, Problems
from envlock.stack.targets import find_gpus
from envlock.stack.wish import Wish, fits


@dataclass(frozen=True, slots=True)
class StackRow:
    """One build as `envlock stacks` shows it. `driver` is the one its CUDA came with, `driver_floor` the oldest that runs it.

    `note` says what the filters' driver means for it, empty where all works.
    """

    torch: str
    cuda: str
    variant: str
    index: str
    platform: str
    python: tuple[str, ...]
    driver_floor: str
    driver: str
    cudnn: str
    nccl: str
    triton: str
    architectures: tuple[str, ...]
    glibc: str
    date: str
    note: str


def stack_rows(
    catalogue: Catalogue,
    gpus: Sequence[str] = (),
    driver: str | None = None,
    python: str | None = None,
    platform: str = "linux/amd64",
    torch: str | None = None,
) -> tuple[StackRow, ...]:
    """Builds that serve all of these GPUs, on this driver, with this Python; CPU builds only without GPU and driver.

    `torch` is a release, or the front part of one (`2.5`). Raises `Problems` (exit status 2) for a GPU or driver that is not one.
    """
    found, unknown = find_gpus(gpus, catalogue)
    faults = [replace(fault, where="--gpu") for fault in unknown]
    if driver is not None and not all(part.isdigit() for part in driver.split(".")):
        faults.append(Finding("usage", "error", f"{driver!r} is not a driver version", "--driver", hint="write it as 550.54.15"))
    if faults:
        raise Problems(faults, Exit.USAGE)
    wish = Wish(platform, tuple(found), driver, python)
    rows = []
    for build in catalogue.builds:
        if not fits(build, wish, catalogue) or (build.cuda is None and wish.wants_gpu):
            continue
        if torch is not None and not f"{build.torch}.".startswith(f"{torch}."):
            continue
        need = drivers.needs(build.cuda, catalogue) if build.cuda else None
        limited = driver is not None and need is not None and drivers.reach(driver, need.row) == "minor-version"
        rows.append(
            StackRow(
                torch=build.torch,
                cuda=build.cuda or "cpu",
                variant=build.variant,
                index=build.index,
                platform=build.platform,
                python=build.python,
                driver_floor=need.row.floor if need else "",
                driver=need.row.driver if need else "",
                cudnn=build.cudnn or "",
                nccl=build.nccl or "",
                triton=build.triton or "",
                architectures=build.architectures,
                glibc=build.glibc,
                date=build.date,
                note=f"by minor-version compatibility; all features from driver {need.row.driver} on" if limited and need else "",
            )
        )
    return tuple(rows)
