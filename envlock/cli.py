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
from envlock.commands import building, listing, locking, setup, verifying
from envlock.errors import EnvlockError, Exit, exit_code_of

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


app.command()(setup.init)
app.command()(locking.check)
app.command()(locking.lock)
app.command()(locking.fetch)
app.command()(building.render)
app.command()(building.build)
app.command()(verifying.verify)
app.command()(listing.stacks)
app.command()(listing.images)
app.command("store")(listing.show_store)
app.command()(setup.schema)
app.command()(setup.explain)


def main() -> NoReturn:
    """Run the command line; every error becomes its text on stderr and its exit status, and none a traceback."""
    signal.signal(signal.SIGTERM, _interrupt)
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.umask(0o022)
    arguments = verbose_first(sys.argv[1:])
    try:
        # typer turns an interrupt into the exit status 130.
        status = app(arguments, standalone_mode=False)
    except KeyboardInterrupt:
        status = Exit.INTERRUPTED
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
