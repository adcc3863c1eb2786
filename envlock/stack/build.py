"""Which build of torch a spec means: its release, and the CUDA variant."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from envlock.catalogue import Catalogue
from envlock.catalogue.rows import Build, numbers
from envlock.errors import Finding
from envlock.spec import StackWish
from envlock.stack.wish import Wish, fits, span


@dataclass(frozen=True, slots=True)
class Release:
    """A release of torch as the spec has it: `version`, the variant that its local version names, and how it was read."""

    version: str
    variant: str | None
    origin: str


def release_of(asked: str, catalogue: Catalogue) -> Release | Finding:
    """The release in the catalogue that `stack.torch` means, or why there is none.

    With two parts (`2.5`) it is the newest patch release of them; with a local version (`2.5.1+cu121`) that variant.
    """
    where = "stack.torch"
    known = catalogue.releases()
    oldest, newest = known[0], known[-1]
    try:
        version = Version(asked)
    except InvalidVersion:
        return Finding("torch-unknown", "error", f"torch {asked} is not a version", where, hint=f"write it as {newest}")
    if version.is_prerelease:
        why = "pre-releases are deleted from their index after some weeks, so that nobody can build the image again"
        near = [v for v in known if numbers(v)[:2] == version.release[:2]] or [newest]
        return Finding("torch-nightly", "error", f"torch {asked} is not a stable release", where, why, f"use torch {near[-1]}")
    variant = version.local
    if variant is not None and not re.fullmatch(r"cpu|cu\d{3}", variant):
        what = f"torch {asked} is neither a CUDA nor a CPU build"
        return Finding("torch-unsupported", "error", what, where, hint="envlock locks builds such as 2.5.1+cu121 and 2.5.1+cpu")
    parts = version.release
    if len(parts) < 3:
        patches = [v for v in known if numbers(v)[: len(parts)] == parts]
        if len(parts) == 2 and patches:
            return Release(patches[-1], variant, f"newest patch release of the {asked} that the spec asks for")
    elif version.public in known:
        return Release(version.public, variant, "the spec")
    return _absent(asked, parts, known, oldest, newest, catalogue)


def _absent(asked: str, parts: tuple[int, ...], known: list[str], oldest: str, newest: str, catalogue: Catalogue) -> Finding:
    where = "stack.torch"
    if parts < numbers(oldest):
        cuda = next(build.cuda for build in catalogue.builds if build.torch == oldest and build.cuda is not None)
        what = f"torch {asked} is older than what envlock supports"
        why = f"envlock knows releases from {oldest} (CUDA {cuda}) on; only from there on do CUDA's libraries come as wheels"
        return Finding("torch-unsupported", "error", what, where, why, f"use torch {oldest}")
    if parts > numbers(newest):
        why = f"the newest release in envlock's catalogue is {newest}"
        hint = f"use torch {newest}, or an envlock whose catalogue is newer"
        return Finding("torch-unsupported", "error", f"torch {asked} is newer than envlock's catalogue", where, why, hint)
    below = [v for v in known if numbers(v) < parts]
    above = [v for v in known if numbers(v) > parts]
    near = [*below[-1:], *above[:1]]
    return Finding("torch-unknown", "error", f"there is no release {asked} of torch", where, hint=f"use torch {' or '.join(near)}")


@dataclass(frozen=True, slots=True)
class CudaWish:
    """The variant asked for: `cpu`, a CUDA version as `12.4` (its patch release, if any, apart), or None where left out."""

    version: str | None
    patch: str | None
    where: str


def cuda_wish(stack: StackWish, release: Release) -> CudaWish | Finding:
    """What `stack.cuda` and the local version of `stack.torch` ask for together, or that they contradict each other."""
    local = release.variant
    named = None if local is None else local if local == "cpu" else f"{local[2:4]}.{local[4:]}"
    if stack.cuda is None:
        return CudaWish(named, None, "stack.torch")
    asked = stack.cuda if stack.cuda == "cpu" else ".".join(stack.cuda.split(".")[:2])
    if named is not None and named != asked:
        what = f"torch {stack.torch} is the build for {named}, and cuda asks for {stack.cuda}"
        return Finding("torch-cuda", "error", what, "stack.cuda", hint="leave one of them out")
    patch = stack.cuda if stack.cuda.count(".") == 2 else None
    return CudaWish(asked, patch, "stack.cuda")


def choose(release: Release, cuda: CudaWish, wish: Wish, catalogue: Catalogue) -> tuple[Build, str] | Finding:
    """The build and the rule that chose it, or why there is none.

    Where CUDA is left out: the default index's build if it serves the wish, else the newest CUDA build of PyTorch's index that
    does, else the default index's build (and the checks say why it does not).
    """
    builds = [build for build in catalogue.builds if build.torch == release.version and build.platform == wish.platform]
    if not builds:
        return _no_wheel(release, wish, catalogue)
    if cuda.version is None:
        return _by_rule(builds, wish, catalogue)
    wanted = None if cuda.version == "cpu" else cuda.version
    chosen = [build for build in builds if build.cuda == wanted]
    if chosen:
        return chosen[0], "the spec"
    return _never_built(release, cuda.version, cuda.where, builds, wish, catalogue)


def _by_rule(builds: list[Build], wish: Wish, catalogue: Catalogue) -> tuple[Build, str]:
    default = next((build for build in builds if build.index == "default"), builds[0])
    if fits(default, wish, catalogue) or not wish.wants_gpu:
        kind = "CPU only" if default.cuda is None else f"CUDA {default.cuda}"
        return default, f"left out; the wheel of torch {default.torch} on the default index is built for {kind} ({default.source})"
    able = [build for build in builds if build.cuda is not None and fits(build, wish, catalogue)]
    if able:
        theirs = default.cuda or "CPU only"
        return able[0], f"left out; the default index's build ({theirs}) does not serve the targets, this one of PyTorch's own does"
    return next((build for build in builds if build.cuda is not None), default), "left out; no build serves the targets"


def _no_wheel(release: Release, wish: Wish, catalogue: Catalogue) -> Finding:
    able = [build.torch for build in catalogue.builds if build.platform == wish.platform and build.release > numbers(release.version)]
    what = f"torch {release.version} has no wheel for {wish.platform}"
    return Finding("torch-platform", "error", what, "target.platform", hint=f"use torch {able[-1]}" if able else "use linux/amd64")


def _never_built(release: Release, asked: str, where: str, builds: list[Build], wish: Wish, catalogue: Catalogue) -> Finding:
    cuda_builds = sorted({build.cuda for build in builds if build.cuda is not None}, key=numbers)
    with_it = [build for build in catalogue.builds if build.cuda == asked and build.platform == wish.platform]
    if asked != "cpu" and not cuda_builds:
        what = f"torch {release.version} has only CPU wheels for {wish.platform.removeprefix('linux/')}, and CUDA {asked} is asked for"
        with_cuda = [build for build in catalogue.builds if build.cuda is not None and build.platform == wish.platform]
        newer = [build for build in with_cuda if build.release > numbers(release.version)]
        hint = f"use torch {newer[-1].torch} (CUDA {newer[-1].cuda}), or platform linux/amd64" if newer else "use platform linux/amd64"
        return Finding("cpu-only-wheel", "error", what, where, "its wheel for this platform was built without CUDA", hint)
    built = ", ".join(cuda_builds)
    default = next((build.cuda for build in builds if build.index == "default" and build.cuda), cuda_builds[-1] if cuda_builds else "cpu")
    hint = f"use cuda: {default}" if asked != "cpu" else "use another release"
    if with_it:
        here = numbers(release.version)
        nearest = min(with_it, key=lambda build: (build.release < here, abs(_distance(build.release, here))))
        hint += f", or torch {nearest.torch}, the nearest release built for {'CPU only' if asked == 'cpu' else f'CUDA {asked}'}"
    what = f"torch {release.version} was never built for {'CPU only' if asked == 'cpu' else f'CUDA {asked}'}"
    return Finding("torch-cuda", "error", what, where, f"it was built for CUDA {built}, as far as envlock knows", hint)


def _distance(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    weights = (10000, 100, 1)
    return sum(weight * (a - b) for weight, a, b in zip(weights, left, right, strict=False))


def python_faults(build: Build, python: str, catalogue: Catalogue) -> list[Finding]:
    """Why a build has no wheel for a Python, with the nearest Python and release that do."""
    if python in build.python:
        return []
    older = numbers(python) < min(map(numbers, build.python))
    edge = min(build.python, key=numbers) if older else max(build.python, key=numbers)
    alike = [b for b in catalogue.builds if b.platform == build.platform and (b.cuda is None) == (build.cuda is None)]
    others = [b for b in alike if python in b.python]
    beyond = [b for b in others if (b.release < build.release if older else b.release > build.release)]
    hint = f"use Python {edge}"
    if beyond:
        near = beyond[0] if older else beyond[-1]
        hint += f", or torch {near.torch}, the {'last' if older else 'first'} with Python {python}"
    what = f"torch {build.torch} has no wheel for Python {python}"
    return [Finding("torch-python", "error", what, "python", f"its wheels are for Python {span(build.python)}", hint)]
