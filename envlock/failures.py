"""Any exception that reaches the command line, as an error of ours: wrong usage, the system's refusal, or our own fault."""

from __future__ import annotations

import errno
import traceback
from pathlib import Path

from typer import BadParameter

from envlock.errors import DiskFull, EnvlockError, InternalFault, SystemRefused, UsageError

_ParserError = BadParameter.__mro__[2]
"""The base of all that typer's parser raises, which typer itself does not export."""


def understood(error: Exception) -> EnvlockError:
    """The error itself where it is ours, else what it means to a user."""
    if isinstance(error, EnvlockError):
        return error
    if isinstance(error, _ParserError):
        return _usage(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull("the disk is full", where=str(error.filename or ""), hint="free some space, and run the command again")
    if isinstance(error, OSError):
        where = str(error.filename or "")
        what = f"the system refused: {error.strerror or type(error).__name__}"
        return SystemRefused(what, where=where, hint="correct the path or the permissions; --verbose shows where it happened")
    what = f"envlock is at fault: {type(error).__name__}"
    hint = "run the command again with --verbose, and report what it prints"
    return InternalFault(what, where=_place(error), why=str(error)[:400], hint=hint)


def _place(error: Exception) -> str:
    """The last line of envlock's own that the error came through."""
    package = Path(__file__).parent
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if package in Path(frame.filename).parents]
    return f"{Path(own[-1].filename).relative_to(package.parent)}:{own[-1].lineno}, in {own[-1].name}" if own else ""


def _usage(error: Exception) -> UsageError:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "envlock"
    message = getattr(error, "format_message", lambda: str(error))().strip()
    hint = f"see `{command} --help`"
    if command.endswith(" run") and type(error).__name__ == "NoSuchOption":
        hint = "put two dashes before your own command: envlock run IMAGE -- COMMAND --its-options"
    return UsageError(message[:1].lower() + message[1:].rstrip("."), hint=hint)
