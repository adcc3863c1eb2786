"""Checks of a build against the hosts: GPUs and the oldest driver."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from envlock.catalogue import Catalogue, drivers, gpus
from envlock.catalogue.gpus import Gpu
from envlock.catalogue.rows import Build, CudaRelease, Generation, numbers
from envlock.errors import Finding
from envlock.stack.wish import Wish, alternatives


def find_gpus(names: Iterable[str], catalogue: Catalogue) -> tuple[list[Gpu], list[Finding]]:
    """The GPUs that the spec names, and a fault for every name that is none."""
    found, faults = [], []
    for place, name in enumerate(names):
        gpu = gpus.find(name, catalogue)
        if gpu is not None:
            found.append(replace(gpu, place=place))
            continue
        near = gpus.nearest_names(name, catalogue)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        hint += "A compute capability works too, written as sm_90"
        what = f"{name!r} is not a GPU that envlock knows"
        faults.append(Finding("gpu-unknown", "error", what, f"target.gpus.{place}", hint=hint))
    return found, faults


def gpu_findings(build: Build, wish: Wish, catalogue: Catalogue) -> list[Finding]:
    """Faults and warnings of a build on the target GPUs."""
    findings = [finding for gpu in wish.gpus for finding in _platform(gpu, wish)]
    if build.cuda is None:
        return findings
    unserved = [gpu for gpu in wish.gpus if not gpus.serves(build, [gpu], catalogue)]
    hint = _gpu_hint(build, wish, catalogue) if unserved else ""
    for gpu in unserved:
        ptx = "" if any(a.startswith("compute_") for a in build.architectures) else ", and no PTX to compile for others"
        why = f"it has code for {', '.join(build.architectures)}{ptx}"
        findings.append(Finding("gpu-arch", "error", f"{build.title} has no code for {gpu.title}", _where(gpu), why, hint))
    for gpu in wish.gpus:
        if gpu not in unserved and not gpus.runs_natively(build, gpu, catalogue):
            findings.append(_by_ptx(build, gpu, wish, catalogue))
    return findings


def _where(gpu: Gpu) -> str:
    return f"target.gpus.{gpu.place}"


def _platform(gpu: Gpu, wish: Wish) -> list[Finding]:
    host = gpu.model.host if gpu.model else None
    if host is None or host == wish.platform:
        return []
    what = f"{gpu.title} sits in {host} hosts only, and the platform is {wish.platform}"
    return [Finding("gpu-platform", "error", what, _where(gpu), hint=f"set target.platform to {host}")]


def cpu_findings(build: Build, asked: str | None, wish: Wish, catalogue: Catalogue) -> list[Finding]:
    """What to say of a build without CUDA. `asked` is the spec's own word on CUDA: `cpu`, or None where it was left out."""
    if build.cuda is not None or (asked == "cpu" and not wish.wants_gpu):
        return []
    named = ", ".join(gpu.title for gpu in wish.gpus) or (f"the driver {wish.driver}" if wish.driver else "")
    if asked == "cpu":
        what = f"the spec asks for a CPU build, which does not use {named}"
        return [Finding("cpu-only-wheel", "warning", what, "stack.cuda", hint="leave the GPUs and the driver out of target")]
    what = f"the wheel of torch {build.torch} for {wish.platform} was built without CUDA"
    if wish.wants_gpu:
        found = "; ".join(alternatives(wish, build.torch, catalogue))
        return [Finding("cpu-only-wheel", "error", f"{what} and cannot use {named}", "stack", hint=found or "write cuda: cpu")]
    return [Finding("cpu-only-wheel", "warning", what, "stack", hint="write cuda: cpu where that is meant")]


def _gpu_hint(build: Build, wish: Wish, catalogue: Catalogue) -> str:
    found = alternatives(wish, build.torch, catalogue)
    if found:
        return "what works: " + "; ".join(found)
    bare = Wish(wish.platform, wish.gpus, None, None)
    found = alternatives(bare, build.torch, catalogue)
    if found:
        return "what works with another Python or driver: " + "; ".join(found)
    if len(wish.gpus) > 1:
        alone = [(gpu, alternatives(Wish(wish.platform, (gpu,), None, None), build.torch, catalogue)) for gpu in wish.gpus]
        each = "; ".join(f"{gpu.title}: {ways[0]}" for gpu, ways in alone if ways)
        return f"no single build serves all of these GPUs; write a spec for each: {each}"
    return "no build in envlock's catalogue has code for this GPU"


def _by_ptx(build: Build, gpu: Gpu, wish: Wish, catalogue: Catalogue) -> Finding:
    what = f"{build.title} has PTX for {gpu.title}, not machine code"
    why = "the driver compiles it at first use, which takes minutes, and what it compiles depends on the driver"
    hint = _gpu_hint(build, wish, catalogue)
    need = drivers.needs(build.cuda or "0", catalogue)
    if wish.driver is not None and need is not None and drivers.reach(wish.driver, need.row) != "full":
        why = f"driver {wish.driver} is older than this PTX and cannot compile it"
        return Finding("gpu-arch", "error", what, _where(gpu), why, f"update the driver to {need.row.driver}")
    return Finding("gpu-ptx", "warning", what, _where(gpu), why, hint)


def driver_findings(build: Build, cuda: str | None, wish: Wish, catalogue: Catalogue) -> list[Finding]:
    """Faults and warnings of a build on the oldest driver. `cuda` is the release whose driver row counts; None for a CPU build."""
    if cuda is None:
        return []
    need = drivers.needs(cuda, catalogue)
    if need is None:
        return [Finding("driver-row", "warning", f"envlock has no driver for CUDA {cuda}", "stack.cuda", hint="ask the CUDA release notes")]
    findings = []
    if not need.exact:
        what = f"the catalogue has no driver row for CUDA {cuda}; that of {need.row.cuda} was taken"
        findings.append(Finding("driver-row", "info", what, "stack.cuda"))
    if wish.driver is not None:
        findings += _driver_reach(build, cuda, wish, wish.driver, catalogue)
        findings += [finding for gpu in wish.gpus for finding in _driver_knows(gpu, wish.driver, catalogue)]
        findings += _support(wish.driver, catalogue)
    return findings


def _driver_reach(build: Build, cuda: str, wish: Wish, driver: str, catalogue: Catalogue) -> list[Finding]:
    need = drivers.needs(cuda, catalogue)
    if need is None:
        return []
    row, major = need.row, cuda.split(".")[0]
    reached = drivers.reach(driver, row)
    if reached == "too-old":
        found = alternatives(wish, build.torch, catalogue)
        hint = f"update the driver to {row.floor} or newer ({row.driver} for all features)"
        hint += "; or what runs on it: " + "; ".join(found) if found else "; no build in the catalogue runs on it"
        why = f"every CUDA {major}.x needs driver {row.floor} at least; cuda-compat packages help on data-center GPUs only"
        return [Finding("driver-too-old", "error", f"driver {driver} is too old for CUDA {cuda}", "target.driver", why, hint)]
    if reached == "minor-version":
        what = f"driver {driver} is older than {row.driver}, which CUDA {cuda} came with"
        why = (
            f"it runs by minor-version compatibility (from {row.floor} on): compiled code works, PTX newer than the driver cannot be "
            "compiled, and CUDA features that need the newer driver are missing"
        )
        return [Finding("driver-minor-version", "warning", what, "target.driver", why, f"update the driver to {row.driver} or newer")]
    return []


def _driver_knows(gpu: Gpu, driver: str, catalogue: Catalogue) -> list[Finding]:
    """Whether the driver is neither too old nor too new for a GPU, by branch."""
    row = gpus.generation(gpu.capability, catalogue)
    if row is None:
        return []
    where, branch = "target.driver", int(driver.split(".")[0])
    if row.last_driver is not None and branch > int(row.last_driver):
        what, why = f"driver {driver} no longer supports {gpu.title}", f"the last branch with {row.name} is R{row.last_driver}"
        return [Finding("gpu-driver", "error", what, where, why, f"use a driver of branch R{row.last_driver}")]
    first = _first_release(row, catalogue)
    if first is not None and drivers.older(str(branch), first.driver):
        what = f"driver {driver} does not know {gpu.title}"
        why = f"{row.name} needs the driver of CUDA {row.first_cuda}"
        return [Finding("gpu-driver", "error", what, where, why, f"update the driver to {first.driver} or newer")]
    return []


def _first_release(row: Generation, catalogue: Catalogue) -> CudaRelease | None:
    """The first CUDA release that knows a generation, with the driver it came with."""
    return next((release for release in catalogue.drivers if numbers(release.cuda)[:2] == numbers(row.first_cuda)), None)


def driver_floor(cuda: str | None, wish: Wish, catalogue: Catalogue) -> str | None:
    """The oldest driver that runs this CUDA on all target GPUs; None for a CPU build."""
    need = drivers.needs(cuda, catalogue) if cuda is not None else None
    if need is None:
        return None
    floors = [need.row.floor]
    for gpu in wish.gpus:
        row = gpus.generation(gpu.capability, catalogue)
        first = row and _first_release(row, catalogue)
        floors += [first.driver] if first else []
    return max(floors, key=numbers)


def _support(driver: str, catalogue: Catalogue) -> list[Finding]:
    row = drivers.branch(driver, catalogue)
    if row is None:
        return []
    what = f"NVIDIA supports driver branch R{row.branch} ({row.kind}) until {row.end_of_life}"
    return [Finding("driver-support", "info", what, "target.driver")]
