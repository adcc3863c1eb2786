"""Portrait: what is known of a spec, a lock or an image in a researcher's terms, in one form, so that any two can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from envlock.environment import image_environment
from envlock.lock import Built, Deb, DebianBase, Lock, Wheel
from envlock.spec import Spec
from envlock.stack import BaseFacts, Solution
from envlock.stack.describe import base_text

if TYPE_CHECKING:
    from envlock.engine import EngineImage

Kind = Literal["spec", "lock", "image"]
NONE = "none"


@dataclass(frozen=True, slots=True)
class File:
    """One locked file, by version and sha256."""

    version: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Portrait:
    """What one side of a comparison is. What is None is not known of it; what is known to be absent is `none` or empty.

    `stack` holds torch, build, cuda, cudnn, nccl, triton, python, platform and driver floor as far as they are known; `asked` are the
    requirements of a spec, which pins nothing; `others` are further inputs that count for the lock digest.
    """

    name: str
    kind: Kind
    stack: Mapping[str, str]
    base: str | None = None
    base_digest: str | None = None
    architectures: frozenset[str] | None = None
    targets: tuple[str, ...] | None = None
    determinism: Mapping[str, str] | None = None
    environment: Mapping[str, str] | None = None
    run: Mapping[str, str] | None = None
    wheels: Mapping[str, File] | None = None
    debs: Mapping[str, File] | None = None
    files: Mapping[str, str] | None = None
    asked: tuple[str, ...] = ()
    others: Mapping[str, str] = field(default_factory=dict)
    image_digest: str | None = None
    lock: Lock | None = None


def of_lock(lock: Lock, built: Built | None, name: str) -> Portrait:
    """A lock, and what it recorded of its build."""
    base = lock.base
    stack = lock.stack
    facts = _stack({**stack.model_dump(), "build": stack.variant, "driver floor": stack.driver_floor}, absent=NONE)
    return Portrait(
        name=name,
        kind="lock",
        stack=facts,
        base=f"debian {base.suite}" if isinstance(base, DebianBase) else base.reference,
        base_digest=f"snapshot {base.snapshot}" if isinstance(base, DebianBase) else base.manifest_digest,
        architectures=frozenset(stack.architectures),
        targets=stack.gpus,
        determinism=_texts(lock.determinism.model_dump()),
        environment=lock.environment,
        run=_texts(lock.run.model_dump(exclude_none=True)),
        wheels={wheel.name: _file(wheel) for wheel in lock.wheels},
        debs={deb.name: _file(deb) for deb in lock.debs},
        files={file.to: f"{file.sha256[:12]}{', executable' if file.executable else ''}" for file in lock.files},
        others={
            "envlock's part": f"{lock.shipped.envlock} ({lock.shipped.sha256[:12]})",
            "installer": f"{lock.installer.version} ({lock.installer.sha256[:12]})",
            "rules": ", ".join(f"{name} {number}" for name, number in lock.rules.model_dump().items()),
            "tools": ", ".join(f"{name} {version}" for name, version in sorted(lock.tools.items())),
            "requirement files": ", ".join(f"{name} ({sha256[:12]})" for name, sha256 in sorted(lock.requirements.items())),
            "epoch": str(lock.epoch),
            "name": lock.name,
            "spec": lock.spec[:19],
        },
        image_digest=built.image_digest if built is not None and built.lock == lock.digest else None,
        lock=lock,
    )


def of_spec(spec: Spec, solution: Solution, name: str, numpy: str | None) -> Portrait:
    """A spec and the stack that it asks for; what only locking can tell is not known.

    `numpy` is the version that the other side has locked, since variables depend on it.
    """
    stack = solution.stack
    facts = _stack({**stack.model_dump(), "build": stack.variant, "driver floor": stack.driver_floor}, absent=None if stack.cuda else NONE)
    inherits = base_text(solution.base) if not base_text(solution.base).startswith("debian ") else ""
    return Portrait(
        name=name,
        kind="spec",
        stack=facts,
        base=base_text(solution.base),
        architectures=frozenset(stack.architectures),
        targets=stack.gpus,
        determinism=_texts(spec.determinism.model_dump()),
        environment=None if inherits else image_environment(spec, stack, numpy, {}),
        run=_texts(spec.run.model_dump(exclude_none=True)),
        asked=spec.packages,
    )


def of_image(image: EngineImage, lock: Lock | None, name: str) -> Portrait:
    """An image in an engine: what its lock says where it has one, with the environment that it really has; else what its config says."""
    if lock is not None:
        told = of_lock(lock, None, name)
        known = {field: getattr(told, field) for field in Portrait.__slots__}
        return Portrait(**{**known, "kind": "image", "environment": image.environment, "image_digest": image.digest})
    facts = BaseFacts.of_config(image.environment, image.labels)
    seen = {"torch": facts.torch, "cuda": facts.cuda, "cudnn": facts.cudnn, "nccl": facts.nccl, "python": facts.python}
    return Portrait(
        name=name,
        kind="image",
        stack={**{key: value for key, value in seen.items() if value}, "platform": image.platform},
        base=facts.distribution,
        environment=image.environment,
        run={key: value for key, value in (("user", image.user), ("workdir", image.workdir)) if value},
        image_digest=image.digest,
    )


_STACK = ("torch", "build", "cuda", "cudnn", "nccl", "triton", "python", "platform", "driver floor")


def _stack(values: Mapping[str, object], absent: str | None) -> dict[str, str]:
    """The stack's facts in order; `absent` stands for what the stack does not have, None where that is not known."""
    told = {name: str(values[name]) if values[name] is not None else absent for name in _STACK}
    return {name: value for name, value in told.items() if value is not None}


def _file(file: Wheel | Deb) -> File:
    return File(file.version, file.sha256)


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}
