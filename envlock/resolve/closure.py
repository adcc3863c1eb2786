"""Closure: the packages that apt would install, each with its hash, out of what apt prints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol
from urllib.parse import unquote

from envlock.errors import EnvlockError, Exit, FetchError, Finding, NoSolution, Problems
from envlock.lock import Deb
from envlock.resolve.aptget import without_secrets

_PRINTED = re.compile(r"'(?P<url>[^']+)' (?P<file>\S+) \d+")


class Answer(Protocol):
    """What a program printed, and its exit status."""

    @property
    def returncode(self) -> int: ...

    @property
    def stdout(self) -> str: ...

    @property
    def stderr(self) -> str: ...


class Apt(Protocol):
    """An apt whose package lists were read: on this host or in a container."""

    def run(self, program: str, *arguments: str) -> Answer:
        """Run one of its programs."""


class Place(Protocol):
    """Where packages come from: the alias that a lock has, and the URL with a slash at the end."""

    @property
    def alias(self) -> str: ...

    @property
    def url(self) -> str: ...


def choose(apt: Apt, places: Sequence[Place], asked: Sequence[str], system: str) -> tuple[Deb, ...]:
    """All packages that apt would fetch to install `asked`, sorted by name; `system` is what messages call the system.

    Raises `Problems` (package-unknown), `NoSolution`, and `FetchError` where the package lists contradict each other.
    """
    done = apt.run("apt-get", "-q", "--yes", "--no-install-recommends", "--print-uris", "install", *asked)
    if done.returncode != 0:
        raise _unsolvable(system, done.stdout, done.stderr)
    printed = (_PRINTED.match(line) for line in done.stdout.splitlines())
    chosen = {match["file"]: unquote(match["url"]) for match in printed if match is not None}
    if not chosen:
        return ()
    names = [_selector(file, system) for file in chosen]
    urls = set(chosen.values())
    found: dict[tuple[str, str], Deb] = {}
    for row in paragraphs(apt.run("apt-cache", "show", *names).stdout):
        place = next((place for place in places if place.url + row.get("Filename", "") in urls), None)
        if place is not None and "SHA256" in row:
            found[row["Package"], row["Architecture"]] = _deb(row, place.alias, system)
    if len(found) != len(chosen):
        known = {name for name, _ in found}
        lacking = ", ".join(sorted(name for name in names if re.split("[:=]", name)[0] not in known))
        raise FetchError("apt chose packages that its lists do not describe", where=system, why=lacking, hint="try again")
    return tuple(found[key] for key in sorted(found))


def _deb(row: Mapping[str, str], archive: str, system: str) -> Deb:
    try:
        return Deb(
            name=row["Package"],
            version=row["Version"],
            architecture=row["Architecture"],
            archive=archive,
            path=row["Filename"],
            sha256=row["SHA256"],
            size=int(row["Size"]),
        )
    except (KeyError, ValueError):
        what = f"the package lists describe {row.get('Package', 'a package')!r} in a way that cannot be locked"
        raise FetchError(what, where=system, hint="take its archive out of the sources, or report it to those who keep it") from None


def _selector(file: str, system: str) -> str:
    """`NAME:ARCHITECTURE=VERSION` out of the file name that apt gives a package."""
    parts = unquote(file).removesuffix(".deb").split("_")
    if len(parts) != 3:
        hint = "take its archive out of the sources, or report it to those who keep it"
        raise FetchError(f"apt names a package in a way that cannot be locked: {file!r}", where=system, hint=hint)
    name, version, architecture = parts
    return f"{name}={version}" if architecture == "all" else f"{name}:{architecture}={version}"


def paragraphs(text: str) -> Iterator[dict[str, str]]:
    """The paragraphs of a control file (deb822(5)): the first line of each field."""
    for block in re.split(r"\n\s*\n", text.strip()):
        yield dict(re.findall(r"^([A-Za-z0-9-]+):[ \t]*(.*)$", block, re.MULTILINE))


def _unsolvable(system: str, output: str, errors: str) -> EnvlockError:
    unknown = re.findall(r"E: (?:Unable to locate package|Package '|Couldn't find any package by [a-z]+ ')\s*([^\s']+)", errors)
    if unknown:
        hint = f"look the name up among the packages of {system}"
        found = [Finding("package-unknown", "error", f"there is no package {name}", system, "", hint) for name in dict.fromkeys(unknown)]
        return Problems(found, Exit.NO_STACK)
    broken = re.findall(r"^ (\S+ : .*)$", output + "\n" + errors, re.MULTILINE)
    why = "; ".join(" ".join(line.split()) for line in broken) or without_secrets(errors.strip())
    return NoSolution("these packages cannot be installed together", where=system, why=why, hint="ask for other packages")
