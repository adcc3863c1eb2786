"""Registry credentials as Docker keeps them: config.json, its credential store and its helpers (docs.docker.com, `docker login`)."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envlock.resolve.manifests import table
from envlock.resolve.reference import DOCKER_HUB

_HUB_KEY = "https://index.docker.io/v1/"
_TOKEN_USER = "<token>"  # how a helper says that its secret is an identity token and no password
_HELPER_SECONDS = 30

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user's name and password, or an identity token in their stead; never shown."""

    user: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)


def find_credentials(registry: str, say: Say, environ: Mapping[str, str] = os.environ) -> Credentials | None:
    """What Docker would log in with; None for anonymous. A helper that is named and missing or failing is told, and not relied on."""
    folder = Path(environ.get("DOCKER_CONFIG") or Path(environ.get("HOME") or Path.home()) / ".docker")
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        say(f"{path} cannot be read ({type(error).__name__}): asking {registry} without credentials")
        return None
    if not isinstance(config, dict):
        return None
    helpers = table(config.get("credHelpers"))
    names = _names_of(registry)
    helper = next((str(helpers[name]) for name in names if name in helpers), None) or config.get("credsStore")
    if helper:
        found = _ask_helper(str(helper), names[0], registry, say, environ)
        if found is not None:
            return found
    return _from_file(table(config.get("auths")), names)


def _names_of(registry: str) -> tuple[str, ...]:
    """The keys that a registry's credentials may stand under, Docker's own first."""
    if registry == DOCKER_HUB:
        return (_HUB_KEY, "index.docker.io", DOCKER_HUB, "registry-1.docker.io")
    return (
        registry,
        f"https://{registry}",
        f"https://{registry}/",
        f"https://{registry}/v1/",
        f"https://{registry}/v2/",
        f"http://{registry}",
    )


def _from_file(auths: Mapping[str, Any], names: tuple[str, ...]) -> Credentials | None:
    row = next((table(auths[name]) for name in names if name in auths), {})
    if row.get("identitytoken"):
        return Credentials(identity_token=str(row["identitytoken"]))
    try:
        user, colon, password = base64.b64decode(str(row.get("auth") or "")).decode().partition(":")
    except ValueError:
        return None
    return Credentials(user, password.rstrip("\0")) if colon else None


def _ask_helper(helper: str, server: str, registry: str, say: Say, environ: Mapping[str, str]) -> Credentials | None:
    program = f"docker-credential-{helper}"
    path = shutil.which(program, path=environ.get("PATH"))
    if path is None:
        say(f"Docker's configuration names the credential helper {program}, which is not installed: asking {registry} without it")
        return None
    try:
        done = subprocess.run(
            [path, "get"], input=server.encode(), capture_output=True, timeout=_HELPER_SECONDS, check=False, env=dict(environ)
        )
        answer = table(json.loads(done.stdout)) if done.returncode == 0 else {}
    except (OSError, ValueError, RecursionError, subprocess.TimeoutExpired):
        say(f"the credential helper {program} does not work: asking {registry} without it")
        return None
    if not answer.get("Secret"):
        return None  # the helper has nothing for this registry, which is no fault
    if answer.get("Username") == _TOKEN_USER:
        return Credentials(identity_token=str(answer["Secret"]))
    return Credentials(str(answer.get("Username") or ""), str(answer["Secret"]))
