"""The base: chosen where the spec leaves it out, and checked against Python, glibc and the CUDA libraries of the wheels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from envlock.catalogue import Catalogue, drivers
from envlock.catalogue.rows import Build, Distribution, numbers
from envlock.errors import Finding
from envlock.spec import ArchiveBase, DebianBase, ImageBase, Spec
from envlock.stack.images import Reference, distribution_in, guess, moving, only_distribution_pythons
from envlock.stack.solution import Base, BaseFacts

OLD_GLIBC = (2, 28)


@dataclass(frozen=True, slots=True)
class Ground:
    """The base as far as it is known: what was chosen and why, its Python, glibc, distribution and CUDA libraries."""

    base: Base
    base_origin: str
    python: str | None
    python_origin: str
    facts: BaseFacts
    distribution: Distribution | None
    python_packages: tuple[str, ...]

    @property
    def glibc(self) -> tuple[int, int] | None:
        if self.distribution is None:
            return None
        major, minor = numbers(self.distribution.glibc)
        return major, minor

    @property
    def title(self) -> str:
        """How messages name the base."""
        if isinstance(self.base, ImageBase):
            return self.base.image
        return self.base.archive if isinstance(self.base, ArchiveBase) else f"debian {self.base.debian}"


def ground(spec: Spec, builds: Sequence[Build], base_facts: BaseFacts | None, catalogue: Catalogue) -> tuple[Ground | None, list[Finding]]:
    """The base and Python of a spec. `builds` are those of its torch; the first that stays decides where Python is left out."""
    if spec.base is None:
        return _chosen(spec, builds, catalogue)
    if isinstance(spec.base, DebianBase):
        return _debian(spec.base, spec.python, catalogue)
    return _given(spec, spec.base, base_facts, builds, catalogue)


def debian_bases(catalogue: Catalogue) -> list[Distribution]:
    """Debian releases that envlock can bootstrap, newest first."""
    rows = [row for row in catalogue.distributions if row.debian_base]
    return sorted(rows, key=lambda row: numbers(row.version), reverse=True)


def _choices(catalogue: Catalogue) -> str:
    return ", ".join(f"{row.names[0]} (Python {row.python})" for row in reversed(debian_bases(catalogue)))


def _chosen(spec: Spec, builds: Sequence[Build], catalogue: Catalogue) -> tuple[Ground | None, list[Finding]]:
    rows = debian_bases(catalogue)
    if spec.python is None:
        row, why = _newest_that_serves(rows, builds)
        origin = f"left out; own Python of Debian {row.names[0]}, {why}"
        return Ground(DebianBase(debian=row.names[0]), "left out; " + why, row.python, origin, BaseFacts(), row, ()), []
    own = next((row for row in rows if row.python == spec.python), None)
    if own is not None:
        origin = f"left out; the Debian release whose own Python is {spec.python}"
        return Ground(DebianBase(debian=own.names[0]), origin, spec.python, "the spec", BaseFacts(), own, ()), []
    image = next((row.image for row in catalogue.images if row.python == spec.python), None)
    if image is None:
        what = f"envlock knows no base for Python {spec.python}"
        hint = f"use a Python that a Debian release has: {_choices(catalogue)}; or name an image that has it, base: {{image: …}}"
        return None, [Finding("base-python", "error", what, "python", "no Debian release has it as its own", hint)]
    facts = guess(Reference.parse(image), catalogue)
    what = f"base {image} was chosen, since no Debian release has Python {spec.python} as its own"
    finding = Finding("base-chosen", "info", what, "python", hint=f"to need no registry, use {_choices(catalogue)}")
    origin = f"left out; no Debian release has Python {spec.python} as its own, this image does"
    system = distribution_in(facts.distribution or "", catalogue)
    return Ground(ImageBase(image=image), origin, spec.python, "the spec", facts, system, ()), [finding]


def _newest_that_serves(rows: list[Distribution], builds: Sequence[Build]) -> tuple[Distribution, str]:
    """The newest Debian release whose Python a build and its triton have wheels for, else the one that most builds do."""
    for row in rows:
        if any(row.python in build.python and not _without_triton(build, row.python or "") for build in builds):
            return row, "the newest release whose own Python this torch (and its triton) has wheels for"
    for row in rows:
        if any(row.python in build.python for build in builds):
            return row, "the newest release whose own Python this torch has wheels for"
    return rows[0], "the newest release"


def _without_triton(build: Build, python: str) -> bool:
    """Whether a build leaves its triton out for this Python, so that torch.compile does not work."""
    for text in build.requires or ():
        bound = re.fullmatch(r'triton\b[^;]*; python_version < "([\d.]+)"', text)
        if bound:
            return numbers(python) >= numbers(bound[1])
    return False


def _debian(base: DebianBase, python: str | None, catalogue: Catalogue) -> tuple[Ground | None, list[Finding]]:
    rows = debian_bases(catalogue)
    row = next((row for row in rows if base.debian in row.names), None)
    if row is None:
        what = f"envlock cannot bootstrap Debian {base.debian!r}"
        return None, [Finding("debian-unknown", "error", what, "base.debian", hint=f"use {_choices(catalogue)}")]
    if python is not None and python != row.python:
        own = next((other for other in rows if other.python == python), None)
        hint = f"use python {row.python}"
        hint += f", or base {{debian: {own.names[0]}}}" if own else ", or name an image that has it, or leave `base` out"
        what = f"Debian {base.debian} has no Python {python}"
        why = f"its own is {row.python}; Debian's are {_choices(catalogue)}"
        return None, [Finding("base-python", "error", what, "python", why, hint)]
    origin = "the spec" if python else f"left out; own Python of Debian {base.debian}"
    return Ground(base, "the spec", row.python, origin, BaseFacts(), row, ()), []


def _given(
    spec: Spec, base: ImageBase | ArchiveBase, base_facts: BaseFacts | None, builds: Sequence[Build], catalogue: Catalogue
) -> tuple[Ground | None, list[Finding]]:
    reference = Reference.parse(base.image) if isinstance(base, ImageBase) else None
    facts = guess(reference, catalogue) if reference else BaseFacts()
    if base_facts is not None:
        facts = base_facts.over(facts)
    system = distribution_in(facts.distribution or "", catalogue)
    own = facts.python or (system.python if system else None)
    findings = _kind_faults(base, facts, system, spec)
    if reference is not None and moving(reference, catalogue):
        tag = reference.tag or "latest (none is given)"
        what = f"the tag {tag} of {reference.name} is moved from version to version"
        hint = "name a tag with its full version; the lock pins the digest either way"
        findings.append(Finding("base-moving-tag", "warning", what, "base.image", "the next lock may get another image", hint))
    python, origin = spec.python, "the spec"
    if python is None and own is not None:
        python, origin = own, "left out; the base's own Python"
    elif python is None:
        row, _ = _newest_that_serves(debian_bases(catalogue), builds)
        python, origin = row.python, "left out, and the base's own is not known; a Python that this torch has wheels for"
        what = f"the Python of this base is not known; {python} was taken"
        findings.append(Finding("python-unknown", "warning", what, "base", hint='say which Python the base has: python: "3.11"'))
    elif facts.python is not None and facts.python != python:
        what = f"the base has Python {facts.python}, and {python} is asked for"
        findings.append(Finding("base-python", "error", what, "python", hint=f"use python {facts.python}, or another base"))
    packages: tuple[str, ...] = ()
    if system is not None and facts.python is None and reference is not None and only_distribution_pythons(reference):
        if python in system.pythons and system.packages == "debian":
            packages = (f"python{python}",)
        else:
            findings.append(_no_python(python or "", system, catalogue))
    return Ground(base, "the spec", python, origin, facts, system, packages), findings


def _no_python(python: str, system: Distribution, catalogue: Catalogue) -> Finding:
    others = [row.title for row in catalogue.distributions if python in row.pythons]
    hint = f"use python {' or '.join(system.pythons)}" if system.pythons else "use an image that has a Python"
    hint += f", or a base of {' or '.join(others)}" if others else ""
    why = f"its archive has {', '.join(system.pythons)}" if system.pythons else "it brings none, and envlock installs packages by apt only"
    return Finding("base-python", "error", f"{system.title} has no Python {python}", "python", why, hint)


def _kind_faults(base: ImageBase | ArchiveBase, facts: BaseFacts, system: Distribution | None, spec: Spec) -> list[Finding]:
    where = "base.image" if isinstance(base, ImageBase) else "base.archive"
    if (facts.distribution or "").startswith("alpine"):
        what = "Alpine Linux cannot be a base"
        why = "it has musl, and the wheels of torch and CUDA need glibc"
        return [Finding("base-glibc", "error", what, where, why, "use an image of Debian or Ubuntu")]
    if system is not None and system.packages != "debian" and spec.apt:
        what = f"{system.title} has no apt, and the spec lists apt packages"
        return [Finding("base-apt", "error", what, "apt", hint="use a base of Debian or Ubuntu, or leave `apt` out")]
    return []


def glibc_findings(build: Build, here: Ground) -> list[Finding]:
    """Whether the base's glibc is new enough for torch, and for wheels in general."""
    if here.glibc is None:
        return []
    wanted = numbers(build.glibc)
    have = "{}.{}".format(*here.glibc)
    if here.glibc < wanted:
        what = f"{here.title} has glibc {have}, and {build.title} needs {build.glibc}"
        return [Finding("base-glibc", "error", what, "base", hint=f"use a base with glibc {build.glibc} or newer, such as ubuntu 22.04")]
    if here.glibc < OLD_GLIBC:
        what = f"{here.title} has glibc {have}"
        why = "many wheels of today need 2.28, so older releases of packages will be locked, or none found"
        return [Finding("base-old-glibc", "warning", what, "base", why, "use a newer base")]
    return []


def library_findings(build: Build, here: Ground) -> list[Finding]:
    """Two copies of CUDA, cuDNN, NCCL or torch in one image: warnings that name both."""
    facts, findings = here.facts, []
    where = "base.image" if isinstance(here.base, ImageBase) else "base.archive"
    ours = "envlock's are used: they are found first, and the base's LD_LIBRARY_PATH is dropped"
    if facts.torch is not None:
        copy = f"its own torch {facts.torch}".rstrip()
        what = f"{here.title} has {copy}, and torch {build.torch} is installed beside it in /opt/venv"
        hint = "use a base without torch: it is smaller"
        findings.append(Finding("two-torch", "warning", what, where, "the base's own is never imported", hint))
    if build.cuda is None:
        return findings
    smaller = "use a base without CUDA (the wheels bring it), or of the same version"
    if facts.cuda and numbers(facts.cuda)[:2] != numbers(build.cuda):
        what = f"{here.title} has CUDA {facts.cuda}, and torch brings CUDA {build.cuda}"
        why = f"{ours}; what is compiled in the image would meet {facts.cuda}"
        findings.append(Finding("base-cuda", "warning", what, where, why, smaller))
    elif facts.cuda and facts.flavour in ("runtime", "devel"):
        what = f"{here.title} has CUDA {facts.cuda}, and torch brings CUDA {build.cuda} as well"
        findings.append(Finding("two-cuda", "info", what, where, ours, smaller))
    for library, id_, theirs, own in (("cuDNN", "two-cudnn", facts.cudnn, build.cudnn), ("NCCL", "two-nccl", facts.nccl, build.nccl)):
        if theirs is None:
            continue
        version = theirs or "of a version not known before it is pulled"
        what = f"{here.title} has {library} {version}, and torch brings {library} {own}" if own else f"{here.title} has {library} {version}"
        what += "" if own else ", and torch has its own built in"
        why = f"{ours}; a process that loads the base's lib{id_.removeprefix('two-')} by mistake fails"
        findings.append(Finding(id_, "warning", what, where, why, f"use a base without {library}"))
    return findings


def config_findings(here: Ground, driver: str | None, catalogue: Catalogue) -> list[Finding]:
    """What a base's ENV would do: shadow the wheels' libraries, or refuse to start on the target's driver."""
    findings = []
    if here.facts.loader_path:
        what = f"the base sets LD_LIBRARY_PATH={here.facts.loader_path}"
        why = "libraries there would shadow those of the wheels; the image is built without it"
        findings.append(Finding("base-loader-path", "warning", what, "base", why))
    if driver is not None and here.facts.require_cuda and not _may_start(here.facts.require_cuda, driver, catalogue):
        served = drivers.newest_cuda(driver, catalogue)
        what = f"the base asks for {here.facts.require_cuda.split()[0]}, and driver {driver} serves CUDA {served}"
        why = "NVIDIA's container runtime refuses to start such an image; some brands of GPU may be excepted"
        hint = "use a base of an older CUDA, or update the driver"
        findings.append(Finding("base-require-cuda", "warning", what, "target.driver", why, hint))
    return findings


def _may_start(condition: str, driver: str, catalogue: Catalogue) -> bool:
    """Whether NVIDIA_REQUIRE_CUDA can hold: clauses between spaces are alternatives, terms between commas must all hold.

    Terms on the brand of the GPU count as met. Source: NVIDIA Container Toolkit documentation, NVIDIA_REQUIRE_*.
    """
    have = {"cuda": numbers(drivers.newest_cuda(driver, catalogue) or "0"), "driver": numbers(driver)}
    return any(all(_term(term, have) for term in clause.split(",")) for clause in condition.split())


def _term(term: str, have: dict[str, tuple[int, ...]]) -> bool:
    match = re.fullmatch(r"(cuda|driver)(>=|<=|!=|<|>|=)([0-9]{1,9}(?:\.[0-9]{1,9})*)", term)
    if not match:
        return True
    wanted = numbers(match[3])
    left = have[match[1]][: len(wanted)]
    wanted = wanted[: len(left)]
    order = (left > wanted) - (left < wanted)
    return order in {">=": (0, 1), "<=": (0, -1), "<": (-1,), ">": (1,), "=": (0,), "!=": (-1, 1)}[match[2]]
