"""GPU names, compute capabilities, and which device runs which code."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from envlock.catalogue.loader import Catalogue
from envlock.catalogue.rows import Build, CodeRule, Generation, GpuModel, Numbers, numbers

_VENDOR_WORDS = ("nvidia", "geforce", "tesla", "quadro")
_FORM_WORDS = re.compile(r"sxm\d*|pcie|nvl|hbm\de?|\d+gb|laptop|mobile|gpu|generation")
_FORM_ENDING = re.compile(r"(?:sxm\d*|pcie|nvl)$")
_CAPABILITY = re.compile(r"(?:sm_?|compute_?|cc)?(\d{1,2})(?:\.(\d)|(?<=\d)(\d))[af]?")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A target: what it was called, its compute capability, its model where one was named, and its place in the spec's list."""

    asked: str
    capability: Numbers
    model: GpuModel | None = None
    place: int = 0

    @property
    def architecture(self) -> str:
        """As in `sm_90`."""
        return "sm_{}{}".format(*self.capability)

    @property
    def title(self) -> str:
        """For messages: `sm_120 (RTX 5090)`."""
        if self.model is None:
            return self.architecture
        return f"{self.architecture} ({self.model.name.removeprefix('GeForce ')})"


@cache
def plain(name: str) -> str:
    """A GPU's name without case, punctuation, vendor, form factor and memory size.

    `NVIDIA A100-SXM4-80GB MIG 3g.40gb`, as nvidia-smi prints it, is `a100`.
    """
    words = re.findall(r"[a-z0-9]+", re.sub(r"\bmig\b.*", "", name.lower()))
    kept = [word for word in words if word not in _VENDOR_WORDS and not _FORM_WORDS.fullmatch(word)]
    joined = "".join(kept)
    for word in _VENDOR_WORDS:
        joined = joined.removeprefix(word)
    return _FORM_ENDING.sub("", joined)


def find(name: str, catalogue: Catalogue) -> Gpu | None:
    """The GPU that a name stands for: a model, or a capability as `sm_90` or `9.0`; None where there is none."""
    wanted = plain(name)
    by_plain = {plain(model.name): model for model in reversed(catalogue.gpus)}
    for spelling in (wanted, f"rtx{wanted}", f"gtx{wanted}", f"jetson{wanted}"):
        if model := by_plain.get(spelling):
            return Gpu(name, numbers(model.capability), model)
    known = {numbers(capability) for generation in catalogue.generations for capability in generation.capabilities}
    known |= {numbers(model.capability) for model in catalogue.gpus}
    match = _CAPABILITY.fullmatch(name.strip().lower())
    if match and (match[2] or not match[0][0].isdigit()):
        capability = (int(match[1]), int(match[2] or match[3]))
        return Gpu(name, capability) if capability in known else None
    return None


def nearest_names(name: str, catalogue: Catalogue) -> list[str]:
    """Up to two model names that look like this one."""
    by_plain = {plain(model.name): plain(model.name) for model in catalogue.gpus}
    return difflib.get_close_matches(plain(name), by_plain, n=2, cutoff=0.7)


def generation(capability: Numbers, catalogue: Catalogue) -> Generation | None:
    """The generation of a compute capability, or None where the table has none."""
    return next((row for row in catalogue.generations if capability in map(numbers, row.capabilities)), None)


def _rule_holds(rule: CodeRule, capability: Numbers, cuda: Numbers) -> bool:
    if rule.only:
        return capability in map(numbers, rule.only)
    if rule.start is None or rule.end is None or not numbers(rule.start) <= capability < numbers(rule.end):
        return False
    freed = rule.excluded_before_cuda is not None and cuda >= numbers(rule.excluded_before_cuda)
    return freed or capability not in map(numbers, rule.excluded)


def runs_code(architecture: str, capability: Numbers, cuda: Numbers, catalogue: Catalogue) -> bool:
    """Whether a device runs machine code compiled for `sm_XX` by this CUDA release."""
    code = architecture.removeprefix("sm_")
    if code[-1] in "af":
        return capability == (int(code[:-2]), int(code[-2]))
    return any(rule.code == code and _rule_holds(rule, capability, cuda) for rule in catalogue.code)


def runs_natively(build: Build, gpu: Gpu, catalogue: Catalogue) -> bool:
    """Whether a build has machine code that the GPU runs."""
    cuda = numbers(build.cuda or "0")
    code = (architecture for architecture in build.architectures if architecture.startswith("sm_"))
    return any(runs_code(architecture, gpu.capability, cuda, catalogue) for architecture in code)


def runs_by_ptx(build: Build, gpu: Gpu) -> bool:
    """Whether a build has PTX that a driver can compile for the GPU: PTX of its capability or an older one."""
    ptx = (architecture.removeprefix("compute_") for architecture in build.architectures if architecture.startswith("compute_"))
    return any((int(code[:-1]), int(code[-1])) <= gpu.capability for code in ptx if code[-1].isdigit())


def serves(build: Build, gpus: Iterable[Gpu], catalogue: Catalogue) -> bool:
    """Whether one build runs on all of these GPUs, natively or by PTX."""
    return all(runs_natively(build, gpu, catalogue) or runs_by_ptx(build, gpu) for gpu in gpus)
