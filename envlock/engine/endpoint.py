"""Where the engine is: `--host`, DOCKER_HOST, the Docker context, the default socket, the rootless one; in that order."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.context import ContextAPI
from docker.context.config import get_current_context_name
from docker.tls import TLSConfig

from envlock.errors import NoEngine

DEFAULT_SOCKET = Path("/var/run/docker.sock")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An engine's address, and in words why this one was taken."""

    url: str
    origin: str
    tls: TLSConfig | None = None

    @property
    def socket(self) -> Path | None:
        """The path of a Unix socket; None for an engine that is reached otherwise."""
        return Path(self.url.removeprefix("unix://")) if self.url.startswith("unix://") else None

    def __str__(self) -> str:
        return f"{self.url} ({self.origin})"


def find_endpoint(host: str | None, environ: Mapping[str, str] = os.environ, default: Path = DEFAULT_SOCKET) -> Endpoint:
    """The endpoint that the user means. Raises `NoEngine` where a context is named that does not exist."""
    if host:
        return Endpoint(_url(host), "--host", _tls(environ))
    if environ.get("DOCKER_HOST"):
        return Endpoint(_url(environ["DOCKER_HOST"]), "DOCKER_HOST", _tls(environ))
    name = environ.get("DOCKER_CONTEXT") or get_current_context_name()
    if name and name != "default":
        return _of_context(name)
    rootless = Path(environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}") / "docker.sock"
    if not default.exists() and rootless.exists():
        return Endpoint(f"unix://{rootless}", "rootless socket")
    return Endpoint(f"unix://{default}", "default socket")


def _url(host: str) -> str:
    """What the Docker client takes too: a bare path is a socket, a bare name with a port is TCP."""
    if host.startswith("/"):
        return f"unix://{host}"
    return host if "://" in host else f"tcp://{host}"


def _of_context(name: str) -> Endpoint:
    try:
        context: Any = ContextAPI.get_context(name)
    except Exception as error:  # the SDK raises bare Exception for a context file that it cannot read
        raise NoEngine(f"the Docker context {name} cannot be read", why=str(error), hint="see `docker context ls`") from None
    url = context.Host if context is not None else None
    if not url:
        hint = "choose one of `docker context ls` with `docker context use`, or name an engine with --host"
        raise NoEngine(f"the Docker context {name} does not exist", hint=hint)
    return Endpoint(_url(url), f"context {name}", context.TLSConfig)


def _tls(environ: Mapping[str, str]) -> TLSConfig | None:
    """Certificates as the Docker client finds them: DOCKER_CERT_PATH, checked when DOCKER_TLS_VERIFY is set."""
    verify = bool(environ.get("DOCKER_TLS_VERIFY"))
    folder = environ.get("DOCKER_CERT_PATH")
    if not verify and not folder:
        return None
    certificates = Path(folder) if folder else Path.home() / ".docker"
    ca, certificate, key = (certificates / name for name in ("ca.pem", "cert.pem", "key.pem"))
    absent = [path.name for path in (ca, certificate, key) if not path.is_file()]
    if absent:
        what = f"the engine is to be reached with TLS, but {', '.join(absent)} cannot be found"
        raise NoEngine(what, where=str(certificates), hint="set DOCKER_CERT_PATH to the folder with the engine's certificates")
    return TLSConfig(client_cert=(str(certificate), str(key)), ca_cert=str(ca), verify=verify)
