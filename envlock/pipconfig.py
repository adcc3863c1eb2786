"""The user's pip settings, as far as they say where packages come from and how to reach it.

Read without pip, from the files and variables that pip documents (its user guide, "Configuration", and pip 26's
`_internal/configuration.py` for what the guide leaves open): global files, the user's, the environment's own, then PIP_CONFIG_FILE,
each overriding the ones before; in a file `[install]` over `[global]`; PIP_* variables over all files. Settings that change
*which* package is chosen are not taken over, since a lock depends on its spec alone.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

CHANGES_THE_CHOICE = ("constraint", "pre", "no-binary", "only-binary", "prefer-binary", "ignore-requires-python")
_SECTIONS = ("global", "install")


@dataclass(frozen=True, slots=True)
class PipSettings:
    """Where pip looks and how it connects. `left_out` names settings that were found and are not applied."""

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    trusted_hosts: tuple[str, ...] = ()
    cert: str | None = None
    client_cert: str | None = None
    proxy: str | None = None
    timeout: float | None = None
    left_out: tuple[str, ...] = ()


def read_pip_settings(environ: Mapping[str, str] = os.environ, prefix: Path = Path(sys.prefix)) -> PipSettings:
    """pip's settings for this user; `prefix` is the virtual environment whose own pip.conf counts. A damaged file counts as absent."""
    values: dict[str, str] = {}
    for path in _files(environ, prefix):
        values |= _read(path)
    for name, value in environ.items():
        if name.startswith("PIP_") and name != "PIP_CONFIG_FILE" and value:
            values[_key(name.removeprefix("PIP_"))] = value
    return PipSettings(
        index_url=values.get("index-url") or values.get("pypi-url"),
        extra_index_urls=tuple(values.get("extra-index-url", "").split()),
        find_links=tuple(_expanded(link) for link in values.get("find-links", "").split()),
        no_index=values.get("no-index", "").lower() in ("1", "true", "yes", "on", "t", "y"),
        trusted_hosts=tuple(values.get("trusted-host", "").split()),
        cert=values.get("cert"),
        client_cert=values.get("client-cert"),
        proxy=values.get("proxy"),
        timeout=_seconds(values.get("timeout") or values.get("default-timeout")),
        left_out=tuple(name for name in CHANGES_THE_CHOICE if name in values),
    )


def _files(environ: Mapping[str, str], prefix: Path) -> Iterator[Path]:
    named = environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return
    home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    for folder in reversed((environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")):
        yield Path(folder) / "pip" / "pip.conf"
    yield Path("/etc/pip.conf")
    if not (named and Path(named).exists()):
        yield home / ".pip" / "pip.conf"
        yield Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"
    yield prefix / "pip.conf"
    if named:
        yield Path(named)


def _read(path: Path) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path)
    except (configparser.Error, OSError, UnicodeDecodeError):
        return {}
    return {_key(key): value.strip() for section in _SECTIONS if parser.has_section(section) for key, value in parser.items(section)}


def _key(name: str) -> str:
    return name.lower().replace("_", "-").removeprefix("--")


def _expanded(link: str) -> str:
    return str(Path(link).expanduser()) if link.startswith("~") else link


def _seconds(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
