"""Commands that show what there is: stacks, images, the store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from envlock.commands.common import Host, Json, StoreFolder, connect, open_store
from envlock.errors import Exit


def stacks(
    gpu: Annotated[list[str] | None, typer.Option("--gpu", metavar="NAME", help="only builds with code for it; may be repeated")] = None,
    driver: Annotated[str | None, typer.Option("--driver", metavar="VERSION", help="only builds that this driver runs")] = None,
    python: Annotated[str | None, typer.Option("--python", metavar="VERSION", help="only builds with a wheel for it")] = None,
    torch: Annotated[str | None, typer.Option("--torch", metavar="VERSION", help="only this release, as 2.5.1 or 2.5")] = None,
    platform: Annotated[str, typer.Option("--platform", metavar="PLATFORM", help="linux/amd64 or linux/arm64")] = "linux/amd64",
    json: Json = False,
) -> None:
    """List the builds of torch that envlock knows, with what they bring and what they need. Needs no network.

    Example: envlock stacks --gpu h100 --driver 550.54.15
    """
    from dataclasses import asdict

    from envlock import console
    from envlock.catalogue import load
    from envlock.errors import NoStack
    from envlock.stack import stack_rows

    rows = stack_rows(load(), gpu or (), driver, python, platform, torch)
    if not rows:
        raise NoStack(
            "no build of torch in the catalogue serves all of this", hint="ask for less; `envlock stacks` lists all that are known"
        )
    if json:
        console.print_json([asdict(row) for row in rows])
        return
    cells = [(r.torch, r.cuda, " ".join(r.python), r.driver_floor, r.cudnn, r.nccl, r.triton, r.index, r.note) for r in rows]
    print(console.table(cells, ("TORCH", "CUDA", "PYTHON", "DRIVER FROM", "CUDNN", "NCCL", "TRITON", "INDEX", "NOTE")))


def images(host: Host = None, json: Json = False) -> None:
    """List the images in the engine that envlock built, with their digests.

    Example: envlock images
    """
    from envlock import console
    from envlock.config import LOCK_LABEL
    from envlock.progress import human_bytes

    found = [image for image in connect(host, quiet=True).images() if LOCK_LABEL in image.labels]
    if json:
        console.print_json(
            [
                {
                    "tags": list(image.tags),
                    "image_digest": image.digest,
                    "manifest_digest": image.manifest_digest,
                    "lock_digest": image.labels[LOCK_LABEL],
                    "size": image.size,
                }
                for image in found
            ]
        )
        return
    rows = [
        (", ".join(image.tags) or "(no tag)", (image.digest or "?")[:19], image.labels[LOCK_LABEL][:19], human_bytes(image.size))
        for image in found
    ]
    print(console.table(rows, ("IMAGE", "IMAGE DIGEST", "LOCK DIGEST", "SIZE")))


def show_store(
    locks: Annotated[list[Path] | None, typer.Argument(metavar="[LOCK|FOLDER]...", help="locks whose files are needed")] = None,
    prune: Annotated[bool, typer.Option("--prune", help="remove what none of these locks needs")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="hash every file again; exit 1 when one is damaged")] = False,
    json: Json = False,
    store: StoreFolder = None,
) -> None:
    """Show what takes space in the store, and what of it these locks need; prune the rest, or check every file.

    \b
    Examples: envlock store lockfiles
              envlock store --prune lockfiles ../paper/envlock.lock.yaml
    """
    from envlock import console, inventory

    folder = open_store(store)
    needed = inventory.needed_by(inventory.find_locks(locks or ()))
    if prune:
        freed = inventory.prune(folder, needed)
        console.print_json({"freed": freed}) if json else print(inventory.pruned_text(folder, freed))
    elif verify:
        damaged = folder.verify()
        console.show_findings(inventory.damage_findings(damaged))
        console.print_json({"damaged": [damage.sha256 for damage in damaged]}) if json else print(inventory.verified_text(folder, damaged))
        raise typer.Exit(Exit.DOES_NOT_HOLD if damaged else Exit.OK)
    else:
        found = inventory.shares(folder, needed)
        console.print_json(inventory.as_json(folder, found)) if json else print(inventory.as_text(folder, found))
