"""uv, the resolver: found beside this package, its version checked, its refusals turned into errors of ours."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet

from envlock.errors import (
    AccessDenied,
    CertificateRefused,
    DiskFull,
    EnvlockError,
    NeedsCompiling,
    NoSolution,
    RateLimited,
    ToolMissing,
    Unreachable,
    UsageError,
)
from envlock.secrecy import redact_text

# As in pyproject.toml: a minor version of uv may change its options and its output.
SUPPORTED = SpecifierSet(">=0.11,<0.14")
# What would let a machine's settings change which package is chosen; a lock depends on its spec alone.
_CHANGES_THE_CHOICE = frozenset(
    {
        "UV_BUILD_CONSTRAINT",
        "UV_CONSTRAINT",
        "UV_CUSTOM_COMPILE_COMMAND",
        "UV_EXCLUDE",
        "UV_FORK_STRATEGY",
        "UV_NO_BINARY",
        "UV_NO_BINARY_PACKAGE",
        "UV_NO_BUILD",
        "UV_NO_BUILD_PACKAGE",
        "UV_NO_SOURCES",
        "UV_NO_SOURCES_PACKAGE",
        "UV_OVERRIDE",
        "UV_PRERELEASE",
        "UV_PROJECT",
        "UV_PYTHON",
        "UV_REQUIRE_HASHES",
        "UV_RESOLUTION",
        "UV_SYSTEM_PYTHON",
        "UV_TORCH_BACKEND",
        "UV_WORKING_DIR",
    }
)
_NO_WHEEL = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:(?:==|===)(\S+))? (?:has|have) no (?:usable wheels|wheels with a matching)")
_WHEELS_OF = re.compile(r"only found wheels for `([^`]+)` \(v([^)]+)\)")


@dataclass(frozen=True, slots=True)
class WithoutWheel:
    """A package of which uv found no wheel that suits; `version` where one was asked for."""

    name: str
    version: str | None


class NoUsableWheel(NeedsCompiling):
    """Nothing satisfies the requirements because `package` has no wheel for the target."""

    def __init__(self, package: WithoutWheel, why: str) -> None:
        super().__init__(f"{package.name} has no wheel for the target", why=why)
        self.package = package


@dataclass(frozen=True, slots=True)
class Uv:
    """A uv that can be called."""

    binary: Path
    version: str

    @classmethod
    def find(cls) -> Uv:
        """The uv that is installed beside this package. Raises `ToolMissing`."""
        hint = "install envlock's dependencies again: `pip install .` in its checkout brings uv along"
        try:
            import uv

            binary = Path(uv.find_uv_bin())
            output = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
        except (ImportError, OSError, subprocess.CalledProcessError):
            raise ToolMissing("uv is not installed", why="envlock resolves Python packages with it", hint=hint) from None
        version = output.split()[1]
        if not SUPPORTED.contains(version, prereleases=True):
            raise ToolMissing(f"uv {version} is not one that envlock works with", why=f"it needs {SUPPORTED}", hint=hint)
        return cls(binary, version)

    def compile(self, arguments: Sequence[str | Path], environment: Mapping[str, str]) -> str:
        """Run `uv pip compile` where the user stands, so that uv finds its own configuration; what it prints on stdout.

        `environment` holds the user's index settings, credentials in them.

        Raises `NoUsableWheel`, `NoSolution`, a `FetchError`, `DiskFull` or `UsageError` with uv's own reasoning.
        """
        always = ["pip", "compile", "--no-header", "--no-progress", "--color", "never", "--no-python-downloads", "--python", sys.executable]
        kept = {name: value for name, value in environment.items() if name not in _CHANGES_THE_CHOICE}
        done = subprocess.run([self.binary, *always, *arguments], env=kept, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            raise explain(done.stderr)
        return done.stdout


def explain(stderr: str) -> EnvlockError:
    """uv's complaint as an error of ours, its own reasoning kept."""
    text = redact_text("\n".join(line.rstrip() for line in stderr.splitlines() if not line.startswith(("warning:", "Resolved"))).strip())
    reasoning, _, hints = text.partition("\n\nhint: ")
    causes = [re.sub(r"^(?:cause:|╰─▶|├─▶)\s*", "", line.strip()) for line in reasoning.splitlines()[1:]]
    why = "\n".join(causes) or reasoning
    hint = hints.replace("\n\nhint: ", "\n").strip()
    address = re.search(r"https?://[^\s`)]+", text)
    where = address[0] if address else ""
    if re.search(r"\b(401|403)\b (Unauthorized|Forbidden)", text):
        hint = "put credentials for it into ~/.netrc or into the index's URL"
        return AccessDenied("a package index refuses access", where=where, why=why, hint=hint)
    if "No solution found" in text:
        if package := _without_wheel(text):
            return NoUsableWheel(package, f"{why}\n{hint}".strip())
        if "was not found in the" in why and not hint:
            hint = "check how the name is spelt, and that its index is among pip's or uv's settings"
        return NoSolution("no set of packages satisfies the spec", why=why, hint=hint or "loosen one of the requirements named here")
    if "No space left" in text:
        return DiskFull("the disk is full", why=why, hint="free some space, or set UV_CACHE_DIR to a folder on a larger disk")
    if re.search(r"\b429 Too Many", text):
        return RateLimited("a package index limits how often it may be asked", where=where, why=why, hint="wait, or use a mirror")
    if "certificate" in text:
        hint = "name your organisation's CA bundle in SSL_CERT_FILE"
        return CertificateRefused("the certificate of a package index is refused", where=where, why=why, hint=hint)
    if re.search(r"Failed to fetch|Request failed|error sending request|Connection|Network|timed out", text, re.IGNORECASE):
        hint = "check the network, the proxy variables and the index settings, then run it again"
        return Unreachable("a package index cannot be reached", where=where, why=causes[-1] if causes else why, hint=hint)
    return UsageError("uv refuses to resolve this", why=text, hint="correct the requirement or the uv setting that it names")


def _without_wheel(text: str) -> WithoutWheel | None:
    flat = " ".join(text.split())
    if match := _WHEELS_OF.search(flat):
        return WithoutWheel(match[1], match[2])
    if match := _NO_WHEEL.search(flat):
        return WithoutWheel(match[1], match[2])
    return None
