"""The spec: what a person writes, checked for form, every complaint with its place, all complaints at once.

Nothing here knows what fits together; that is `stack.py`.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError
from pydantic_core import ErrorDetails

from envlock import yamlfile
from envlock.errors import Exit, Finding, Problems
from envlock.paper import Paper
from envlock.texts import (
    AptName,
    CudaVersion,
    DriverVersion,
    EnvName,
    EnvValue,
    InImage,
    InProject,
    Matching,
    Name,
    PythonVersion,
    Size,
    Suite,
    User,
    Version,
    fault,
)

CANONICAL_FORM = 1

Level = Literal["off", "seeded", "deterministic", "strict"]


def _requirement(value: str) -> str:
    try:
        parsed = Requirement(value)
    except InvalidRequirement as error:
        raise fault("spec-value", f"{value!r} is not a requirement as Python packages are named", str(error).splitlines()[0]) from None
    if parsed.url is not None:
        hint = "build a wheel of it, put it in a folder and name that folder in pip's or uv's find-links"
        raise fault("needs-compiling", f"{value!r} points at a source, not at a published wheel", hint)
    return value


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class DebianBase(_Part):
    """A base bootstrapped from Debian's own packages."""

    debian: Suite = Field(description="Debian's release by code name, as bookworm")


class ImageBase(_Part):
    """A base pulled from a registry."""

    image: Annotated[
        str, Matching(r"(?!.*//)[a-z0-9][A-Za-z0-9._:/@-]*", "an image reference", "write it as nvidia/cuda:12.4.1-base-ubuntu22.04")
    ] = Field(description="reference of an image in a registry")


class ArchiveBase(_Part):
    """A base read from an image archive beside the spec."""

    archive: InProject = Field(description="a `docker save` or OCI archive")


def _kind_of_base(value: Any) -> str | None:
    if isinstance(value, _Part):
        return f"<{next(iter(type(value).model_fields))}>"
    if not isinstance(value, dict):
        return None
    named = [kind for kind in ("debian", "image", "archive") if kind in value]
    # A key that is none of the three is complained about as an unknown key of the likeliest one.
    return f"<{named[0]}>" if len(named) == 1 else ("<debian>" if not named and value else None)


Base = Annotated[
    Annotated[DebianBase, Tag("<debian>")] | Annotated[ImageBase, Tag("<image>")] | Annotated[ArchiveBase, Tag("<archive>")],
    Discriminator(
        _kind_of_base,
        custom_error_type="spec-value",
        custom_error_message="a base is one of `debian: NAME`, `image: REFERENCE` and `archive: FILE`",
    ),
]


class StackWish(_Part):
    """The versions that a person cares about; what is left out, envlock chooses."""

    torch: Version = Field(description="release of torch: 2.5.1, or 2.5 for its newest patch release")
    cuda: CudaVersion | None = Field(
        default=None, description="CUDA release that torch was built for, as 12.4; cpu for none; left out: the default wheel's"
    )
    cudnn: Version | None = Field(default=None, description="version of cuDNN, or the front part of it; checked against torch's own")
    nccl: Version | None = Field(default=None, description="version of NCCL, or the front part of it; checked against torch's own")


class Target(_Part):
    """The hosts that the image is for."""

    gpus: tuple[str, ...] = Field(default=(), description="GPU models as a100 or rtx4090, or compute capabilities as sm_90")
    driver: DriverVersion | None = Field(default=None, description="oldest driver among the hosts, as 550.54.15")
    platform: Literal["linux/amd64", "linux/arm64"] = Field(default="linux/amd64", description="system and processor of the hosts")


class Determinism(_Part):
    """What is baked in; docs/determinism.md describes the levels."""

    level: Level = Field(default="strict", description="off, seeded, deterministic or strict: each holds what the one before does")
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(default=0, description="where Python, NumPy and torch start in every process")
    tf32: bool = Field(default=False, description="whether matrix products and convolutions may use TF32: faster, with 10 bits of mantissa")
    threads: Annotated[int, Field(ge=1, le=1024)] = Field(default=4, description="CPU threads; results on a CPU depend on their number")


class FileCopy(_Part):
    """A file or folder beside the spec, and where it goes in the image."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)
    source: InProject = Field(alias="from", description="file or folder below the spec's own folder")
    to: InImage = Field(description="absolute path in the image")


class Run(_Part):
    """How the image is meant to be started."""

    shm_size: Size | None = Field(default=None, description="size of /dev/shm, as 8g; DataLoader workers need more than Docker's 64m")
    user: User | None = Field(default=None, description="uid or uid:gid that processes run as; root where left out")
    workdir: InImage | None = Field(default=None, description="folder that processes start in")


class Spec(_Part):
    """One environment, as a person asks for it."""

    version: Literal["1"] = Field(default="1", description="version of the spec's form")
    name: Name = Field(description="name of the image: it is tagged NAME:latest and NAME:<lock digest>")
    python: PythonVersion | None = Field(default=None, description="Python of the image, as 3.11; left out: the base's own")
    base: Base | None = Field(
        default=None, description="what lies below; left out: the Debian release whose own Python is the one asked for"
    )
    stack: StackWish = Field(description="torch, and what comes with it")
    target: Target = Field(default=Target(), description="hosts that the image is for; checked before anything is locked")
    packages: tuple[Annotated[str, AfterValidator(_requirement)], ...] = Field(
        default=(), description="Python packages as pip reads them; what they need in turn is locked too"
    )
    requirements: tuple[InProject, ...] = Field(default=(), description="requirement files below the spec's own folder")
    apt: tuple[AptName, ...] = Field(default=(), description="Debian packages, by name")
    determinism: Determinism = Field(default=Determinism(), description="what is done so that the same bits are computed every time")
    env: dict[EnvName, EnvValue] = Field(default={}, description="environment variables of the image")
    files: tuple[FileCopy, ...] = Field(default=(), description="what is copied into the image")
    run: Run = Field(default=Run(), description="how the image is meant to be started")
    paper: Paper | None = Field(default=None, description="the paper that the image belongs to; no input of the image")

    def canonical(self) -> dict[str, Any]:
        """What the spec means, as plain data in a versioned form: defaults left out, so that a new optional key changes nothing.

        `paper` is left out too: nothing in the image depends on it, and a title may change after the lock was made.
        """
        return {"form": CANONICAL_FORM, **self.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"paper"})}

    @property
    def digest(self) -> str:
        """`sha256:…` of the canonical form: comments, order of keys and layout do not count."""
        return canonical_digest(self.canonical())


def canonical_json(data: Any) -> bytes:
    """JSON with sorted keys, no white space, UTF-8: the one form in which envlock hashes plain data."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def canonical_digest(data: Any) -> str:
    """`sha256:…` over `canonical_json`."""
    return "sha256:" + hashlib.sha256(canonical_json(data)).hexdigest()


def read_spec(path: Path) -> Spec:
    """Read a spec file. Raises `FileUnreadable`, or `Problems` with every fault in it."""
    return parse_spec(yamlfile.read_bytes(path), path.name)


def parse_spec(raw: bytes, name: str) -> Spec:
    """Read a spec from bytes; `name` is what positions are given against."""
    document = yamlfile.parse_text(raw, name)
    if not isinstance(document.data, dict):
        what = "a spec is a mapping of keys to values"
        raise Problems([Finding("spec-syntax", "error", what, document.where(()), hint="start with `name:` and `stack:`")], Exit.USAGE)
    try:
        return Spec.model_validate(document.data)
    except ValidationError as error:
        raise Problems(findings_of(error, document, Spec), Exit.USAGE) from None


def findings_of(error: ValidationError, document: yamlfile.Document, model: type[BaseModel]) -> list[Finding]:
    """Each complaint of pydantic in our words, in the order of the file."""
    found: dict[tuple[str, str], Finding] = {}
    for detail in error.errors(include_url=False):
        path = _plain_path(detail["loc"], document.data)
        finding = _finding(detail, path, document, model)
        found.setdefault((finding.where, finding.id), finding)
    return sorted(found.values(), key=lambda finding: _place(finding.where))


def _place(where: str) -> tuple[int, int]:
    _, line, column = where.rsplit(":", 2)
    return int(line), int(column)


def _plain_path(location: tuple[str | int, ...], data: Any) -> tuple[yamlfile.Key, ...]:
    """Pydantic's location without the names of union members, `[key]` marks and fields that the file lacks below."""
    path: list[yamlfile.Key] = []
    here = data
    for part in location:
        inside = (isinstance(here, dict) and part in here) or (isinstance(here, list) and isinstance(part, int) and part < len(here))
        if inside:
            path.append(part)
            here = here[part]
    return tuple(path)


def _finding(detail: ErrorDetails, path: tuple[yamlfile.Key, ...], document: yamlfile.Document, model: type[BaseModel]) -> Finding:
    kind, context = detail["type"], detail.get("ctx") or {}
    dotted = ".".join(str(part) for part in path) or "the spec"
    where = document.where(path)
    if kind == "extra_forbidden":
        key = str(path[-1]) if path else ""
        known = _keys_at(path[:-1], model)
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(sorted(known))}"
        return Finding("spec-unknown-key", "error", f"`{key}` is not a key of a spec", document.where(path, key=True), hint=hint)
    if kind == "missing":
        key = str(detail["loc"][-1])
        if key in ("torch", "stack"):
            hint = 'add `stack: {torch: "2.5.1"}`; envlock locks PyTorch environments only'
            return Finding("torch-missing", "error", "the spec asks for no torch", where, hint=hint)
        return Finding("spec-missing-key", "error", f"`{key}` is missing in {dotted}", where, hint=f"add `{key}:`")
    if "what" in context:
        return Finding(kind, "error", f"{dotted}: {context['what']}", where, hint=str(context.get("hint") or ""))
    what = {
        "string_type": "one value is wanted here, not a list or mapping",
        "tuple_type": "a list is wanted here",
        "dict_type": "a mapping of keys to values is wanted here",
        "model_type": "a mapping of keys to values is wanted here",
        "model_attributes_type": "a mapping of keys to values is wanted here",
    }.get(kind, detail["msg"][:1].lower() + detail["msg"][1:])
    hint = f"write [{document_value(path, document.data)}]" if kind == "tuple_type" else ""
    return Finding("spec-value", "error", f"{dotted}: {what}", where, hint=hint)


def document_value(path: tuple[yamlfile.Key, ...], data: Any) -> Any:
    """The value at a path of plain data."""
    for part in path:
        data = data[part]
    return data


def _keys_at(path: tuple[yamlfile.Key, ...], model: type[BaseModel]) -> list[str]:
    """The keys that the model knows at a path: those of the model found by walking annotations."""
    candidates = [model]
    for part in path:
        candidates = [inner for outer in candidates for inner in _models_in(outer, part)] or candidates
    return [field.alias or name for candidate in candidates for name, field in candidate.model_fields.items()]


def _models_in(outer: type[BaseModel], part: yamlfile.Key) -> list[type[BaseModel]]:
    if isinstance(part, int):
        return [outer]
    field = next((f for n, f in outer.model_fields.items() if (f.alias or n) == part), None)
    return _model_types(field.annotation) if field else []


def _model_types(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for inner in getattr(annotation, "__args__", ()) for found in _model_types(inner)]
