"""Debian: a base as the list of all its packages, resolved by apt from indices that Debian signed.

The result names every package by version, pool path, size and sha256, and an archive by alias: never a server, a time of day
or anything else of this host.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from urllib.parse import quote

from envlock import debfile
from envlock.errors import EnvlockError, FetchError, FileGone, Unreachable
from envlock.fetch import Wanted, fetch_all
from envlock.lock import Deb, DebianBase
from envlock.progress import Progress
from envlock.resolve import aptget, archives
from envlock.resolve.archives import Archive
from envlock.resolve.closure import choose
from envlock.store import Store
from envlock.urls import split_url

BASE_PACKAGES = ("python3", "ca-certificates")
"""What a base has beside Debian's minimal system: the release's own Python (torch's wheels bring their own libgomp, and apt
already needs libstdc++6), and the certificates that `urllib` checks a dataset's server with."""

# Either satisfies init-system-helpers; usrmerge would bring all of Perl along.
_NEVER = ("usrmerge",)
_MINIMAL = ("?essential", "?priority(required)", "apt")
ARCHITECTURES = {"linux/amd64": "amd64", "linux/arm64": "arm64"}
"""Debian's name for the architecture of a platform."""
_UNSIGNED = re.compile(r"The repository '(\S+?)/? \S+ In?Release' is not signed")
_DOWNLOADABLE = ("http", "https")
# Many packages are fetched at once, and apt answers the first that asks; the others wait for that answer.
_ASKING = Lock()


def resolve_base(
    suite: str, platform: str, packages: Sequence[str], store: Store, progress: Progress, keep: DebianBase | None = None
) -> DebianBase:
    """Debian's minimal system (mmdebstrap's `minbase`: essential packages, those of priority required, and apt), what an
    environment needs (`BASE_PACKAGES`), `packages`, and all that these depend on, as this host's mirrors have them now; every
    package fetched into the store.

    `suite` is a release by code name, `platform` as in the spec. Where the outcome has the packages of `keep`, `keep` is
    returned as it is.

    Raises `ToolMissing`, `NoSolution` (a package that does not exist or cannot be installed), `Unreachable` and other
    `FetchError`s.
    """
    architecture = ARCHITECTURES[platform]
    sources = archives.find_archives(suite)
    with store.scratch() as folder, progress.track(f"Debian {suite}: package lists"):
        apt = _open(suite, architecture, sources, folder, progress)
        debs = choose(apt, sources, (*_MINIMAL, *BASE_PACKAGES, *packages), f"Debian {suite}")
        snapshot = _newest_release(apt.lists)
    if keep is not None and keep.suite == suite and identities(keep.debs) == identities(debs):
        return keep
    fetch_debs(debs, suite, platform, store, progress, snapshot)
    date = max(debfile.date_of(store.path(deb.sha256)) for deb in debs)
    return DebianBase(suite=suite, snapshot=snapshot, date=date, debs=debs)


def fetch_debs(debs: Iterable[Deb], suite: str, platform: str, store: Store, progress: Progress, snapshot: str = "") -> None:
    """Bring locked packages into the store. Raises what `fetch_all` raises."""
    elsewhere = f"set {archives.SNAPSHOT} to a snapshot service, or {archives.MIRROR} to a mirror that still has it"
    hint = f"mirrors drop a version when a newer one comes: lock again for the current one, or {elsewhere}"

    def wanted(deb: Deb) -> Wanted:
        return Wanted(f"{deb.name} {deb.version}", deb.sha256, deb.size, lambda: deb_sources(deb, suite, platform, snapshot), hint)

    fetch_all([wanted(deb) for deb in debs], store, progress)


def deb_sources(deb: Deb, suite: str, platform: str, snapshot: str = "") -> Iterator[str | Path]:
    """Where a locked package may be had on this host, best first: its archive here, the other archives, a snapshot service.

    Yields URLs for plain HTTP; a file, valid until the next one is asked for, where apt itself must fetch: through the proxy,
    certificates or credentials that it is set up with, or by a method of its own (`file:`, `mirror+https:`, …).
    """
    with _ASKING:
        found = _archives(suite, *(os.environ.get(name) for name in (archives.MIRROR, archives.SECURITY_MIRROR)))
        plain = _transport().is_plain
    urls = [archive.url for archive in sorted(found, key=lambda archive: archive.alias != deb.archive)]
    earlier = archives.snapshot_url(deb.archive, snapshot) if snapshot else None
    # An index escapes what a URL may not hold; servers know the plus sign either way, apt asks for it escaped.
    path = quote(deb.path, safe="/~")
    for url in dict.fromkeys([*urls, *([earlier] if earlier else [])]):
        if plain and split_url(url).scheme in _DOWNLOADABLE:
            yield url + path
        else:
            with TemporaryDirectory(prefix="envlock-") as folder:
                apt = aptget.Apt.set_up(Path(folder) / "apt", ARCHITECTURES[platform], (), _transport())
                target = Path(folder) / "package.deb"
                if apt.download(url + path, target):
                    yield target


@cache
def _archives(suite: str, mirror: str | None, security_mirror: str | None) -> tuple[Archive, ...]:
    named = {archives.MIRROR: mirror, archives.SECURITY_MIRROR: security_mirror}
    return archives.find_archives(suite, {name: value for name, value in named.items() if value is not None})


@cache
def _transport() -> aptget.Transport:
    return aptget.host_transport()


def _open(suite: str, architecture: str, sources: Sequence[Archive], folder: Path, progress: Progress) -> aptget.Apt:
    """An apt that has read the indices of `sources`, each checked against Debian's keys."""
    keyring = archives.keyring()
    lines = [line for archive in sources for line in archive.source_lines(keyring)]
    apt = aptget.Apt.set_up(folder / "apt", architecture, lines, aptget.host_transport(), _NEVER)
    done = apt.run("apt-get", "update", "--error-on=any")
    if done.returncode == 0:
        return apt
    unsigned = set(_UNSIGNED.findall(done.stderr))
    others = [archive for archive in sources if archive.url.rstrip("/") not in unsigned]
    if len(others) < len(sources) and any(archive.alias == archives.DEBIAN for archive in others):
        # the host's sources also name archives of others under the release's name
        left_out = ", ".join(sorted(aptget.without_secrets(url) for url in unsigned))
        progress.say(f"left out, since Debian did not sign it: {left_out}")
        return _open(suite, architecture, others, folder / "again", progress)
    raise _update_failed(suite, aptget.without_secrets(done.stderr))


def _update_failed(suite: str, output: str) -> EnvlockError:
    lines = [line[3:] for line in output.splitlines() if line.startswith("E: ")]
    why = next(iter(lines), output.strip().splitlines()[-1] if output.strip() else "")
    where = f"Debian {suite}"
    if "NO_PUBKEY" in output or "is not signed" in output or "BADSIG" in output or "EXPKEYSIG" in output:
        hint = f"update the package `debian-archive-keyring`, or set {archives.MIRROR} to a mirror of Debian itself"
        return FetchError("the package lists do not carry a signature of Debian", where=where, why=why, hint=hint)
    if "does not have a Release file" in output or "404" in output:
        hint = f"check the name of the release, or set {archives.MIRROR} and {archives.SECURITY_MIRROR} to mirrors that have it"
        return FileGone(f"the mirror does not have Debian {suite}", where=where, why=why, hint=hint)
    hint = f"check the network and apt's proxy settings (`apt-get update` shows the same), or set {archives.MIRROR}"
    return Unreachable("the package lists cannot be fetched", where=where, why=why, hint=hint)


def _newest_release(lists: Path) -> str:
    """The date of the newest Release file read, as snapshot services write a time."""
    dates = [
        parsedate_to_datetime(found[1])
        for path in sorted(lists.glob("*Release"))
        if (found := re.search(r"^Date: (.+)$", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE))
    ]
    return max(dates, default=datetime.fromtimestamp(0, UTC)).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")


def identities(debs: Iterable[Deb]) -> set[tuple[str, str, str, str]]:
    """What makes two lists of packages the same, wherever their files lie in an archive."""
    return {(deb.name, deb.version, deb.architecture, deb.sha256) for deb in debs}
