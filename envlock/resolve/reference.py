"""Image references as Docker reads them: `cuda`, `nvidia/cuda:12.4.1`, `registry.example.org:5000/team/base@sha256:…`."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from envlock.errors import UsageError

DOCKER_HUB = "docker.io"
_SERVED_BY = {DOCKER_HUB: "registry-1.docker.io", "index.docker.io": "registry-1.docker.io"}

# The grammar of distribution/reference 0.6 (reference.go), without the limit on a name's length.
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*")
_REGISTRY = re.compile(r"(?:\w(?:[\w-]*\w)?(?:\.\w(?:[\w-]*\w)?)*|\[[0-9a-fA-F:]+\])(?::\d+)?", re.ASCII)
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ImageReference:
    """A reference in its parts. `registry` is the name that credentials go by; where both are given a digest beats the tag."""

    registry: str
    repository: str
    tag: str | None
    digest: str | None

    @property
    def wanted(self) -> str:
        """What to ask the registry for: the digest, or else the tag."""
        return self.digest or self.tag or "latest"

    @property
    def host(self) -> str:
        """The host, with its port if it has one, that serves the registry's API."""
        return _SERVED_BY.get(self.registry, self.registry)

    @property
    def is_loopback(self) -> bool:
        """Whether the registry is on this host, where plain HTTP does no harm."""
        name = self.host.rpartition(":")[0] if re.search(r":\d+$", self.host) else self.host
        if name == "localhost":
            return True
        try:
            return ipaddress.ip_address(name.strip("[]")).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        name = self.repository if self.registry == DOCKER_HUB else f"{self.registry}/{self.repository}"
        return name + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")


def parse_reference(text: str) -> ImageReference:
    """Read a reference. Raises `UsageError` where it is none."""
    rest, at, digest = text.partition("@")
    registry, slash, path = rest.partition("/")
    if not slash or not ("." in registry or ":" in registry or registry == "localhost"):
        registry, path = DOCKER_HUB, rest
    repository, colon, tag = path.partition(":")
    if registry == DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    faulty = (
        not _REPOSITORY.fullmatch(repository)
        or (colon and not _TAG.fullmatch(tag))
        or (at and not _DIGEST.fullmatch(digest))
        or not _REGISTRY.fullmatch(registry)
    )
    if faulty:
        hint = "write it as nvidia/cuda:12.4.1-base-ubuntu22.04 or registry.example.org/team/base:1"
        raise UsageError(f"{text!r} is not an image reference", where="base.image", hint=hint)
    return ImageReference(registry, repository, (tag or None) if colon else None if digest else "latest", digest or None)
