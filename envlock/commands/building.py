"""Commands that make an image of a lock, make it again, and say what differs: render, build, reproduce, diff."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envlock.commands.common import Host, Json, LockPath, Quiet, SpecOrLock, StoreFolder, connect, open_store
from envlock.errors import UsageError

if TYPE_CHECKING:
    from envlock.docker_build import DockerBuilt
    from envlock.reproduce import Route


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
    via: Annotated[
        str, typer.Option("--via", metavar="assemble|dockerfile", help="dockerfile: Docker itself builds the rendered Dockerfile")
    ] = "assemble",
    tag: Annotated[list[str] | None, typer.Option("--tag", "-t", metavar="NAME:TAG", help="further tags")] = None,
    rootfs: Annotated[bool, typer.Option("--rootfs", help="also work out the rootfs digest, and keep it in the lock file")] = False,
    log: Annotated[
        Path | None, typer.Option("--log", metavar="FILE", help="where all that a Dockerfile's steps print goes; default: in the store")
    ] = None,
    host: Host = None,
    json: Json = False,
    quiet: Quiet = False,
    store: StoreFolder = None,
) -> None:
    """Make the image and load it into the engine, as NAME:latest and NAME:<lock digest>.

    Docker builds the same file tree from the Dockerfile, as NAME:<lock digest>-dockerfile; `envlock reproduce --via both` proves it.

    \b
    Examples: envlock build envlock.yaml
              envlock build lockfiles/cpu.lock.yaml --via dockerfile
    """
    from envlock import console, locking
    from envlock.build import BuildResult, build_image
    from envlock.docker_build import build_with_docker, docker_tag
    from envlock.reproduce import keep_rootfs
    from envlock.treediff import read_tree

    route = _route(via, ("assemble", "dockerfile"))
    folder = open_store(store)
    progress = console.progress_for(quiet)
    engine = connect(host, quiet)
    chosen = locking.find_or_make_lock(spec_or_lock, lambda: engine, folder, progress)
    result: BuildResult | DockerBuilt
    if route == "dockerfile":
        tags = (docker_tag(chosen.lock), *(tag or ()))
        log = log or folder.root / "logs" / f"{tags[0].replace(':', '-')}.log"
        result = build_with_docker(chosen, engine, folder, progress, tags, log)
    else:
        result = build_image(chosen, engine, folder, progress, extra_tags=tuple(tag or ()))
    digest = None
    if rootfs:
        digest = read_tree(engine, result.tags[0], result.tags[0], progress).rootfs.digest
        keep_rootfs(chosen, result.image.digest if isinstance(result, BuildResult) else None, digest)
    if json:
        console.print_json(result.as_json() | ({"rootfs_digest": digest} if digest else {}))
    else:
        print(result.summary())
        if digest:
            print(f"rootfs digest {digest}")


def _route(via: str, known: tuple[str, ...]) -> str:
    if via not in known:
        raise UsageError(f"there is no way {via!r} to build", where="--via", hint=f"ways are {', '.join(known)}")
    return via


def reproduce(
    lock: LockPath,
    via: Annotated[
        str, typer.Option("--via", metavar="assemble|dockerfile|both", help="how to make it again; both: and compare the two, file by file")
    ] = "assemble",
    against: Annotated[str | None, typer.Option("--against", metavar="IMAGE", help="compare it with this image of the engine too")] = None,
    store_files: Annotated[
        bool, typer.Option("--store-files", help="take the locked files from the store, hashed again, instead of fetching them again")
    ] = False,
    host: Host = None,
    json: Json = False,
    quiet: Quiet = False,
    store: StoreFolder = None,
) -> None:
    """Make the image again from an empty store, and compare it with what the lock file recorded. What differs is named by file.

    Exit status: 0 the same, 1 it differs, 8 there was nothing to compare it with.

    \b
    Examples: envlock reproduce lockfiles/cpu.lock.yaml
              envlock reproduce lockfiles/cpu.lock.yaml --via both --store-files
              envlock reproduce lockfiles/cpu.lock.yaml --against cpu-classifier:latest
    """
    from envlock import console, locking
    from envlock import reproduce as reproducing

    way = _route(via, ("assemble", "dockerfile", "both"))
    routes: tuple[Route, ...] = ("assemble", "dockerfile") if way == "both" else ("dockerfile",) if way == "dockerfile" else ("assemble",)
    chosen = locking.find_lock(lock)
    source: reproducing.Source = "store" if store_files else "upstream"
    engine, progress = connect(host, quiet), console.progress_for(quiet)
    found = reproducing.reproduce(chosen, routes, against, source, engine, open_store(store), progress)
    if json:
        console.print_json(found.as_json())
    else:
        print(found.as_text())
    assembled = next((item for item in found.rebuilt if item.image_digest is not None), None)
    if found.outcome == "reproduced" and assembled is not None:
        reproducing.keep_rootfs(chosen, assembled.image_digest, assembled.rootfs_digest)
    if found.outcome == "inconclusive":
        print("nothing to compare it with: build it first, or add --via both or --against IMAGE", file=sys.stderr)
    raise typer.Exit(found.exit)


def diff(
    one: Annotated[str, typer.Argument(metavar="A", help="a lock, a spec, or an image in the engine")],
    other: Annotated[str, typer.Argument(metavar="B", help="what it is compared with: the same")],
    files: Annotated[bool, typer.Option("--files", help="compare the files of two images too; a lock stands for its image")] = False,
    host: Host = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what differs between two environments: stack, base, determinism, variables and packages first, files after.

    Exit status: 0 nothing differs, 1 something does.

    \b
    Examples: envlock diff old.lock.yaml new.lock.yaml
              envlock diff envlock.yaml lockfiles/envlock.lock.yaml
              envlock diff cpu-classifier:latest somebody/else:1 --files
    """
    from envlock import console
    from envlock import diff as differing
    from envlock.errors import Exit
    from envlock.sides import Sides

    sides = Sides(lambda: connect(host, quiet))
    first, second = sides.pair(one, other)
    changes, silent = differing.diff(first, second)
    trees = sides.compare_files(first, second, console.progress_for(quiet)) if files else None
    found = differing.Diff(one, other, changes, silent, trees)
    if json:
        console.print_json(found.as_json())
    else:
        print(found.as_text())
    raise typer.Exit(Exit.OK if found.same else Exit.DOES_NOT_HOLD)
