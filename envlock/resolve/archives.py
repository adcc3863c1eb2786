"""Archives: where this host gets Debian's packages from, by alias.

A lock names an archive by alias alone: `debian` (a release and its updates) or `debian-security`. What the alias stands for is
decided on each host anew: the user's variables first, then the host's own apt sources where the host is a Debian, then what
mmdebstrap takes by itself.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from envlock.errors import ToolMissing, UsageError
from envlock.resolve import aptget

MIRROR = "ENVLOCK_DEBIAN_MIRROR"
SECURITY_MIRROR = "ENVLOCK_DEBIAN_SECURITY_MIRROR"
SNAPSHOT = "ENVLOCK_DEBIAN_SNAPSHOT"

DEBIAN = "debian"
SECURITY = "debian-security"

_KEYRINGS = ("/usr/share/keyrings/debian-archive-keyring.gpg", "/usr/share/keyrings/debian-archive-keyring.pgp")
# Pockets of a release by alias; the security pocket has this name since Debian 11.
_POCKETS = {DEBIAN: ("", "-updates"), SECURITY: ("-security",)}
_RELEASE = re.compile(r"(?P<suite>[a-z]+)(?P<pocket>|-updates|-security|/updates)")
_MOVING_NAMES = frozenset({"oldoldstable", "oldstable", "stable", "testing", "unstable", "sid"})
_SOURCE_LINE = re.compile(r"deb\s+(?:\[[^\]]*\]\s+)?(?P<uri>\S+)\s+(?P<release>\S+)\s")


@dataclass(frozen=True, slots=True)
class Archive:
    """One archive on one server: its alias, its URL with a slash at the end, and the releases to read there."""

    alias: str
    url: str
    releases: tuple[str, ...]

    def source_lines(self, keyring: str) -> tuple[str, ...]:
        """Its lines for sources.list(5), held to Debian's own keys."""
        return tuple(f"deb [signed-by={keyring}] {self.url} {release} main" for release in self.releases)


def keyring() -> str:
    """The file with the keys of Debian's archive. Raises `ToolMissing`."""
    found = next((path for path in _KEYRINGS if Path(path).exists()), None)
    if found is None:
        why = "without it nothing tells Debian's packages from forged ones"
        raise ToolMissing("the keys of Debian's archive are not on this host", why=why, hint="install the package `debian-archive-keyring`")
    return found


def find_archives(suite: str, environ: Mapping[str, str] = os.environ) -> tuple[Archive, ...]:
    """The archives that serve a release on this host, `debian` first. Raises `ToolMissing` and `UsageError`."""
    asked = {alias: _urls(environ[name], name) for alias, name in ((DEBIAN, MIRROR), (SECURITY, SECURITY_MIRROR)) if name in environ}
    found: dict[str, tuple[str, ...]] = {}
    if asked.keys() != _POCKETS.keys():
        found = _of_host(suite) or _of_mmdebstrap(suite)
        if DEBIAN not in asked and DEBIAN not in found:
            found = {**_of_mmdebstrap(suite), **found}
    urls = {**found, **asked}
    releases = {alias: tuple(suite + pocket for pocket in pockets) for alias, pockets in _POCKETS.items()}
    return tuple(Archive(alias, url, releases[alias]) for alias in _POCKETS for url in urls.get(alias, ()))


def snapshot_url(alias: str, snapshot: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The URL of an archive as it was at a time, with a slash at the end; None where the user named no snapshot service.

    The user's template holds `{archive}` and `{snapshot}`: the alias, and the time as `20261128T201100Z`. Raises `UsageError`
    where it does not.
    """
    template = environ.get(SNAPSHOT, "")
    if not template:
        return None
    if "{archive}" not in template or "{snapshot}" not in template:
        hint = f"write {SNAPSHOT} as a URL with {{archive}} and {{snapshot}} in it"
        raise UsageError(f"{SNAPSHOT} is no template for a snapshot service", why="it lacks {archive} or {snapshot}", hint=hint)
    return _folder(template.replace("{archive}", alias).replace("{snapshot}", snapshot))


def _urls(text: str, variable: str) -> tuple[str, ...]:
    urls = text.split()
    for url in urls:
        if not re.match(r"[a-z0-9+]+:/", url):
            what = f"{variable} is not a URL"
            raise UsageError(what, why=aptget.without_secrets(url), hint="write it as in sources.list: http://HOST/debian")
    return tuple(_folder(url) for url in urls)


def _folder(url: str) -> str:
    return url.rstrip("/") + "/"


def _of_host(suite: str) -> dict[str, tuple[str, ...]] | None:
    """The host's own Debian archives, with the release changed where it runs another; None where it is no Debian."""
    system = _os_release(Path("/etc/os-release"))
    if system.get("ID") != "debian":
        return None
    codename = system.get("VERSION_CODENAME", "")
    listed = aptget.run(["apt-get", "indextargets", "--format", "$(ORIGIN)|$(COMPONENT)|$(RELEASE)|$(REPO_URI)"], {}).stdout
    bare = aptget.run(["apt-get", "indextargets", "--no-release-info", "--format", "|$(COMPONENT)|$(RELEASE)|$(REPO_URI)"], {}).stdout
    found = urls_of_host(listed.splitlines() + bare.splitlines(), {codename, *_MOVING_NAMES})
    if found and SECURITY not in found and codename != suite:
        # testing and unstable have no security archive of their own; a stable release is not to go without
        found = {**{alias: urls for alias, urls in _of_mmdebstrap(suite).items() if alias == SECURITY}, **found}
    return found or None


def urls_of_host(targets: Iterable[str], suites: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Debian's archives among apt's index targets (`ORIGIN|COMPONENT|RELEASE|URL` lines) for the named suites, by alias.

    An archive that says it is of another origin is left out; one whose origin is not known yet is taken.
    """
    rows = [tuple(line.split("|", 3)) for line in targets if line.count("|") >= 3]
    foreign = {url for origin, _, _, url in rows if origin and origin != "Debian"}
    wanted = set(suites)
    found: dict[str, dict[str, None]] = {}
    for _, component, release, url in rows:
        parts = _RELEASE.fullmatch(release)
        if parts is None or component != "main" or parts["suite"] not in wanted or url in foreign:
            continue
        alias = SECURITY if parts["pocket"] in ("-security", "/updates") else DEBIAN
        found.setdefault(alias, {})[_folder(url)] = None
    return {alias: tuple(urls) for alias, urls in found.items()}


def _of_mmdebstrap(suite: str) -> dict[str, tuple[str, ...]]:
    """What mmdebstrap takes where no mirror is named: it writes its sources and is stopped before it does anything."""
    hook = 'cat "$1/etc/apt/sources.list"; exit 1'
    command = ["mmdebstrap", "--mode=chrootless", "--variant=custom", "--skip=update,download", "--format=null"]
    try:
        done = subprocess.run(
            [*command, f"--setup-hook={hook}", suite, "/dev/null"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except FileNotFoundError:
        raise mmdebstrap_missing() from None
    found: dict[str, dict[str, None]] = {}
    # what a hook prints comes out among the messages
    for line in done.stderr.splitlines():
        source = _SOURCE_LINE.match(line + " ")
        if source:
            alias = SECURITY if source["release"].endswith(("-security", "/updates")) else DEBIAN
            found.setdefault(alias, {})[_folder(source["uri"])] = None
    return {alias: tuple(urls) for alias, urls in found.items()}


def mmdebstrap_missing() -> ToolMissing:
    """The error for a host without mmdebstrap."""
    hint = "install Debian's package `mmdebstrap`, or take a base with `image:` or `archive:`"
    return ToolMissing("mmdebstrap is not installed", why="it makes the base layer from Debian's packages", hint=hint)


def _os_release(path: Path) -> dict[str, str]:
    """The fields of os-release(5)."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {key: value.strip("\"'") for key, _, value in (line.partition("=") for line in lines) if value}
