"""Checks of the spec's packages against torch, and what they must be held to: the torch family, its pins, NumPy's ABI."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from envlock.catalogue import Catalogue
from envlock.catalogue.rows import MACHINES, Build, Family, numbers
from envlock.errors import Finding
from envlock.spec import Spec


@dataclass(frozen=True, slots=True)
class Asked:
    """One requirement of the spec that holds for the target: where it stands and its normalised project name."""

    where: str
    name: str
    requirement: Requirement

    def allows(self, version: str) -> bool:
        """Whether a version satisfies it; a local version (`+cu121`) that the requirement does not name is not counted."""
        return self.requirement.specifier.contains(version, prereleases=True)


def target_environment(python: str, platform: str) -> dict[str, str]:
    """The marker environment of the image."""
    fixed = {
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": MACHINES[platform],
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
        "platform_release": "",
        "platform_version": "",
    }
    return {key: fixed.get(key, value) for key, value in {k: str(v) for k, v in default_environment().items()}.items()}


def holds(requirement: Requirement, environment: dict[str, str]) -> bool:
    """Whether a requirement's marker holds in a marker environment, without extras."""
    return requirement.marker is None or requirement.marker.evaluate({**environment, "extra": ""})


def asked_packages(spec: Spec, python: str) -> list[Asked]:
    """The spec's packages that hold for the target."""
    environment = target_environment(python, spec.target.platform)
    found = []
    for place, text in enumerate(spec.packages):
        requirement = Requirement(text)
        if holds(requirement, environment):
            found.append(Asked(f"packages.{place}", canonicalize_name(requirement.name), requirement))
    return found


def pins(build: Build, python: str) -> dict[str, SpecifierSet]:
    """What a build pins of CUDA's libraries and triton, for a Python; empty where its metadata is not known."""
    environment = target_environment(python, build.platform)
    found: dict[str, SpecifierSet] = {}
    for text in build.requires or ():
        requirement = Requirement(text)
        if holds(requirement, environment):
            found[canonicalize_name(requirement.name)] = requirement.specifier
    return found


def family_of(build: Build, catalogue: Catalogue) -> list[Family]:
    """torchvision and torchaudio as they belong to a build's release."""
    exact = [row for row in catalogue.family if row.torch == build.torch]
    loose = [row for row in catalogue.family if not row.pinned and numbers(row.torch) <= build.release]
    for project in {row.project for row in loose} - {row.project for row in exact}:
        exact.append(max((row for row in loose if row.project == project), key=lambda row: numbers(row.version)))
    return sorted(exact, key=lambda row: row.project)


def family_requirements(build: Build, asked: list[Asked], catalogue: Catalogue) -> dict[str, str]:
    """What each sister project is held to: exactly the release of torch's, of the same build.

    One whose metadata does not pin torch is held to what the spec says of it, else to the newest that the catalogue knows; on
    PyTorch's own index, where that one may be missing, it is left free.
    """
    held = {}
    for row in family_of(build, catalogue):
        own = next((package.requirement for package in asked if package.name == row.project and package.requirement.specifier), None)
        if row.pinned:
            held[row.project] = f"{row.project}=={row.version}" + (f"+{build.variant}" if build.index == "pytorch" else "")
        elif own is not None:
            held[row.project] = f"{row.project}{own.specifier}"
        else:
            held[row.project] = row.project if build.index == "pytorch" else f"{row.project}=={row.version}"
    return held


def package_findings(build: Build, python: str, asked: list[Asked], catalogue: Catalogue) -> list[Finding]:
    """Why packages of the spec cannot stand beside this torch."""
    own = pins(build, python)
    findings: list[Finding] = []
    for package in asked:
        if package.name == "torch":
            findings += _second_torch(build, package)
        elif package.name in own:
            findings += _moved_pin(build, package, own[package.name])
        elif package.name == "numpy":
            findings += _numpy(build, package, catalogue)
        else:
            findings += _family(build, package, catalogue)
    return findings


def _second_torch(build: Build, package: Asked) -> Iterator[Finding]:
    full = build.torch if build.index == "default" else f"{build.torch}+{build.variant}"
    same_variant = package.requirement.specifier.contains(f"{build.torch}+{build.variant}", prereleases=True)
    if not package.allows(full) and not same_variant:
        what = f"the packages ask for {package.requirement}, and the stack for torch {build.torch}"
        yield Finding("package-conflict", "error", what, package.where, hint="name torch in `stack` alone")


def _moved_pin(build: Build, package: Asked, pinned: SpecifierSet) -> Iterator[Finding]:
    exact = str(pinned).removeprefix("==")
    bare = all(part.isdigit() for part in exact.split("."))
    if bare and not package.allows(exact):
        what = f"torch {build.torch} needs {package.name} {exact}, and the packages ask for {package.requirement}"
        hint = f"leave {package.name} out, or take the torch that needs the one asked for"
        yield Finding("package-conflict", "error", what, package.where, "torch is compiled against that version", hint)
    elif not bare and _single(package) is not None and not pinned.contains(_single(package) or "", prereleases=True):
        what = f"torch {build.torch} needs {package.name}{pinned}, and the packages ask for {package.requirement}"
        yield Finding("package-conflict", "error", what, package.where, hint=f"leave {package.name} out")


def _single(package: Asked) -> str | None:
    """The one version that a requirement names, if it names one."""
    exact = [part.version for part in package.requirement.specifier if part.operator == "==" and "*" not in part.version]
    return exact[0] if exact else None


def _numpy(build: Build, package: Asked, catalogue: Catalogue) -> Iterator[Finding]:
    limit = next((row for row in catalogue.numpy if row.abi == build.numpy_abi), None)
    if limit is None or _may_be_below_two(package, limit.newest):
        return
    what = f"torch {build.torch} was compiled for NumPy {build.numpy_abi}.x and cannot be used with {package.requirement}"
    first = next((b.torch for b in reversed(catalogue.builds) if b.numpy_abi > build.numpy_abi), None)
    hint = f"use numpy{limit.constraint}" + (f", or torch {first} or newer" if first else "")
    yield Finding("numpy-abi", "error", what, package.where, "with another ABI `torch.from_numpy` and `.numpy()` fail at run time", hint)


def _may_be_below_two(package: Asked, newest: str) -> bool:
    """Whether a NumPy requirement leaves room for a 1.x: an exact version of it, or its newest one, or a bound below."""
    single = _single(package)
    if single is not None:
        return Version(single).major <= Version(newest).major
    if package.allows(newest):
        return True
    bounds = [part.version.rstrip(".*") for part in package.requirement.specifier if part.operator in ("<", "<=", "~=", "==")]
    return any(Version(bound).major < Version(newest).major + 1 for bound in bounds)


def _family(build: Build, package: Asked, catalogue: Catalogue) -> Iterator[Finding]:
    projects = {row.project for row in catalogue.family}
    if package.name not in projects:
        return
    row = next((row for row in family_of(build, catalogue) if row.project == package.name), None)
    if row is None:
        what = f"envlock knows no {package.name} for torch {build.torch}"
        yield Finding("torch-family", "error", what, package.where, hint=f"leave {package.name} out, or use another torch")
        return
    if package.allows(row.version) or package.allows(f"{row.version}+{build.variant}"):
        return
    single = _single(package)
    if not row.pinned and single is not None and Version(single) >= _first_unpinned(package.name, catalogue):
        return
    other = next((r.torch for r in catalogue.family if r.project == package.name and package.allows(r.version) and r.pinned), None)
    what = f"{package.requirement} does not belong to torch {build.torch}"
    why = f"{package.name} {row.version} does; it is compiled against one torch and fails with any other"
    hint = f"use {package.name}=={row.version}, or leave its version out" + (
        f"; what is asked for belongs to torch {other}" if other else ""
    )
    yield Finding("torch-family", "error", what, package.where, why, hint)


def _first_unpinned(project: str, catalogue: Catalogue) -> Version:
    return min(Version(row.version) for row in catalogue.family if row.project == project and not row.pinned)


def named_cuda(project: str) -> str | None:
    """The CUDA major version in a project's name: 12 for `nvidia-nccl-cu12` and `cupy-cuda12x`."""
    match = re.search(r"-(?:cu|cuda)(1[1-9])x?$", project)
    return match[1] if match else None


def second_cuda_findings(build: Build, asked: list[Asked]) -> list[Finding]:
    """Packages whose name or extra says that they are for another CUDA major version than torch (`cupy-cuda11x`, `jax[cuda12]`)."""
    if build.cuda is None:
        return []
    own, findings = build.cuda.split(".")[0], []
    for package in asked:
        names = [package.name, *(f"-{extra}" for extra in package.requirement.extras)]
        majors = {major for name in names if (major := named_cuda(name)) is not None}
        for major in sorted(majors - {own}):
            what = f"{package.requirement} is for CUDA {major}, and {build.title} brings CUDA {own}"
            why = "two CUDA families in one process load each other's libraries"
            hint = f"take its build for CUDA {own}, or a torch built for CUDA {major}"
            findings.append(Finding("second-cuda", "error", what, package.where, why, hint))
    return findings


def triton_findings(build: Build, python: str) -> list[Finding]:
    """Whether torch leaves its triton out for this Python."""
    lost = [text for text in build.requires or () if text.startswith("triton") and "triton" not in pins(build, python)]
    if not lost:
        return []
    what = f"torch {build.torch} brings no triton for Python {python}, so torch.compile does not work on a GPU"
    return [Finding("no-triton", "info", what, "python", f"its metadata says {lost[0]}", "use an older Python or a newer torch")]


def library_wish_findings(build: Build, spec: Spec) -> list[Finding]:
    """Whether the cuDNN and NCCL that the spec gives are those that torch was built with; a part of a version stands for all of it."""
    findings = []
    for library, key, asked, own in (("cuDNN", "cudnn", spec.stack.cudnn, build.cudnn), ("NCCL", "nccl", spec.stack.nccl, build.nccl)):
        if asked is None or (own is not None and _is_part(asked, own)):
            continue
        where, id_ = f"stack.{key}", f"{key}-version"
        if own is None and build.requires is None:
            what = f"envlock does not know the {library} of {build.title}, so {asked} is checked after locking"
            findings.append(Finding(id_, "info", what, where))
        elif own is None:
            kind = "has none" if build.cuda is None else "has its own built in"
            what = f"{build.title} {kind}, and {library} {asked} is asked for"
            findings.append(Finding(id_, "error", what, where, hint=f"leave `{key}` out"))
        else:
            what = f"{build.title} needs {library} {own}, and {asked} is asked for"
            why = "torch pins it exactly: it is compiled against that version"
            findings.append(Finding(id_, "error", what, where, why, f"leave `{key}` out, or write {own}"))
    return findings


def _is_part(asked: str, whole: str) -> bool:
    parts, full = asked.split("."), whole.split(".")
    return full[: len(parts)] == parts


def constraints(build: Build, python: str, spec: Spec, family: Iterable[str], catalogue: Catalogue) -> tuple[str, ...]:
    """What every package is held to: the torch family, NumPy's ABI, and the libraries that the spec names."""
    held = [text for text in family if Requirement(text).specifier]
    held += [f"numpy{row.constraint}" for row in catalogue.numpy if row.abi == build.numpy_abi]
    wished = {"nvidia-cudnn": spec.stack.cudnn, "nvidia-nccl": spec.stack.nccl}
    for name, pinned in sorted(pins(build, python).items()):
        if any(name.startswith(library) and asked for library, asked in wished.items()):
            held.append(f"{name}{pinned}")
    return tuple(held)
