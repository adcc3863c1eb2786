"""From a spec to a stack that fits together, or all reasons why there is none. No network, clock or Docker."""

from __future__ import annotations

import re

from envlock import lock
from envlock.catalogue import Catalogue, drivers
from envlock.catalogue.rows import Build
from envlock.errors import Exit, Finding, Problems
from envlock.runtime import settings
from envlock.secrecy import is_secret
from envlock.spec import ImageBase, Spec
from envlock.stack import base, build, packages, targets
from envlock.stack.solution import BaseFacts, Solution
from envlock.stack.wish import Wish

SPEC = "the spec"
MOST_DIGITS = 99
SPEC_FAULTS = frozenset({"env-value", "env-override", "gpu-unknown", "debian-unknown"})


def solve(spec: Spec, catalogue: Catalogue, base_facts: BaseFacts | None = None) -> Solution:
    """The stack for a spec. `base_facts` are those of the base image's config, once it was read.

    Raises `Problems` with every fault and warning: exit status 2 where all faults are the spec's own, 3 where no stack fits.
    `where` of a finding is a dotted path into the spec, as `stack.cuda` or `packages.1`.
    """
    _refuse_endless_numbers(spec)
    gpus, findings = targets.find_gpus(spec.target.gpus, catalogue)
    findings += environment_findings(spec)
    wish = Wish(spec.target.platform, tuple(gpus), spec.target.driver, spec.python)
    chosen = _choose(spec, wish, catalogue)
    builds = [chosen[0]] if isinstance(chosen, tuple) else []
    ground, base_findings = base.ground(spec, builds, base_facts, catalogue)
    findings += base_findings
    if not isinstance(chosen, tuple):
        raise Problems(_ordered([chosen, *findings]), Exit.NO_STACK)
    one, patch, origin = chosen
    asked_cuda = "cpu" if origin == SPEC and one.cuda is None else spec.stack.cuda
    cuda = patch or one.cuda
    findings += targets.gpu_findings(one, wish, catalogue) + targets.cpu_findings(one, asked_cuda, wish, catalogue)
    findings += targets.driver_findings(one, cuda, wish, catalogue)
    findings += packages.library_wish_findings(one, spec)
    python = ground.python if ground is not None and ground.python else spec.python or ""
    if python:
        findings += build.python_faults(one, python, catalogue)
        asked = packages.asked_packages(spec, python)
        findings += packages.package_findings(one, python, asked, catalogue) + packages.second_cuda_findings(one, asked)
        findings += packages.triton_findings(one, python)
    if ground is not None:
        findings += base.glibc_findings(one, ground) + base.library_findings(one, ground)
        findings += base.config_findings(ground, spec.target.driver, catalogue)
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors or ground is None:
        pure = all(finding.id in SPEC_FAULTS for finding in errors)
        raise Problems(_ordered(findings), Exit.USAGE if pure else Exit.NO_STACK)
    return _solution(spec, one, cuda, origin, ground, python, wish, findings, catalogue)


def _refuse_endless_numbers(spec: Spec) -> None:
    """Numbers of so many digits are no version, and Python refuses to read them."""
    texts = {"stack.torch": spec.stack.torch, "stack.cuda": spec.stack.cuda, "target.driver": spec.target.driver}
    texts |= {f"packages.{place}": text for place, text in enumerate(spec.packages)}
    if isinstance(spec.base, ImageBase):
        texts["base.image"] = spec.base.image
    faults = [where for where, text in texts.items() if re.search(rf"\d{{{MOST_DIGITS + 1}}}", text or "")]
    if faults:
        what, hint = f"a number of more than {MOST_DIGITS} digits is no version", "write the version"
        raise Problems([Finding("spec-value", "error", what, where, hint=hint) for where in faults], Exit.USAGE)


def _choose(spec: Spec, wish: Wish, catalogue: Catalogue) -> tuple[Build, str | None, str] | Finding:
    """The build, the CUDA patch release that the spec names if any, and the rule that chose it; or why there is none."""
    release = build.release_of(spec.stack.torch, catalogue)
    if isinstance(release, Finding):
        return release
    cuda = build.cuda_wish(spec.stack, release)
    if isinstance(cuda, Finding):
        return cuda
    chosen = build.choose(release, cuda, wish, catalogue)
    return chosen if isinstance(chosen, Finding) else (chosen[0], cuda.patch, chosen[1])


def environment_findings(spec: Spec) -> list[Finding]:
    """Variables of the spec that break or undo its level, or shadow the wheels' libraries."""
    wish = spec.determinism
    faults = settings.faults(spec.env, level=wish.level, tf32=wish.tf32, reserved=True)
    found = [Finding(fault.id, "error", fault.what, f"env.{fault.name}", fault.why, fault.hint) for fault in faults]
    why = "what a spec sets is in its lock, in the image and in every artifact of it, for all to read"
    hint = "give it when the container starts: `docker run -e NAME`, `envlock run --env NAME=VALUE`"
    secret = [name for name in spec.env if is_secret(name)]
    return found + [Finding("env-secret", "warning", f"{name} is called like a secret", f"env.{name}", why, hint) for name in secret]


def _ordered(findings: list[Finding]) -> list[Finding]:
    """Errors first, each finding once."""
    rank = {"error": 0, "warning": 1, "info": 2}
    return sorted(dict.fromkeys(findings), key=lambda finding: rank[finding.severity])


def _solution(
    spec: Spec,
    one: Build,
    cuda: str | None,
    origin: str,
    ground: base.Ground,
    python: str,
    wish: Wish,
    findings: list[Finding],
    catalogue: Catalogue,
) -> Solution:
    own = packages.pins(one, python)
    need = drivers.needs(cuda, catalogue) if cuda is not None else None
    asked = packages.asked_packages(spec, python)
    family = packages.family_requirements(one, asked, catalogue)
    names = {package.name for package in asked}
    triton = str(own["triton"]).removeprefix("==") if "triton" in own else None
    stack = lock.Stack(
        torch=one.torch,
        variant=one.variant,
        python=python,
        platform=one.platform,
        cuda=one.cuda,
        cudnn=one.cudnn,
        nccl=one.nccl,
        triton=triton if triton and triton[0].isdigit() else None,
        driver_floor=targets.driver_floor(cuda, wish, catalogue),
        architectures=one.architectures,
        gpus=tuple(dict.fromkeys(gpu.architecture for gpu in wish.gpus)),
    )
    major, minor = (int(part) for part in one.glibc.split("."))
    return Solution(
        stack=stack,
        torch_requirement=one.requirement,
        torch_index="pytorch" if one.index == "pytorch" else "default",
        torch_index_path=f"whl/{one.variant}" if one.index == "pytorch" else "",
        family=tuple(text for project, text in family.items() if project in names),
        constraints=packages.constraints(one, python, spec, family.values(), catalogue),
        base=ground.base,
        glibc=ground.glibc or (major, minor),
        python_packages=ground.python_packages,
        origins=_origins(spec, one, origin, ground, need, catalogue),
        findings=tuple(_ordered(findings)),
        requires=one.requires,
        family_versions={row.project: row.version for row in packages.family_of(one, catalogue) if row.pinned},
    )


def _origins(
    spec: Spec, one: Build, origin: str, ground: base.Ground, need: drivers.CudaDriver | None, catalogue: Catalogue
) -> dict[str, str]:
    """For each value of the stack, in a few words, where it came from."""
    release = build.release_of(spec.stack.torch, catalogue)
    pinned = f"pinned by {one.title}" if one.requires is not None else f"stated for {one.title} by PyTorch's release matrix"
    found = {
        "torch": release.origin if isinstance(release, build.Release) else SPEC,
        "cuda": origin,
        "python": ground.python_origin,
        "base": ground.base_origin,
        "platform": SPEC if "platform" in spec.target.model_fields_set else "left out; the default",
        "index": "the default index" if one.index == "default" else "PyTorch's own index, which alone has this build",
        "glibc": f"that of {ground.title}" if ground.glibc else f"not known of the base; what {one.title} needs",
        "architectures": f"{one.source}: {one.how}",
    }
    for key, value in (("cudnn", one.cudnn), ("nccl", one.nccl), ("triton", one.triton)):
        if value is not None:
            found[key] = pinned
    if need is not None:
        row = need.row
        found["driver_floor"] = f"oldest for CUDA {row.cuda.split('.')[0]}.x; {row.driver} came with {row.cuda} ({row.source})"
    return found
