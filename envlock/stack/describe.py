"""What `envlock check` prints of a solution, and where its findings stand in the spec's file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from envlock.errors import Finding, Problems, exit_code_of
from envlock.spec import ArchiveBase, DebianBase
from envlock.stack.solution import Base, Solution
from envlock.yamlfile import Document


def describe(solution: Solution) -> str:
    """The stack as aligned lines: name, value, and where the value came from."""
    stack = solution.stack
    values = {
        "torch": f"{stack.torch} ({stack.variant})",
        "cuda": stack.cuda or "none (CPU only)",
        "cudnn": stack.cudnn,
        "nccl": stack.nccl,
        "triton": stack.triton,
        "python": stack.python,
        "platform": stack.platform,
        "base": base_text(solution.base),
        "glibc": "{}.{}".format(*solution.glibc),
        "index": solution.torch_index,
        "driver_floor": stack.driver_floor,
        "gpus": ", ".join(stack.gpus) or None,
        "architectures": " ".join(stack.architectures) or None,
        "family": ", ".join(solution.family) or None,
        "constraints": ", ".join(solution.constraints) or None,
    }
    shown = [(name.replace("_", " "), value, solution.origins.get(name, "")) for name, value in values.items() if value]
    wide = max(len(value) for _, value, _ in shown if len(value) <= 40)
    return "\n".join(f"{name:<13} {value:<{wide}}  {origin}".rstrip() for name, value, origin in shown)


def base_text(base: Base) -> str:
    """A base in one word or two."""
    if isinstance(base, DebianBase):
        return f"debian {base.debian}"
    return base.archive if isinstance(base, ArchiveBase) else base.image


def located(findings: Iterable[Finding], document: Document) -> tuple[Finding, ...]:
    """The findings with `where` as file:line:column, in place of the dotted path into the spec."""
    return tuple(replace(finding, where=document.where(_path(finding.where))) for finding in findings)


def located_problems(error: Problems, document: Document) -> Problems:
    """The same problems, each at its place in the spec's file."""
    return Problems(located(error.findings, document), exit_code_of(error))


def _path(dotted: str) -> tuple[str | int, ...]:
    return tuple(int(part) if part.isdigit() else part for part in dotted.split(".")) if dotted else ()
