"""What the reference of a base image says about it, before anything is pulled."""

from __future__ import annotations

import re
from dataclasses import dataclass

from envlock.catalogue import Catalogue
from envlock.catalogue.rows import Distribution
from envlock.stack.solution import BaseFacts

_CUDA = re.compile(r"(?:^|[^a-z0-9])cuda[-_]?(\d+\.\d+(?:\.\d+)?)")
_CUDA_SHORT = re.compile(r"(?:^|[^a-z0-9])cu(\d{2})(\d)(?![0-9])")
_CUDNN = re.compile(r"cudnn(\d*)")
_FLAVOUR = re.compile(r"(?:^|-)(base|runtime|devel)(?:-|$)")
_DISTRIBUTION = re.compile(r"(debian|ubuntu|rockylinux|rocky|ubi|rhel|centos)[- ]?(\d+(?:\.\d+)?)")
_SAME_SYSTEM = {"rocky": "rockylinux", "rhel": "ubi"}
_ALPINE = re.compile(r"alpine")


@dataclass(frozen=True, slots=True)
class Reference:
    """An image reference in its parts; `name` without registry and `library/`."""

    whole: str
    name: str
    tag: str
    digest: str

    @staticmethod
    def parse(text: str) -> Reference:
        rest, _, digest = text.partition("@")
        path, slash, last = rest.rpartition("/")
        last, _, tag = last.partition(":")
        parts = [*path.split("/"), last] if slash else [last]
        if len(parts) > 1 and ("." in parts[0] or ":" in parts[0] or parts[0] == "localhost"):
            parts = parts[1:]
        return Reference(text, "/".join(parts).removeprefix("library/"), tag, digest)


def moving(reference: Reference, catalogue: Catalogue) -> bool:
    """Whether a reference names neither a version nor a release nor a digest, so that it means another image from day to day."""
    if reference.digest:
        return False
    names = {name for row in catalogue.distributions for name in row.names}
    return not re.search(r"\d", reference.tag) and not any(name in reference.tag for name in names)


def distribution_in(text: str, catalogue: Catalogue) -> Distribution | None:
    """The distribution that a tag or an os-release names: `…-ubuntu22.04`, `bookworm`, `ubuntu 22.04`."""
    match = _DISTRIBUTION.search(text)
    if match:
        name = _SAME_SYSTEM.get(match[1], match[1])
        version = match[2] if name == "ubuntu" else match[2].split(".")[0]
        return next((row for row in catalogue.distributions if (row.distribution, row.version) == (name, version)), None)
    for row in catalogue.distributions:
        if any(re.search(rf"(?:^|[^a-z]){release}(?:$|[^a-z])", text) for release in row.names):
            return row
    return None


def guess(reference: Reference, catalogue: Catalogue) -> BaseFacts:
    """Facts that the reference states. Conventions known: nvidia/cuda, pytorch/pytorch, NGC's pytorch, python, and tags like theirs."""
    tag = reference.tag.lower()
    cuda = _CUDA.search(tag)
    short = _CUDA_SHORT.search(tag)
    leading = re.match(r"\d+\.\d+(?:\.\d+)?", tag)
    found_cuda = cuda[1] if cuda else f"{short[1]}.{short[2]}" if short else None
    torch = python = None
    if reference.name.endswith("nvidia/cuda") or reference.name == "cuda":
        found_cuda = leading[0] if leading else "" if found_cuda is None else found_cuda
    elif reference.name.endswith("nvidia/pytorch"):
        torch, found_cuda = "", found_cuda or ""
    elif reference.name.endswith("pytorch/pytorch") or reference.name == "pytorch":
        torch = leading[0] if leading else ""
    elif reference.name == "python" and leading:
        python = ".".join(leading[0].split(".")[:2])
    cudnn = _CUDNN.search(tag)
    flavour = _FLAVOUR.search(tag)
    text = f"{reference.name}-{tag}" if reference.name in ("debian", "ubuntu") else tag
    system = distribution_in(text, catalogue)
    name = "alpine" if _ALPINE.search(f"{reference.name} {tag}") else f"{system.distribution} {system.version}" if system else None
    return BaseFacts(
        cuda=found_cuda,
        cudnn=cudnn[1] if cudnn else None,
        python=python,
        torch=torch,
        distribution=name,
        flavour=flavour[1] if flavour else None,
    )


def only_distribution_pythons(reference: Reference) -> bool:
    """Whether an image is known to hold no Python but what its distribution's archive has."""
    return reference.name in ("debian", "ubuntu", "nvidia/cuda", "cuda")
