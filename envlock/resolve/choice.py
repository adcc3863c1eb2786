"""One wheel out of what the resolver lists for a package, or why there is none."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, canonicalize_name, parse_sdist_filename, parse_wheel_filename

from envlock.errors import FileChangedUpstream, NeedsCompiling
from envlock.resolve.target import Target
from envlock.urls import split_url


@dataclass(frozen=True, slots=True)
class Choice:
    """The one file of a package that was chosen, where it is offered, and what the index says of its bytes."""

    name: str
    version: str
    file: str
    source: str = field(repr=False)
    sha256: str | None
    size: int | None


def choose(package: Mapping[str, Any], target: Target, preferred: str | None, allowed: frozenset[str] | None) -> Choice:
    """The wheel that suits the target best, or the `preferred` file where it is listed; `package` as a pylock file has it.

    `allowed` are the hashes that a requirement file admits. Raises `NeedsCompiling`, `FileChangedUpstream`.
    """
    name, version = canonicalize_name(str(package["name"])), str(package.get("version", ""))
    wheels = {file_of(wheel): wheel for wheel in package.get("wheels", [])}
    fitting = {file: wheel for file, wheel in wheels.items() if allowed is None or wheel.get("hashes", {}).get("sha256") in allowed}
    if wheels and not fitting:
        why = "none of the wheels that are published has a hash that the requirement file allows"
        hint = "correct the --hash options of the requirement file"
        raise FileChangedUpstream(f"{name} {version} is not the file that was asked for", why=why, hint=hint)
    file = preferred if preferred in fitting else target.best(fitting)
    if file is None:
        raise needs_compiling(name, version, ", ".join(wheels) or "no wheel at all", target)
    wheel = fitting[file]
    source = str(wheel.get("url") or Path(str(wheel["path"])).absolute().as_uri())
    return Choice(name, version, file, source, wheel.get("hashes", {}).get("sha256"), wheel.get("size"))


def file_of(wheel: Mapping[str, Any]) -> str:
    """The file name of a pylock entry."""
    place = str(wheel.get("name") or split_url(str(wheel.get("url", ""))).path or wheel.get("path", ""))
    return unquote(place.rpartition("/")[2])


def needs_compiling(name: str, version: str | None, published: str, target: Target) -> NeedsCompiling:
    """The error for a package without a wheel for the target; `published` says what there is instead."""
    release = f"{name} {version}" if version else name
    what = f"{release} has no wheel for Python {target.python} on {target.platform} with glibc {target.glibc[0]}.{target.glibc[1]}"
    hint = (
        f"choose a release that has one; or build a wheel of {name} yourself, put it into a folder and name that folder in "
        "find-links (PIP_FIND_LINKS, pip.conf or uv.toml)"
    )
    return NeedsCompiling(what, where=name, why=f"published: {published}; envlock never compiles", hint=hint)


def summary(files: Iterable[str]) -> str:
    """A release's files in a few words: its source archives, and for which interpreters and systems it has wheels."""
    sources, interpreters, systems = [], set(), set()
    for file in files:
        if not file.endswith(".whl"):
            sources.append(file)
            continue
        with suppress(InvalidWheelFilename):
            for tag in parse_wheel_filename(file)[3]:
                interpreters.add(tag.interpreter)
                systems.add(re.sub(r"[_\d].*", "", tag.platform))
    wheels = [f"wheels for {', '.join(sorted(interpreters))} on {', '.join(sorted(systems))}"] if interpreters else []
    return " and ".join([*(f"the source {file}" for file in sources), *wheels])


def version_of(file: str) -> str | None:
    """The version in the name of a wheel or source archive; None when the name is neither's."""
    try:
        return str(parse_wheel_filename(file)[1] if file.endswith(".whl") else parse_sdist_filename(file)[1])
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None
