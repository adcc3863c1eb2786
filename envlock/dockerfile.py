"""The Dockerfile that describes an image, rendered from its lock by one template: pure, no I/O.

The context that it builds from is written by `context.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jinja2 import BaseLoader, Environment, StrictUndefined

from envlock.bundle import Bundle
from envlock.config import image_labels
from envlock.layers.wheels import WheelGroup, wheel_groups
from envlock.lock import LASTING, DebianBase, ImageBase, Lock

TEMPLATE = "templates/Dockerfile.j2"
WIDTH = 132
"""Columns after which settings go on the next line."""


@dataclass(frozen=True, slots=True)
class WheelList:
    """One layer's wheels as the Dockerfile names them: a file with a line `sha256  name` for each."""

    list: str
    group: WheelGroup

    @property
    def content(self) -> bytes:
        return "".join(f"{wheel.sha256}  wheels/{wheel.file}\n" for wheel in self.group.wheels).encode()


def wheel_lists(lock: Lock) -> tuple[WheelList, ...]:
    """The wheel lists in the order of the layers, numbered so that a folder lists them in that order."""
    lists = []
    for number, group in enumerate(wheel_groups(lock.wheels), start=1):
        name = group.wheels[0].name if len(group.wheels) == 1 else "others"
        lists.append(WheelList(f"lists/{number:02}-{name}.txt", group))
    return tuple(lists)


def render(lock: Lock, bundle: Bundle) -> bytes:
    """The Dockerfile of a lock, from the template in the bundle that the lock names."""
    environment = Environment(
        loader=BaseLoader(), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, autoescape=False
    )
    environment.filters["dockerquote"] = docker_quote
    template = environment.from_string(bundle.files[TEMPLATE].decode())
    return template.render(
        lock=lock,
        base=_base(lock),
        groups=wheel_lists(lock),
        environment=filled(assignments(_variables(lock)), WIDTH - len("ENV ")),
        labels=filled(assignments(image_labels(lock)), WIDTH - len("LABEL ")),
    ).encode()


def _base(lock: Lock) -> Mapping[str, str]:
    if isinstance(lock.base, DebianBase):
        title = f"Debian {lock.base.suite}, bootstrapped from {len(lock.base.debs)} locked packages"
        return {"title": title, "tar": "base.tar", "reference": ""}
    if lock.base.starts_as_archive:
        plain = f"From {lock.base.reference} without its {lock.base.facts.get(LASTING)}, which a Dockerfile would pass on"
        source = f"From the archive {lock.base.reference}" if lock.base.kind == "archive" else plain
        title = f"{source}; once: docker load -i base-image.tar"
        return {"title": title, "tar": "", "reference": archive_tag(lock.base)}
    named = lock.base.reference.partition("@")[0]
    name, colon, tag = named.rpartition(":")
    repository = name if colon and "/" not in tag else named
    return {"title": f"{lock.base.reference}, by its digest", "tar": "", "reference": f"{repository}@{lock.base.manifest_digest}"}


def base_reference(lock: Lock) -> str:
    """The image that the Dockerfile starts from; empty where it starts from scratch."""
    return _base(lock)["reference"]


def archive_tag(base: ImageBase) -> str:
    """The name under which a base that came as an archive is loaded: it has no digest that an engine could look up."""
    return f"envlock-base:{base.config_digest.removeprefix('sha256:')[:12]}"


def _variables(lock: Lock) -> dict[str, str]:
    """The image's ENV; what the base sets and the image has not is emptied, which a Dockerfile can, unlike unset."""
    inherited = lock.base.environment if isinstance(lock.base, ImageBase) else {}
    return {**{name: "" for name in inherited if name not in lock.environment}, **lock.environment}


def assignments(variables: Mapping[str, str]) -> Iterable[str]:
    """`NAME="value"` for each variable, quoted as a Dockerfile reads it."""
    return [f"{name}={docker_quote(value)}" for name, value in variables.items()]


def docker_quote(value: str) -> str:
    """A value that a Dockerfile takes literally: in double quotes unless it is plain, with `\\`, `"` and `$` escaped."""
    if value and all(character.isalnum() or character in "._:/,+@-" for character in value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{escaped}"'


def filled(parts: Iterable[str], width: int) -> list[str]:
    """The parts joined by spaces into lines of at most `width` columns; a part that is longer stands alone."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 1 + len(part) <= width:
            lines[-1] += " " + part
        else:
            lines.append(part)
    return lines
