"""Commands that test an image and its host: verify, doctor."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from envlock.commands.common import Host, Json, Quiet, connect


def verify(
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="an image in the engine, ours or any other that has torch")],
    gpus: Annotated[
        str, typer.Option("--gpus", metavar="all|none|DEVICES", help="which GPUs to test; auto: what image and host have")
    ] = "auto",
    group: Annotated[list[str] | None, typer.Option("--group", metavar="NAME", help="only these groups of checks")] = None,
    nproc: Annotated[int | None, typer.Option("--nproc", metavar="N", help="run the collectives on N processes")] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="UID[:GID]", help="run as this user instead of the image's")] = None,
    shm_size: Annotated[str | None, typer.Option("--shm-size", metavar="SIZE", help="size of /dev/shm, as 8g")] = None,
    report: Annotated[Path | None, typer.Option("--report", metavar="DIR", help="write the report there in every form")] = None,
    allow_partial: Annotated[bool, typer.Option("--allow-partial", help="count as success when some checks could not run here")] = False,
    host: Host = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run the self-test in a container of the image, without network, and say whether it computes the same bits every time.

    Exit status: 0 all holds, 1 something does not, 5 the host is not ready, 8 not everything could run here.

    Example: envlock verify cpu-classifier:latest --report report
    """
    from envlock import console
    from envlock.report import to_json
    from envlock.report_forms import to_github, to_text, write_all
    from envlock.selftest_run import Options
    from envlock.verify import verify as verify_image

    options = Options(gpus=tuple(gpus.split(",")), shm_size=shm_size, user=user, nproc=nproc, groups=tuple(group or ()))
    found = verify_image(connect(host, quiet), image, options, console.progress_for(quiet))
    if report is not None:
        write_all(found, report)
    if json:
        sys.stdout.write(to_json(found))
    else:
        print(to_text(found, sys.stdout))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        print(to_github(found), file=sys.stderr)
    status = found.exit_code(allow_partial=allow_partial)
    raise typer.Exit(status)
