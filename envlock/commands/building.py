"""Commands that make an image of a lock: render, build."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from envlock.commands.common import Host, Json, LockPath, Quiet, SpecOrLock, StoreFolder, connect, open_store


def render(
    lock: LockPath,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="DIR", help="where Dockerfile and context go")] = None,
    check: Annotated[Path | None, typer.Option("--check", metavar="DOCKERFILE", help="say whether this Dockerfile is current")] = None,
    host: Host = None,
    quiet: Quiet = False,
    store: StoreFolder = None,
) -> None:
    """Write the pinned Dockerfile; with -o its whole context too, which plain `docker build --network none DIR` builds.

    \b
    Examples: envlock render lockfiles/cpu.lock.yaml -o context
              envlock render lockfiles/cpu.lock.yaml --check Dockerfile
    """
    from envlock import console, locking
    from envlock.bundle import open_bundle
    from envlock.context import require_current, write_context
    from envlock.dockerfile import render

    chosen = locking.find_lock(lock)
    folder = open_store(store)
    bundle = open_bundle(chosen.lock.shipped, folder)
    if check is not None:
        require_current(check, render(chosen.lock, bundle))
        print(f"{check} is current")
    elif output is None:
        sys.stdout.write(render(chosen.lock, bundle).decode())
    else:
        write_context(chosen, bundle, folder, output, lambda: connect(host, quiet), console.progress_for(quiet))
        print(f"DOCKER_BUILDKIT=1 docker build --network none -t {chosen.lock.name} {output}")


def build(
    spec_or_lock: SpecOrLock,
    tag: Annotated[list[str] | None, typer.Option("--tag", "-t", metavar="NAME:TAG", help="further tags")] = None,
    host: Host = None,
    json: Json = False,
    quiet: Quiet = False,
    store: StoreFolder = None,
) -> None:
    """Make the image and load it into the engine, as NAME:latest and NAME:<lock digest>.

    Example: envlock build envlock.yaml
    """
    from envlock import console, locking
    from envlock.build import build_image

    folder = open_store(store)
    progress = console.progress_for(quiet)
    engine = connect(host, quiet)
    chosen = locking.find_or_make_lock(spec_or_lock, lambda: engine, folder, progress)
    result = build_image(chosen, engine, folder, progress, extra_tags=tuple(tag or ()))
    if json:
        console.print_json(result.as_json())
    else:
        print(result.summary())
