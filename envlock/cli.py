"""The command line: parses, calls, prints, and maps an error to an exit status; nothing else.

Nothing heavy is imported here at the top, so that `envlock --help` answers at once; each command imports what it calls.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import Annotated, NoReturn

import typer

from envlock import __version__
from envlock.commands import building, listing, locking, pinning, running, setup, verifying
from envlock.errors import EnvlockError, Exit, exit_code_of

STDOUT = 1
CLOSED_PIPE = 128 + 13
"""The exit status where nobody reads stdout on, as a shell has it for SIGPIPE; an engine that hangs up is told as an error instead."""

app = typer.Typer(
    name="envlock",
    help="CUDA/PyTorch images that rebuild bit for bit, and proof that they compute the same bits.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="print the version and the catalogue's digest")] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="show what runs: programs, requests, and where envlock itself fails; works behind a command too"),
    ] = False,
) -> None:
    """Holds the options that stand before a command."""
    if verbose:
        from envlock.tracing import show_what_runs

        show_what_runs()
    if version:
        from envlock.catalogue import load

        print(f"envlock {__version__}\ncatalogue {load().digest}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


_COMMANDS = (
    (setup.init, "init", "write a spec for this host, or from a project's files"),
    (locking.check, "check", "say which stack a spec asks for, and what cannot work"),
    (locking.lock, "lock", "pin every byte that goes into the image"),
    (locking.fetch, "fetch", "bring every file of a lock into the store"),
    (building.render, "render", "write the pinned Dockerfile, with its context"),
    (building.build, "build", "make the image and load it into the engine"),
    (building.reproduce, "reproduce", "make an image again from its lock, and compare"),
    (building.diff, "diff", "say what differs between two locks, specs or images"),
    (verifying.verify, "verify", "test that an image computes the same bits every time"),
    (running.run, "run", "run your own command in an image, once or repeatedly"),
    (pinning.pin, "pin", "write or test the folder that goes with a paper"),
    (verifying.doctor, "doctor", "say what this host has, and whether it can run an image"),
    (listing.stacks, "stacks", "list the builds of torch that envlock knows"),
    (listing.images, "images", "list the images that envlock built"),
    (listing.show_store, "store", "show, prune or check the store"),
    (setup.schema, "schema", "print the spec's JSON Schema, for editors"),
    (setup.explain, "explain", "say what an error means, and what to do"),
)
for _command, _name, _short in _COMMANDS:
    app.command(_name, short_help=_short)(_command)


def main() -> NoReturn:
    """Run the command line; every error becomes its text on stderr and its exit status, and none a traceback."""
    signal.signal(signal.SIGTERM, _interrupt)
    os.umask(0o022)
    arguments = verbose_first(sys.argv[1:])
    try:
        # typer turns an interrupt into the exit status 130.
        status = app(arguments, prog_name="envlock", standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = Exit.INTERRUPTED
    except (BrokenPipeError, SystemExit) as error:
        # typer turns a closed pipe into the exit status 1, which has another meaning here.
        if not isinstance(error.__context__ or error, BrokenPipeError):
            raise
        # Python flushes once more at its end, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
        status = CLOSED_PIPE
    except Exception as error:
        from envlock import console
        from envlock.failures import understood

        if arguments[:1] == ["--verbose"] and not isinstance(error, EnvlockError):
            traceback.print_exception(error)
        failure = understood(error)
        console.show_findings(failure.findings)
        sys.exit(exit_code_of(failure))
    if status == Exit.INTERRUPTED:
        print("\ninterrupted; what was finished is kept, run the command again to go on", file=sys.stderr)
    sys.exit(status if isinstance(status, int) else Exit.OK)


def verbose_first(arguments: list[str]) -> list[str]:
    """The arguments with --verbose in front, wherever it stood before a `--`: people write it behind the command."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    if "--verbose" not in arguments[:end]:
        return arguments
    return ["--verbose", *(word for place, word in enumerate(arguments) if word != "--verbose" or place >= end)]


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt
