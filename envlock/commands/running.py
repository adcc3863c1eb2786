"""The command that runs a user's own experiment in an image: run."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envlock.commands.common import Environment, GpuChoice, Host, Json, Quiet, ShmSize, User, connect, variables
from envlock.errors import UsageError

if TYPE_CHECKING:
    from envlock.engine import Output
    from envlock.experiment import Mount

RUNS = Path("envlock-runs")


def run(
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="an image in the engine")],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="what to run in it, behind two dashes")],
    mount: Annotated[
        list[str] | None,
        typer.Option("--mount", "-v", metavar="FOLDER:/PATH", help="a file or folder that the container sees, read-only; may be repeated"),
    ] = None,
    repeat: Annotated[
        int, typer.Option("--repeat", metavar="N", min=1, help="run it N times in fresh containers, and compare what they write")
    ] = 1,
    expect: Annotated[
        Path | None, typer.Option("--expect", metavar="RECORD", help="hold the outputs against the record.json of an earlier run")
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", metavar="FILE", help="a JSON file among the outputs: mean, spread and 95 % interval of its numbers"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="where outputs, logs and record.json go; default envlock-runs/N")
    ] = None,
    outputs: Annotated[
        str, typer.Option("--outputs", metavar="/PATH", help="the folder in the container whose files are the result ($ENVLOCK_OUTPUTS)")
    ] = "/outputs",
    gpus: GpuChoice = "auto",
    user: User = None,
    shm_size: ShmSize = None,
    workdir: Annotated[str | None, typer.Option("--workdir", "-w", metavar="/PATH", help="where it starts")] = None,
    env: Environment = None,
    network: Annotated[str, typer.Option("--network", metavar="NAME", help="the container's network")] = "none",
    timeout: Annotated[float | None, typer.Option("--timeout", metavar="SECONDS", min=1, help="stop a run that takes longer")] = None,
    host: Host = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run your own command in an image; what it writes into /outputs comes out, is hashed, compared and recorded.

    What the command prints goes to stderr and into a log; the verdict goes to stdout. Exit status: 0 done and, where it was compared,
    the same result; 1 another result or a failing command; 5 the host cannot run the image.

    \b
    Examples: envlock run cpu-classifier:latest --mount .:/code -- python /code/train.py
              envlock run cpu-classifier:latest --mount .:/code --repeat 3 --metrics metrics.json -- python /code/train.py
              envlock run cpu-classifier:latest --mount .:/code --expect record.json -- python /code/train.py
    """
    from envlock import console, run_record
    from envlock.experiment import Experiment, run_experiment

    experiment = Experiment(
        command=tuple(command),
        mounts=tuple(_mount(text) for text in mount or ()),
        outputs=_absolute(outputs, "--outputs"),
        repeat=repeat,
        gpus=tuple(gpus.split(",")),
        shm_size=shm_size,
        user=user,
        workdir=workdir,
        environment=variables(env),
        network=network,
        timeout=timeout,
        metrics=metrics,
    )
    expected = run_record.read(expect) if expect is not None else None
    folder = output or _next_folder(RUNS)
    record, figures = run_experiment(
        connect(host, quiet), image, experiment, folder, console.progress_for(quiet), _silent if quiet else _show, expected
    )
    if json:
        sys.stdout.write(run_record.to_json(record))
    else:
        sys.stdout.write(run_record.to_text(record, figures))
        print(f"  outputs, logs and record.json: {folder}")
    raise typer.Exit(record.exit)


def _show(piece: Output) -> None:
    sys.stderr.buffer.write(piece.data)
    sys.stderr.buffer.flush()


def _silent(piece: Output) -> None:
    """The log has it."""


def _mount(text: str) -> Mount:
    """`FOLDER:/PATH`. Raises `UsageError` for what is not that."""
    from envlock.experiment import Mount

    source, colon, target = text.rpartition(":")
    if not colon or not source:
        raise UsageError(f"{text!r} says not where in the container", where="--mount", hint="write it as --mount FOLDER:/path/in/container")
    return Mount(Path(source), _absolute(target, "--mount"))


def _absolute(path: str, option: str) -> str:
    if not path.startswith("/") or ".." in path.split("/") or not path.strip("/"):
        raise UsageError(f"{path!r} is no absolute path below the root", where=option, hint="write it as /code")
    return path


def _next_folder(parent: Path) -> Path:
    """The first number that no earlier run has."""
    return next(folder for number in itertools.count(1) if not (folder := parent / str(number)).exists())
