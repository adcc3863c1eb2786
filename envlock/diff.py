"""What differs between two environments, in a researcher's terms: the stack first, then base, determinism, variables and packages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envlock.catalogue.drivers import older
from envlock.portrait import NONE, File, Portrait
from envlock.treediff import TreeComparison

_SETTINGS = {"level": "level", "seed": "seed", "tf32": "TF32", "threads": "CPU threads"}
_NAMES = {"cuda": "CUDA", "cudnn": "cuDNN", "nccl": "NCCL", "python": "Python"}


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. `was` and `now` are None where the thing is not there; `means` says what follows for who uses it."""

    topic: str
    name: str
    was: str | None
    now: str | None
    means: str = ""


@dataclass(frozen=True, slots=True)
class Diff:
    """All differences between two sides, and what could not be compared because one side does not tell it."""

    one: str
    other: str
    changes: tuple[Change, ...]
    not_compared: tuple[str, ...]
    files: TreeComparison | None = None

    @property
    def same(self) -> bool:
        """Whether nothing differs of what both sides tell."""
        return not self.changes and (self.files is None or not self.files.found)

    def as_json(self) -> dict[str, Any]:
        """What `diff --json` prints."""
        files = {} if self.files is None else {"files": self.files.as_json()}
        changes = [asdict(change) for change in self.changes]
        told = {"one": self.one, "other": self.other, "same": self.same, "changes": changes, "not_compared": list(self.not_compared)}
        return {**told, **files}

    def as_text(self) -> str:
        """What people read: changes by topic, most telling first."""
        count = len(self.changes)
        none = "no difference" if self.same else "no difference but in files"
        head = f"{count} difference{'' if count == 1 else 's'}" if count else none
        lines = [f"{head} between {self.one} and {self.other}"]
        width = min(max((len(change.name) for change in self.changes), default=0), 32)
        topic = ""
        for change in self.changes:
            if change.topic != topic:
                topic = change.topic
                lines += ["", topic]
            line = f"  {change.name:<{width}}  {_arrow(change)}"
            lines.append(f"{line}  ({change.means})" if change.means else line)
        lines += ["", *(f"not compared: {text}" for text in self.not_compared)] if self.not_compared else []
        return "\n".join(lines + (["", self.files.as_text()] if self.files is not None else []))


def _arrow(change: Change) -> str:
    if change.was is None:
        return f"{change.now}  new"
    return f"{change.was}  gone" if change.now is None else f"{change.was} → {change.now}"


def diff(one: Portrait, other: Portrait) -> tuple[tuple[Change, ...], tuple[str, ...]]:
    """All changes from one side to the other, and the topics that cannot be compared."""
    changes = [
        *_stack(one, other),
        *_base(one, other),
        *_mapping("determinism", one.determinism, other.determinism, _SETTINGS),
        *_mapping("environment", one.environment, other.environment),
        # The stack tells torch's version already.
        *(change for change in _files("packages", one.wheels, other.wheels) if change.name != "torch" or change.means),
        *_asked(one, other),
        *_files("Debian packages", one.debs, other.debs),
        *_mapping("files of the spec", one.files, other.files),
        *_mapping("how it is started", one.run, other.run),
        *_identity(one, other),
    ]
    return tuple(changes), tuple(_not_compared(one, other))


def _stack(one: Portrait, other: Portrait) -> Iterator[Change]:
    for name in (name for name in one.stack if name in other.stack):
        was, now = one.stack[name], other.stack[name]
        if was != now:
            yield Change("stack", _NAMES.get(name, name), _present(was), _present(now), _floor(was, now) if name == "driver floor" else "")
    if one.architectures is not None and other.architectures is not None:
        gone = sorted(one.architectures - other.architectures, key=_number)
        if gone:
            means = "GPUs of these have no code in torch any more, unless it is compiled from PTX"
            yield Change("stack", "architectures dropped", " ".join(gone), None, means)
        new = sorted(other.architectures - one.architectures, key=_number)
        if new:
            yield Change("stack", "architectures added", None, " ".join(new))
    if one.targets is not None and other.targets is not None and set(one.targets) != set(other.targets):
        yield Change("stack", "target GPUs", " ".join(one.targets) or NONE, " ".join(other.targets) or NONE)


def _present(value: str) -> str | None:
    return None if value == NONE else value


def _number(architecture: str) -> tuple[int, str]:
    digits = "".join(letter for letter in architecture if letter.isdigit())
    return int(digits or 0), architecture


def _floor(was: str, now: str) -> str:
    if NONE in (was, now):
        return "it needs no driver any more" if now == NONE else "it needs a driver now"
    if older(was, now):
        return f"raised: hosts with a driver older than {now} can no longer run it"
    return "lowered: more hosts can run it"


def _base(one: Portrait, other: Portrait) -> Iterator[Change]:
    if one.base is not None and other.base is not None and one.base != other.base:
        yield Change("base", "base", one.base, other.base)
    elif one.base_digest and other.base_digest and one.base_digest != other.base_digest:
        yield Change("base", f"{one.base} moved", one.base_digest, other.base_digest)


def _mapping(
    topic: str, one: Mapping[str, str] | None, other: Mapping[str, str] | None, names: Mapping[str, str] | None = None
) -> Iterator[Change]:
    if one is None or other is None:
        return
    for name in sorted(one.keys() | other.keys()):
        if one.get(name) != other.get(name):
            yield Change(topic, (names or {}).get(name, name), one.get(name), other.get(name))


def _files(topic: str, one: Mapping[str, File] | None, other: Mapping[str, File] | None) -> Iterator[Change]:
    if one is None or other is None:
        return
    for name in sorted(one.keys() | other.keys()):
        was, now = one.get(name), other.get(name)
        if was is None or now is None or was.version != now.version:
            yield Change(topic, name, was.version if was else None, now.version if now else None)
        elif was.sha256 != now.sha256:
            yield Change(
                topic, name, f"{was.version} ({was.sha256[:12]})", f"{now.version} ({now.sha256[:12]})", "another file of one version"
            )


def _asked(one: Portrait, other: Portrait) -> Iterator[Change]:
    """What a spec asks for, against another spec's wishes or against what is locked."""
    if one.wheels is None and other.wheels is None and one.kind == other.kind == "spec":
        was, now = _by_name(one.asked), _by_name(other.asked)
        for name in sorted(was.keys() | now.keys()):
            if was.get(name) != now.get(name):
                yield Change("packages asked for", name, was.get(name), now.get(name))
        return
    for spec, locked, turned in ((one, other, False), (other, one, True)):
        if spec.kind != "spec" or locked.wheels is None:
            continue
        for text in spec.asked:
            requirement = Requirement(text)
            file = locked.wheels.get(canonicalize_name(requirement.name))
            if file is None or not requirement.specifier.contains(file.version, prereleases=True):
                has = f"{requirement.name} {file.version}" if file else None
                yield Change("packages asked for", requirement.name, *((has, text) if turned else (text, has)))


def _by_name(asked: Iterable[str]) -> dict[str, str]:
    return {canonicalize_name(Requirement(text).name): text for text in asked}


def _identity(one: Portrait, other: Portrait) -> Iterator[Change]:
    if one.others and other.others:
        yield from _mapping("other inputs", one.others, other.others)
    if one.image_digest and other.image_digest and one.image_digest != other.image_digest:
        yield Change("image", "image digest", one.image_digest, other.image_digest)


def _not_compared(one: Portrait, other: Portrait) -> Iterator[str]:
    topics = {
        "stack": (bool(one.stack.get("torch")), bool(other.stack.get("torch"))),
        "determinism": (one.determinism is not None, other.determinism is not None),
        "environment": (one.environment is not None, other.environment is not None),
        "versions of packages": (one.wheels is not None, other.wheels is not None),
        "versions of Debian packages": (one.debs is not None, other.debs is not None),
        "files of the spec": (one.files is not None, other.files is not None),
    }
    for silent, sides in (((one,), one.name), ((other,), other.name), ((one, other), "neither")):
        quiet = [topic for topic, told in topics.items() if told == (one not in silent, other not in silent)]
        if quiet:
            yield f"{', '.join(quiet)}: {sides} {'tells' if sides == 'neither' else 'does not tell'}"
