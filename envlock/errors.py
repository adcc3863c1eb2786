"""Every error that envlock raises on purpose: what went wrong, where, why, and what to do.

An error class fixes the `id` (kebab-case, stable, documented) and the exit code; an instance carries the facts of one
occurrence. Faults that can be found together are raised together, as `Problems`. `cli.py` alone turns an error into text and
an exit status.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Literal

from envlock.secrecy import redact_text

Severity = Literal["error", "warning", "info"]


class Exit(IntEnum):
    """Exit statuses of the command line, one meaning each."""

    OK = 0
    DOES_NOT_HOLD = 1
    USAGE = 2
    NO_STACK = 3
    LOCK = 4
    HOST = 5
    FILE = 6
    BUILD = 7
    INCONCLUSIVE = 8
    INTERNAL = 70
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a person should know: an error, a warning or a piece of information, with its remedy.

    `where` is `file:line:column`, or the name of a step, package or host; empty where there is no better place to point at.
    """

    id: str
    severity: Severity
    what: str
    where: str = ""
    why: str = ""
    hint: str = ""

    def __post_init__(self) -> None:
        """No finding shows the credentials of a URL, whoever wrote the text that it quotes."""
        for name in ("what", "where", "why", "hint"):
            object.__setattr__(self, name, redact_text(getattr(self, name)))


class EnvlockError(Exception):
    """Base of all deliberate errors. `id` and `exit_code` belong to the class, the rest to the occurrence."""

    id: ClassVar[str] = "envlock-error"
    exit_code: ClassVar[Exit] = Exit.DOES_NOT_HOLD

    def __init__(self, what: str, *, where: str = "", why: str = "", hint: str = "") -> None:
        super().__init__(redact_text(what))
        self.what = redact_text(what)
        self.where = redact_text(where)
        self.why = redact_text(why)
        self.hint = redact_text(hint)

    @property
    def finding(self) -> Finding:
        """The same facts as a value, for reports and for JSON."""
        return Finding(self.id, "error", self.what, self.where, self.why, self.hint)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All faults that this error stands for, at least one."""
        return (self.finding,)


class Problems(EnvlockError):
    """Several faults of one kind of input, found in one go."""

    id = "problems"

    def __init__(self, findings: Iterable[Finding], exit_code: Exit) -> None:
        self._findings: Sequence[Finding] = tuple(findings)
        first = next(f for f in self._findings if f.severity == "error")
        super().__init__(first.what, where=first.where, why=first.why, hint=first.hint)
        self._exit_code = exit_code

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(self._findings)


def exit_code_of(error: EnvlockError) -> Exit:
    """The exit status for an error; `Problems` carries its own."""
    return error._exit_code if isinstance(error, Problems) else error.exit_code


class InternalFault(EnvlockError):
    """envlock itself is at fault: something happened that no other error stands for."""

    id = "internal-fault"
    exit_code = Exit.INTERNAL


# usage and spec: exit 2 ------------------------------------------------------------------------------------------------


class UsageError(EnvlockError):
    """The command was called in a way that cannot be right."""

    id = "usage"
    exit_code = Exit.USAGE


class FileUnreadable(EnvlockError):
    """A file that the user named cannot be read."""

    id = "file-unreadable"
    exit_code = Exit.USAGE


class ImageMissing(EnvlockError):
    """The engine has no image of the name that was given."""

    id = "image-missing"
    exit_code = Exit.USAGE


class NotPinnable(EnvlockError):
    """An image, or what was named with it, is not what an artifact can be made of."""

    id = "not-pinnable"
    exit_code = Exit.USAGE


# lock: exit 4 ----------------------------------------------------------------------------------------------------------


class LockMissing(EnvlockError):
    """A command needs a lock and there is none."""

    id = "lock-missing"
    exit_code = Exit.LOCK


class LockInvalid(EnvlockError):
    """A lock file is not one that this version of envlock can read."""

    id = "lock-invalid"
    exit_code = Exit.LOCK


class LockStale(EnvlockError):
    """The spec, a file that it names, or the catalogue changed since the lock was written."""

    id = "lock-stale"
    exit_code = Exit.LOCK


# resolution: exit 3 ----------------------------------------------------------------------------------------------------


class NoStack(EnvlockError):
    """No build of torch that the catalogue knows serves what was asked for."""

    id = "no-stack"
    exit_code = Exit.NO_STACK


class NoSolution(EnvlockError):
    """No set of packages satisfies the spec."""

    id = "package-conflict"
    exit_code = Exit.NO_STACK


class CatalogueInvalid(EnvlockError):
    """A row of the catalogue does not say where it comes from, or is not one."""

    id = "catalogue-invalid"
    exit_code = Exit.NO_STACK


class NeedsCompiling(EnvlockError):
    """A package has no wheel for the target; envlock never builds from source."""

    id = "needs-compiling"
    exit_code = Exit.NO_STACK


class BaseUnfit(EnvlockError):
    """The base image is of a kind, or for a platform, that cannot be built on."""

    id = "base-unfit"
    exit_code = Exit.NO_STACK


class FileConflict(EnvlockError):
    """Two wheels install different bytes at one path."""

    id = "file-conflict"
    exit_code = Exit.NO_STACK


# host: exit 5 ----------------------------------------------------------------------------------------------------------


class HostNotReady(EnvlockError):
    """The host lacks something that the command needs."""

    id = "host-not-ready"
    exit_code = Exit.HOST


class NoEngine(HostNotReady):
    """No Docker engine answers."""

    id = "no-engine"


class EngineApi(HostNotReady):
    """The engine and the SDK do not speak the same API version."""

    id = "engine-api"


class SdkTooOld(HostNotReady):
    """The installed Docker SDK cannot talk to any engine with the installed requests."""

    id = "sdk-too-old"


class EngineRefused(HostNotReady):
    """The engine answered a request with an error that has no name of its own here."""

    id = "engine-refused"


class NoGpuRuntime(HostNotReady):
    """The engine has no runtime that hands GPUs to a container."""

    id = "no-gpu-runtime"


class CdiUnresolved(HostNotReady):
    """The engine finds no CDI description of the GPUs that were asked for."""

    id = "cdi-unresolved"


class RequirementUnsatisfied(HostNotReady):
    """The image states a driver or CUDA requirement that the host does not meet."""

    id = "requirement-unsatisfied"


class SystemRefused(HostNotReady):
    """The operating system refused to read or write something, in a place that has no error of its own."""

    id = "system-refused"


class ToolMissing(HostNotReady):
    """A program that envlock calls (uv, mmdebstrap, apt) is not installed."""

    id = "tool-missing"


class DiskFull(HostNotReady):
    """There is not enough free space for what is about to be written."""

    id = "disk-full"


# files: exit 6 ---------------------------------------------------------------------------------------------------------


class FetchError(EnvlockError):
    """A file could not be had."""

    id = "fetch-failed"
    exit_code = Exit.FILE


class FileGone(FetchError):
    """No source has the locked file any more."""

    id = "file-gone"


class DownloadDamaged(FetchError):
    """Fewer or other bytes arrived than were sent, or a file is no longer what it was when it was kept; worth another try."""

    id = "download-damaged"


class FileChangedUpstream(FetchError):
    """A source serves other bytes under the locked name; another try cannot help."""

    id = "file-changed-upstream"


class Unreachable(FetchError):
    """A source does not answer."""

    id = "unreachable"


class CertificateRefused(Unreachable):
    """A source answers with a certificate that this machine does not trust."""

    id = "certificate-refused"


class AccessDenied(FetchError):
    """A source wants credentials that were not given or do not suffice."""

    id = "access-denied"


class RateLimited(FetchError):
    """A source was asked too often."""

    id = "rate-limited"


class BaseGone(FileGone):
    """The registry no longer has the base image, or a part of it."""

    id = "base-gone"


class RegistryAuth(AccessDenied):
    """The registry refuses the base image to this user, or has no such image: registries do not say which."""

    id = "registry-auth"


class RegistryRateLimited(RateLimited):
    """The registry was asked too often."""

    id = "registry-rate-limit"


# build: exit 7 ---------------------------------------------------------------------------------------------------------


class BuildFailed(EnvlockError):
    """A step of the build failed."""

    id = "build-failed"
    exit_code = Exit.BUILD


class HostileArchive(BuildFailed):
    """An archive holds what no honest one does: a path out of the root, a device, a bomb."""

    id = "hostile-archive"


class DamagedArchive(BuildFailed):
    """An archive is cut short, or its content is not what it says itself."""

    id = "damaged-archive"


# what was promised does not hold: exit 1 --------------------------------------------------------------------------------


class WrongPlatform(EnvlockError):
    """The image is for another processor than the engine's."""

    id = "wrong-platform"
    exit_code = Exit.DOES_NOT_HOLD


class ImageDiffers(EnvlockError):
    """The image came out with another digest than the one recorded."""

    id = "image-differs"
    exit_code = Exit.DOES_NOT_HOLD
