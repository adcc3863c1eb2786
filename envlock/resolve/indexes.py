"""Where this user's Python packages come from: the settings of uv and pip as one value.

uv reads its own configuration; `uv pip compile --emit-index-url` tells what came out of it. pip's settings are handed to uv as
variables where uv has none of its own (never as arguments, which every user of the machine can read). pip takes the best version
over all its indexes, so with pip's extra indexes uv is told to do the same.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlunsplit

from envlock.pipconfig import PipSettings, read_pip_settings
from envlock.resolve.manifests import table
from envlock.resolve.pages import is_remote, local_path
from envlock.resolve.uv import Uv
from envlock.secrecy import redact
from envlock.urls import split_url

PYTORCH = "https://download.pytorch.org"
RESERVED = frozenset({"default", "pytorch", "local"})


@dataclass(frozen=True, slots=True)
class Indexes:
    """The places in force, credentials in their URLs: never print one without `redact`.

    `default` is None where the user allows no index. `named` are the user's own uv indexes by name, `unnamed` all other extra
    indexes, `find_links` folders (absolute) and pages. `pytorch` is the root below which PyTorch's `whl/…` indexes lie.
    `environment` is what uv must run with, `options` likewise.
    """

    default: str | None = field(repr=False)
    named: Mapping[str, str] = field(repr=False)
    unnamed: tuple[str, ...] = field(repr=False)
    find_links: tuple[str, ...] = field(repr=False)
    pytorch: str = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)
    options: tuple[str, ...] = ()

    @property
    def folders(self) -> tuple[Path, ...]:
        """The find-links places that are folders here."""
        return tuple(local_path(place) for place in self.find_links if not is_remote(place))


@dataclass(frozen=True, slots=True)
class _UvSettings:
    """What uv's configuration files and variables say that uv itself does not tell: names of indexes by URL."""

    names: Mapping[str, str]
    has_default: bool
    has_strategy: bool


def read_indexes(uv: Uv, environ: Mapping[str, str] = os.environ) -> Indexes:
    """The settings of this user, read where the user stands. Raises `UsageError` when uv cannot read its own configuration."""
    pip = read_pip_settings(environ)
    own = _uv_settings(environ, Path.cwd())
    environment = _environment(environ, pip, own)
    options = ("--no-index",) if pip.no_index and not own.has_default else ()
    told = uv.compile(["/dev/null", "--offline", "--emit-index-url", "--emit-find-links", *options], environment)
    default, extra, find_links = None, [], []
    for line in told.splitlines():
        option, _, value = line.strip().partition(" ")
        if option == "--index-url":
            default = value
        elif option == "--extra-index-url":
            extra.append(value)
        elif option == "--find-links":
            find_links.append(value if split_url(value).scheme else str(Path(value).absolute()))
    named = {own.names[_plain(url)]: url for url in extra if _plain(url) in own.names}
    return Indexes(
        default=default,
        named={name: _with_variables(url, name, environ) for name, url in named.items()},
        unnamed=tuple(url for url in extra if _plain(url) not in own.names),
        find_links=tuple(find_links),
        pytorch=(environ.get("ENVLOCK_PYTORCH_INDEX") or PYTORCH).rstrip("/"),
        environment=environment,
        options=options,
    )


def left_out(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """pip settings that are in force here and not applied, because a lock depends on its spec alone."""
    return read_pip_settings(environ).left_out


def _environment(environ: Mapping[str, str], pip: PipSettings, own: _UvSettings) -> dict[str, str]:
    """The variables for uv: the user's, and pip's settings where uv has no setting of its own."""
    made = dict(environ)

    def add(name: str, values: Iterable[str], separator: str) -> None:
        whole = separator.join([*filter(None, [environ.get(name)]), *values])
        if whole:
            made[name] = whole

    extra = [url for url in pip.extra_index_urls if _exists(url)]
    add("UV_INDEX", extra, " ")
    add("UV_FIND_LINKS", [_as_uv_reads(place) for place in pip.find_links if _exists(place)], ",")
    add("UV_INSECURE_HOST", pip.trusted_hosts, " ")
    if pip.index_url and not own.has_default:
        made["UV_DEFAULT_INDEX"] = pip.index_url
    if extra and not own.has_strategy:
        made["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    for name, value in (
        ("SSL_CERT_FILE", pip.cert),
        ("SSL_CLIENT_CERT", pip.client_cert),
        ("HTTP_PROXY", pip.proxy),
        ("HTTPS_PROXY", pip.proxy),
        ("UV_HTTP_TIMEOUT", str(int(pip.timeout)) if pip.timeout else None),
    ):
        if value and name not in made and name.lower() not in made:
            made[name] = value
    return made


def _exists(place: str) -> bool:
    """Whether a place can be asked at all: pip passes over folders that are absent, uv would stop."""
    return is_remote(place) or local_path(place).is_dir()


def _as_uv_reads(place: str) -> str:
    return place if is_remote(place) else str(local_path(place).absolute())


def _uv_settings(environ: Mapping[str, str], here: Path) -> _UvSettings:
    """Read what is needed of uv's configuration, from the files and in the order that uv documents ("Configuration files")."""
    names: dict[str, str] = {}
    has_default = bool(environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL"))
    has_strategy = bool(environ.get("UV_INDEX_STRATEGY"))
    for entry in environ.get("UV_INDEX", "").split():
        name, equals, url = entry.partition("=")
        if equals and not split_url(name).scheme and name not in RESERVED:
            names.setdefault(_plain(url), name)
    for config in _uv_configs(environ, here):
        pip: dict[str, Any] = next(iter(_dicts([config.get("pip")])), {})
        for index in _dicts(config.get("index")) + _dicts(pip.get("index")):
            called, place = index.get("name"), index.get("url")
            if index.get("default"):
                has_default = True
            elif isinstance(called, str) and isinstance(place, str) and called not in RESERVED:
                names.setdefault(_plain(place), called)
        for settings in (config, pip):
            has_default = has_default or "index-url" in settings
            has_strategy = has_strategy or "index-strategy" in settings
    return _UvSettings(names, has_default, has_strategy)


def _uv_configs(environ: Mapping[str, str], here: Path) -> Iterator[dict[str, Any]]:
    if environ.get("UV_NO_CONFIG", "").lower() in ("1", "true", "yes"):
        return
    if named := environ.get("UV_CONFIG_FILE"):
        yield _toml(Path(named))
        return
    for folder in (here, *here.parents):
        project = table(_toml(folder / "pyproject.toml").get("tool")).get("uv")
        if (folder / "uv.toml").is_file() or project is not None:
            yield _toml(folder / "uv.toml") or table(project)
            break
    home = Path(environ.get("HOME") or Path.home())
    yield _toml(Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "uv" / "uv.toml")
    for system in (*(environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":"), "/etc"):
        if config := _toml(Path(system) / "uv" / "uv.toml"):
            yield config
            return


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}


def _dicts(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _plain(url: str) -> str:
    """A URL as two spellings of one index are compared: without credentials and final slash."""
    return redact(url).rstrip("/")


def _with_variables(url: str, name: str, environ: Mapping[str, str]) -> str:
    """The URL with the credentials that uv reads from UV_INDEX_<NAME>_USERNAME and _PASSWORD, when it has none of its own."""
    prefix = "UV_INDEX_" + "".join(c if c.isalnum() else "_" for c in name.upper())
    user, password = environ.get(f"{prefix}_USERNAME", ""), environ.get(f"{prefix}_PASSWORD", "")
    parts = split_url(url)
    if "@" in parts.netloc or not (user or password):
        return url
    return urlunsplit(parts._replace(netloc=f"{quote(user, safe='')}:{quote(password, safe='')}@{parts.netloc}"))
