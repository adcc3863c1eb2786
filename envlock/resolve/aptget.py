"""Aptget: the host's apt in a world of its own, with the host's way to the network and nothing else of the host.

Every path that apt reads or writes lies in one folder; no privilege is needed and the host's own packages, lists, pins and
sources are neither seen nor changed. What the host's administrator set up for reaching servers (proxies, certificates,
credentials) is taken over.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from envlock.errors import ToolMissing

# What of the host's configuration tells apt how to reach servers (apt.conf(5), apt-transport-http(1), apt-transport-https(1)).
_TRANSPORT = re.compile(
    r"Acquire::(?:(?:http|https|ftp|tor|mirror|socks5h|tor\+https?|mirror\+https?)(?:::|\s|$)"
    r"|(?:Retries|Queue-Mode|ForceIPv[46]|Check-Valid-Until|Check-Date|Max-ValidTime|Min-ValidTime|Send-URI-Encoded)(?:::|\s|$))",
    re.IGNORECASE,
)
_NEEDS_APT = re.compile(r"Acquire::https?::(?:[^\s]*::)?(?:Proxy|CaInfo|CaPath|Ssl|Verify)", re.IGNORECASE)
_SECRET = re.compile(r"(?<=://)[^/@\s'\"]+@")
_HELPER = Path("/usr/lib/apt/apt-helper")


@dataclass(frozen=True, slots=True)
class Transport:
    """How the host's apt reaches servers: lines of its configuration, and where its credentials lie."""

    settings: tuple[str, ...] = ()
    netrc: str = "/etc/apt/auth.conf"
    netrc_parts: str = "/etc/apt/auth.conf.d"

    @property
    def is_plain(self) -> bool:
        """Whether any other HTTP client gets the same answers: no proxy, certificate or credential of apt's own."""
        parts = Path(self.netrc_parts)
        credentials = Path(self.netrc).exists() or (parts.is_dir() and any(parts.glob("*.conf")))
        return not credentials and not any(_NEEDS_APT.match(line) for line in self.settings)


def host_transport() -> Transport:
    """The host's own transport settings. Raises `ToolMissing` where apt is not installed."""
    lines = run(["apt-config", "dump"], {}).stdout.splitlines()
    wanted = tuple(line for line in lines if _TRANSPORT.match(line))
    shell = run(["apt-config", "shell", "NETRC", "Dir::Etc::netrc/f", "PARTS", "Dir::Etc::netrcparts/d"], {}).stdout
    places = dict(re.findall(r"^(NETRC|PARTS)='(.*)'$", shell, re.MULTILINE))
    return Transport(wanted, places.get("NETRC", "/etc/apt/auth.conf"), places.get("PARTS", "/etc/apt/auth.conf.d").rstrip("/"))


def run(command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run one of apt's programs with messages in English. Raises `ToolMissing`; a failure is the caller's to understand."""
    if shutil.which(command[0]) is None and not Path(command[0]).exists():
        why = "envlock asks apt which packages make a base"
        raise ToolMissing(f"{command[0]} is not installed", why=why, hint="install Debian's packages `apt` and `debian-archive-keyring`")
    env = {**os.environ, "LC_ALL": "C.UTF-8", "LANGUAGE": "C", "TZ": "UTC", **environment}
    return subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, encoding="utf-8", errors="replace", check=False
    )


def without_secrets(text: str) -> str:
    """The text with the user names and passwords of URLs taken out."""
    return _SECRET.sub("", text)


@dataclass(frozen=True, slots=True)
class Apt:
    """An apt of its own in `folder`, for one architecture."""

    folder: Path

    @classmethod
    def set_up(cls, folder: Path, architecture: str, sources: Iterable[str], transport: Transport, never: Iterable[str] = ()) -> Apt:
        """Write the configuration into an empty folder: no packages installed, `sources` (lines as in sources.list(5)) alone.

        Packages named in `never` are not candidates for anything.
        """
        for path in (
            "etc/apt/apt.conf.d",
            "etc/apt/preferences.d",
            "var/lib/apt/lists/partial",
            "var/cache/apt/archives/partial",
            "var/lib/dpkg",
        ):
            (folder / path).mkdir(parents=True)
        (folder / "var/lib/dpkg/status").touch()
        (folder / "etc/apt/sources.list").write_text("".join(f"{line}\n" for line in sources))
        pins = "\n".join(f"Package: {name}\nPin: release *\nPin-Priority: -1\n" for name in never)
        (folder / "etc/apt/preferences").write_text(pins)
        settings = [
            f'Dir "{folder}/";',
            f'APT::Architecture "{architecture}";',
            f'APT::Architectures {{ "{architecture}"; }};',
            'APT::Install-Recommends "false";',
            'APT::Install-Suggests "false";',
            # as root, apt downloads as a user of its own, who may not enter the store
            'APT::Sandbox::User "root";',
            'Acquire::Languages "none";',
            *transport.settings,
            f'Dir::Etc::netrc "{transport.netrc}";',
            f'Dir::Etc::netrcparts "{transport.netrc_parts}/";',
        ]
        config = folder / "apt.conf"
        config.touch(mode=0o600)
        config.write_text("".join(f"{line}\n" for line in settings))
        return cls(folder)

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `apt-get`, `apt-cache` or another of apt's programs in this world."""
        return run([program, *arguments], {"APT_CONFIG": str(self.folder / "apt.conf")})

    def download(self, url: str, target: Path) -> bool:
        """Get one file as apt would; whether it came. Its hash is the caller's to check."""
        return self.run(str(_HELPER), "download-file", url, str(target)).returncode == 0 and target.exists()

    @property
    def lists(self) -> Path:
        """Where the verified indices lie."""
        return self.folder / "var/lib/apt/lists"
