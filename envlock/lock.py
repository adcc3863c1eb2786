"""The lock: every byte that goes into an image, by sha256; and what came out of a build, kept beside.

A lock file is YAML with two parts. `built` records digests of what was built; everything else is the *inputs*. The lock digest
is the sha256 of the inputs in canonical JSON, which is also, byte for byte, the file /opt/envlock/lock.json in the image. Keys
whose value is None are absent, so that an optional key added later changes no digest.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from envlock import yamlfile
from envlock.errors import Exit, Finding, LockInvalid, LockMissing, Problems
from envlock.spec import canonical_json, findings_of
from envlock.texts import (
    AptName,
    EnvValue,
    InheritedName,
    InImage,
    InProject,
    Line,
    Name,
    Platform,
    PoolPath,
    PythonVersion,
    Size,
    Suite,
    User,
    WheelFile,
    Word,
)

LOCK_VERSION = 1

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="sha256 in hex")]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$", description="sha256 with its prefix")]
Bytes = Annotated[int, Field(ge=0, lt=2**63, description="size in bytes")]
Seconds = Annotated[int, Field(ge=0, lt=2**35, description="seconds since 1970-01-01 UTC")]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


class Wheel(_Part):
    """One wheel: found by name in the index that the alias stands for on the host, known by its hash."""

    name: Word = Field(description="normalised project name")
    version: Word
    file: WheelFile = Field(description="file name")
    sha256: Sha256
    size: Bytes
    index: Line = Field(description="alias: default, pytorch, local, or a name of the user's")
    path: InProject | None = Field(default=None, description="path of the file below its index's file host; helps when it is delisted")


class Deb(_Part):
    """One Debian package file."""

    name: Word
    version: Word
    architecture: Word
    archive: Line = Field(description="alias of the archive: debian, debian-security, or a base's own")
    path: PoolPath = Field(description="path in the archive's pool")
    sha256: Sha256
    size: Bytes


class DebianBase(_Part):
    """A base layer bootstrapped from locked packages."""

    kind: Literal["debian"] = "debian"
    suite: Suite
    snapshot: Word = Field(description="date of the newest Release file read, 20261128T201100Z: what to ask a snapshot service for")
    date: Seconds = Field(description="newest date among the packages; times in the layer are clamped to it")
    debs: tuple[Deb, ...]


class Blob(_Part):
    """One compressed or plain layer blob of an image base."""

    digest: Digest
    size: Bytes
    media_type: Line
    diff_id: Digest = Field(description="sha256 of the uncompressed tar")


LASTING = "lasting"
"""The fact of a base image that names what a Dockerfile starting from it cannot take back."""


class ImageBase(_Part):
    """A base image from a registry or an archive, by every digest that names it."""

    kind: Literal["image", "archive"]
    reference: Line = Field(description="name and tag as the spec has them, or the archive's path beside the spec")
    index_digest: Digest | None = None
    manifest_digest: Digest
    config_digest: Digest
    config_size: Bytes
    layers: tuple[Blob, ...]
    environment: dict[InheritedName, EnvValue] = {}
    facts: dict[Line, Line] = Field(default={}, description="what its config says: CUDA_VERSION, NV_CUDNN_VERSION, os-release fields …")

    @property
    def starts_as_archive(self) -> bool:
        """Whether a Dockerfile starts from an archive of the base's layers, not from the image itself in its registry."""
        return self.kind == "archive" or LASTING in self.facts


class Apt(_Part):
    """The packages that the base's own apt installs on top, with their whole closure."""

    asked: tuple[AptName, ...]
    date: Seconds
    debs: tuple[Deb, ...]

    def brings_python(self, python: str) -> bool:
        """Whether the interpreter (major and minor version) comes with these packages, so that they go below the environment."""
        return any(deb.name == f"python{python}" for deb in self.debs)


class Stack(_Part):
    """The stack as locked; `stack.py` decides it."""

    torch: Word
    variant: Word = Field(description="build of torch: cpu, or cu124 as in the wheel's local version")
    python: PythonVersion = Field(description="major and minor")
    platform: Platform
    cuda: Word | None = None
    cudnn: Word | None = None
    nccl: Word | None = None
    triton: Word | None = None
    driver_floor: Word | None = Field(default=None, description="oldest driver that can run it")
    architectures: tuple[Word, ...] = Field(default=(), description="sm_XX and compute_XX that the torch wheel has code for")
    gpus: tuple[Word, ...] = Field(default=(), description="compute capabilities of the spec's targets, as sm_XX")


class Settings(_Part):
    """Determinism as asked for; the variables that follow from it are in `environment`."""

    level: Literal["off", "seeded", "deterministic", "strict"]
    seed: int
    tf32: bool
    threads: int


class CopiedFile(_Part):
    """One file of the spec's `files`, after folders are walked."""

    source: InProject = Field(description="path beside the spec")
    to: InImage = Field(description="path in the image")
    sha256: Sha256
    size: Bytes
    executable: bool = False


class Run(_Part):
    """How the image is meant to be started."""

    shm_size: Size | None = None
    user: User | None = None
    workdir: InImage | None = None


class Shipped(_Part):
    """What envlock itself puts into the image: the bundle of `bundle.py`, so that another release builds the same bytes."""

    envlock: Word = Field(description="the release that made the bundle")
    sha256: Sha256
    size: Bytes


class Rules(_Part):
    """Which versions of our own rules made the digests."""

    layer: int = 1
    rootfs: int = 1
    spec: int = 1


class Lock(_Part):
    """All inputs of one image."""

    version: Literal[1] = 1
    name: Name
    spec: Digest = Field(description="digest of the spec in its canonical form")
    rules: Rules = Rules()
    tools: dict[Line, Line] = Field(default={}, description="versions of the tools whose version can change what comes out")
    epoch: Seconds = Field(description="the newest input's date; the image's `created`")
    stack: Stack
    base: Annotated[DebianBase | ImageBase, Field(discriminator="kind")]
    shipped: Shipped
    apt: Apt | None = None
    wheels: tuple[Wheel, ...]
    installer: Wheel = Field(description="the wheel that the Dockerfile's route installs the others with")
    requirements: dict[Line, Sha256] = Field(default={}, description="requirement files that the spec names")
    files: tuple[CopiedFile, ...] = ()
    determinism: Settings
    environment: dict[InheritedName, EnvValue] = Field(description="the image's whole ENV")
    run: Run = Run()

    @property
    def debs(self) -> tuple[Deb, ...]:
        """Every Debian package: those that a base is bootstrapped from, then those installed on top."""
        return (*(self.base.debs if isinstance(self.base, DebianBase) else ()), *(self.apt.debs if self.apt else ()))

    @property
    def inputs(self) -> dict[str, Any]:
        """The inputs as plain data, None left out."""
        return self.model_dump(mode="json", exclude_none=True)

    @property
    def json_bytes(self) -> bytes:
        """The inputs in canonical JSON: what the image carries as /opt/envlock/lock.json."""
        return canonical_json(self.inputs)

    @property
    def digest(self) -> str:
        """`sha256:…` of `json_bytes`."""
        return "sha256:" + hashlib.sha256(self.json_bytes).hexdigest()

    @property
    def short_digest(self) -> str:
        """First 12 hex digits of the digest, used as a tag."""
        return self.digest.removeprefix("sha256:")[:12]


class Built(_Part):
    """What a build of these inputs came out as; the same on every engine."""

    lock: Digest = Field(description="digest of the inputs that were built")
    image_digest: Digest
    manifest_digest: Digest
    rootfs_digest: Digest | None = None
    diff_ids: tuple[Digest, ...]


class LockFile(_Part):
    """A lock and, once it has been built, what came out."""

    lock: Lock
    built: Built | None = None


class _Dumper(yaml.SafeDumper):
    """Block style with lists indented below their key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        return super().increase_indent(flow, False)


def dump(lock_file: LockFile) -> bytes:
    """The lock file's bytes: a function of its content alone."""
    data = lock_file.lock.inputs
    if lock_file.built is not None:
        data["built"] = lock_file.built.model_dump(mode="json", exclude_none=True)
    head = f"# envlock lock, digest {lock_file.lock.digest}\n# made from a spec by `envlock lock`; edit the spec, not this file\n"
    return (head + yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=140)).encode()


def parse(raw: bytes, name: str) -> LockFile:
    """Read a lock file from bytes (YAML, or the canonical JSON out of an image).

    Raises `LockInvalid` where it is no lock of this version, `Problems` (exit 4) with every fault of one that is.
    """
    document = yamlfile.parse_typed(raw, name)
    if not isinstance(document.data, dict):
        raise LockInvalid("this is not an envlock lock", where=name, hint="write one with `envlock lock SPEC`")
    version = document.data.get("version")
    if version != LOCK_VERSION:
        why = f"it has version {version!r}; this envlock reads version {LOCK_VERSION}"
        raise LockInvalid("this lock cannot be read", where=document.where(("version",)), why=why, hint="lock the spec again")
    try:
        inputs = {key: value for key, value in document.data.items() if key != "built"}
        lock = Lock.model_validate_json(canonical_json(inputs))
        built = document.data.get("built")
        return LockFile(lock=lock, built=None if built is None else Built.model_validate_json(canonical_json(built)))
    except ValidationError as error:
        found = [
            Finding("lock-invalid", "error", f.what, f.where, f.why, "lock the spec again") for f in findings_of(error, document, Lock)
        ]
        raise Problems(found, Exit.LOCK) from None


def read(path: Path) -> LockFile:
    """Read a lock file. Raises `LockMissing` where there is none, and what `parse` raises."""
    if not path.exists():
        raise LockMissing(f"there is no lock {path}", hint=f"write it with `envlock lock {path.name.removesuffix('.lock.yaml')}.yaml`")
    return parse(yamlfile.read_bytes(path), path.name)
