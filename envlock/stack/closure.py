"""The rules asked again of what was really locked: the wheels, after resolving, as one closure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envlock import lock
from envlock.catalogue import Catalogue
from envlock.errors import Finding
from envlock.stack.packages import holds, named_cuda, target_environment
from envlock.stack.solution import Solution


def check_closure(wheels: Sequence[lock.Wheel], solution: Solution, catalogue: Catalogue) -> tuple[Finding, ...]:
    """What is wrong with a locked closure; none where every rule holds.

    One version of each project; torch as solved, with its pins and those of its cuda-toolkit honoured; one CUDA family; torch,
    torchvision and torchaudio of one build from one index; no CPU wheel where CUDA was asked for; NumPy of torch's ABI.
    """
    by_name: dict[str, list[lock.Wheel]] = defaultdict(list)
    for wheel in wheels:
        by_name[canonicalize_name(wheel.name)].append(wheel)
    findings = [_twice(name, found) for name, found in sorted(by_name.items()) if len(found) > 1]
    one = {name: found[0] for name, found in by_name.items()}
    torch = one.get("torch")
    if torch is None:
        return (*findings, Finding("torch-missing", "error", "the locked packages hold no torch", "torch"))
    findings += _torch(torch, solution)
    findings += _cpu_only(torch, one, solution)
    findings += _pins(one, solution, catalogue)
    findings += _families(one, solution)
    findings += _sisters(torch, one, solution)
    findings += _numpy(one, solution)
    return tuple(findings)


def completed(stack: lock.Stack, wheels: Sequence[lock.Wheel]) -> lock.Stack:
    """The stack with what only locking tells: triton's exact version, and those of cuDNN and NCCL where the catalogue has none."""
    versions = {str(canonicalize_name(wheel.name)): wheel.version for wheel in wheels}
    found: dict[str, str] = {}
    for name, version in versions.items():
        for key, prefix in (("cudnn", "nvidia-cudnn-cu"), ("nccl", "nvidia-nccl-cu")):
            if name.startswith(prefix) and getattr(stack, key) is None:
                found[key] = version
    if "triton" in versions:
        found["triton"] = versions["triton"]
    return stack.model_copy(update=found)


def _twice(name: str, found: list[lock.Wheel]) -> Finding:
    versions = " and ".join(sorted({wheel.version for wheel in found}))
    return Finding("closure-twice", "error", f"{name} is locked more than once: {versions}", name, hint="lock again; report it if it stays")


def _torch(torch: lock.Wheel, solution: Solution) -> list[Finding]:
    version, stack = Version(torch.version), solution.stack
    findings = []
    if version.public != stack.torch:
        what = f"torch {torch.version} was locked, and the stack is torch {stack.torch}"
        findings.append(Finding("torch-moved", "error", what, "torch", hint="lock again"))
    if version.local is not None and version.local != stack.variant:
        id_ = "cpu-only-wheel" if version.local == "cpu" else "torch-cuda"
        what = f"the wheel {torch.file} is the build for {version.local}, and the stack needs {stack.variant}"
        hint = "take the other build out of your find-links, or name its variant in `stack.cuda`"
        findings.append(Finding(id_, "error", what, "torch", hint=hint))
    if solution.torch_index == "pytorch" and version.local is None:
        what = f"the wheel {torch.file} does not name its build, and the stack needs {stack.variant}"
        why = "a wheel without a local version is the default index's build"
        findings.append(Finding("torch-cuda", "error", what, "torch", why, f"it must be {solution.torch_requirement}"))
    return findings


def _cuda_major(name: str, version: str) -> int | None:
    """The CUDA major version that a library belongs to, by its suffix, or by its version where CUDA's own libraries have none."""
    if major := named_cuda(name):
        return int(major)
    if name in ("nvidia-cuda-runtime", "nvidia-cuda-nvrtc", "nvidia-cuda-cupti", "nvidia-cublas", "nvidia-nvjitlink", "cuda-toolkit"):
        return Version(version).major
    return None


def _is_library(name: str) -> bool:
    return name.startswith("nvidia-") or name.startswith("cuda-toolkit")


def _cpu_only(torch: lock.Wheel, one: dict[str, lock.Wheel], solution: Solution) -> list[Finding]:
    """CUDA asked for and no CUDA library locked, where torch's own metadata asks for them."""
    if solution.stack.variant == "cpu" or not solution.requires or any(map(_is_library, one)):
        return []
    what = f"no CUDA library was locked beside {torch.file}, so it is a CPU build"
    why = f"the stack is built for CUDA {solution.stack.cuda}"
    return [Finding("cpu-only-wheel", "error", what, "torch", why, "write cuda: cpu where that is meant")]


def _wanted(texts: Sequence[str], solution: Solution) -> list[Requirement]:
    environment = target_environment(solution.stack.python, solution.stack.platform)
    return [wanted for wanted in map(Requirement, texts) if holds(wanted, environment)]


def _pins(one: dict[str, lock.Wheel], solution: Solution, catalogue: Catalogue) -> list[Finding]:
    """torch's pins, and through cuda-toolkit those of CUDA's libraries."""
    pinned = [(wanted, f"torch {solution.stack.torch}") for wanted in _wanted(solution.requires or (), solution)]
    toolkit = one.get("cuda-toolkit")
    row = next((row for row in catalogue.toolkits if toolkit and Version(row.version) == Version(toolkit.version)), None)
    if row is not None:
        libraries = {canonicalize_name(name) for name in one}
        held = [wanted for wanted in _wanted(row.requires, solution) if canonicalize_name(wanted.name) in libraries]
        pinned += [(wanted, f"cuda-toolkit {row.version}") for wanted in held]
    findings = []
    for wanted, by in pinned:
        name = canonicalize_name(wanted.name)
        wheel = one.get(name)
        if wheel is None:
            what = f"{by} needs {name}{wanted.specifier}, and it is not locked"
            findings.append(Finding("closure-pin", "error", what, name, hint="lock again"))
        elif not wanted.specifier.contains(wheel.version, prereleases=True):
            what = f"{by} needs {name}{wanted.specifier}, and {wheel.version} is locked"
            why = "torch is compiled against the version that it pins"
            findings.append(Finding("closure-pin", "error", what, name, why, f"leave {name} out of the packages"))
    return findings


def _families(one: dict[str, lock.Wheel], solution: Solution) -> list[Finding]:
    """Libraries of a second CUDA major version."""
    found: dict[int, list[str]] = defaultdict(list)
    for name, wheel in sorted(one.items()):
        major = _cuda_major(name, wheel.version)
        if major is not None:
            found[major].append(name)
    own = int(solution.stack.cuda.split(".")[0]) if solution.stack.cuda else None
    findings = []
    for major, names in sorted(found.items()):
        if own is None:
            what = f"a CPU stack holds CUDA {major} libraries: {', '.join(names)}"
            findings.append(Finding("second-cuda", "warning", what, names[0], "a package asked for them; torch does not use them"))
        elif major != own:
            what = f"the stack is CUDA {solution.stack.cuda}, and {', '.join(names)} belong to CUDA {major}"
            why = "two CUDA families in one process load each other's libraries"
            hint = f"take the package's build for CUDA {own}, or a torch built for CUDA {major}"
            findings.append(Finding("second-cuda", "error", what, names[0], why, hint))
    return findings


def _sisters(torch: lock.Wheel, one: dict[str, lock.Wheel], solution: Solution) -> list[Finding]:
    findings = []
    local = Version(torch.version).local
    for project, wanted in sorted(solution.family_versions.items()):
        wheel = one.get(project)
        if wheel is None:
            continue
        version = Version(wheel.version)
        if version.public != wanted:
            what = f"{project} {wheel.version} is locked, and {wanted} belongs to torch {solution.stack.torch}"
            findings.append(Finding("torch-family", "error", what, project, hint=f"ask for {project}=={wanted}, or leave its version out"))
        elif version.local is not None and version.local != local:
            what = f"{project} {wheel.version} and torch {torch.version} are of two builds"
            findings.append(Finding("torch-family", "error", what, project, hint=f"both must be +{solution.stack.variant}"))
        elif (torch.index, wheel.index) == ("pytorch", "default") and f"{project}=={wanted}+{local}" in solution.constraints:
            what = f"{project} {wheel.version} comes from the default index and torch {torch.version} from PyTorch's own"
            why = "the default index's build is compiled for another CUDA"
            findings.append(Finding("torch-family", "error", what, project, why, f"ask for {project}=={wanted}+{solution.stack.variant}"))
    return findings


def _numpy(one: dict[str, lock.Wheel], solution: Solution) -> list[Finding]:
    limit = next((Requirement(text) for text in solution.constraints if canonicalize_name(Requirement(text).name) == "numpy"), None)
    wheel = one.get("numpy")
    if limit is None or wheel is None or limit.specifier.contains(wheel.version, prereleases=True):
        return []
    what = f"numpy {wheel.version} is locked, and torch {solution.stack.torch} needs {limit}"
    return [Finding("numpy-abi", "error", what, "numpy", hint=f"ask for {limit}")]
