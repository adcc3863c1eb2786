"""What a spec asks of a build of torch, each part put into comparable values once."""

from __future__ import annotations

from dataclasses import dataclass

from envlock.catalogue import Catalogue, drivers, gpus
from envlock.catalogue.gpus import Gpu
from envlock.catalogue.rows import Build, numbers


@dataclass(frozen=True, slots=True)
class Wish:
    """The hosts and the Python that a build must serve."""

    platform: str
    gpus: tuple[Gpu, ...]
    driver: str | None
    python: str | None

    @property
    def wants_gpu(self) -> bool:
        return bool(self.gpus) or self.driver is not None


def runs_on_driver(build: Build, driver: str, catalogue: Catalogue) -> bool:
    """Whether a build runs on hosts with this driver, be it by minor-version compatibility."""
    if build.cuda is None:
        return True
    need = drivers.needs(build.cuda, catalogue)
    return need is None or drivers.reach(driver, need.row) != "too-old"


def fits(build: Build, wish: Wish, catalogue: Catalogue) -> bool:
    """Whether a build serves the whole wish."""
    if build.platform != wish.platform or (wish.python is not None and wish.python not in build.python):
        return False
    if wish.driver is not None and not runs_on_driver(build, wish.driver, catalogue):
        return False
    if wish.gpus and build.cuda is None:
        return False
    return gpus.serves(build, wish.gpus, catalogue)


def span(versions: tuple[str, ...]) -> str:
    """A list of versions for messages: `3.8 to 3.11`."""
    ordered = sorted(versions, key=numbers)
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"


def place(build: Build) -> str:
    """Where a build is named in a hint: `torch 2.7.0 built for CUDA 12.8 (PyTorch's own index)`."""
    kind = "built for CPU only" if build.cuda is None else f"built for CUDA {build.cuda}"
    return f"torch {build.torch} {kind}" + (" (PyTorch's own index)" if build.index == "pytorch" else "")


def alternatives(wish: Wish, release: str, catalogue: Catalogue) -> list[str]:
    """The nearest CUDA builds that serve a wish, in words.

    Another build of this release; the first newer release, from the default index too where PyTorch's own has it first; with
    neither, the last older release.
    """
    able = [build for build in catalogue.builds if build.cuda is not None and fits(build, wish, catalogue)]
    here = numbers(release)
    same = [build for build in able if build.torch == release]
    newer = [build for build in able if build.release > here]
    older = [build for build in able if build.release < here]
    found = [place(same[0])] if same else []
    first = _earliest(newer)
    first_default = _earliest([build for build in newer if build.index == "default"])
    if first is not None and not same:
        found.append(f"the first newer release: {place(first)}")
    if first_default is not None and first_default != first:
        found.append(f"the first of the default index: {place(first_default)}")
    if not found and older:
        found.append(f"the last release that does: {place(older[0])}")
    return found


def _earliest(builds: list[Build]) -> Build | None:
    """The preferred build of the oldest release among these."""
    oldest = min((build.release for build in builds), default=None)
    return next((build for build in builds if build.release == oldest), None)
