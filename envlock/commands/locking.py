"""Commands from a spec to a lock and its files: check, lock, fetch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from envlock.commands.common import Host, Json, LockPath, Quiet, SpecPath, StoreFolder, connect, open_store
from envlock.errors import Exit


def check(spec: SpecPath, json: Json = False) -> None:
    """Say which stack a spec asks for, where every value comes from, and what cannot work. Needs no network.

    Example: envlock check envlock.yaml
    """
    from envlock import console
    from envlock.locking import solve_file
    from envlock.stack import describe

    _, solution = solve_file(spec)
    if json:
        console.print_json(
            {
                "stack": solution.stack.model_dump(mode="json", exclude_none=True),
                "origins": dict(solution.origins),
                "findings": [console.finding_data(finding) for finding in solution.findings],
            }
        )
        return
    print(describe(solution))
    console.show_findings(solution.findings)


def lock(
    spec: SpecPath,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="LOCK", help="where the lock goes")] = None,
    upgrade: Annotated[bool, typer.Option("--upgrade", help="take the newest versions instead of keeping the lock's")] = False,
    check: Annotated[bool, typer.Option("--check", help="write nothing; say whether the lock still holds (exit 4 when not)")] = False,
    host: Host = None,
    json: Json = False,
    quiet: Quiet = False,
    store: StoreFolder = None,
) -> None:
    """Pin every byte that goes into the image, by sha256.

    The lock goes into a folder `lockfiles` beside the spec or beside its folder where there is one, else beside the spec.

    Example: envlock lock envlock.yaml
    """
    from envlock import console, locking

    progress = console.progress_for(quiet)
    if check:
        drift = locking.check_lock(spec, output or locking.lock_path_of(spec), open_store(store), progress)
        holds = not any(finding.severity == "error" for finding in drift)
        if json:
            console.print_json({"holds": holds, "findings": [console.finding_data(finding) for finding in drift]})
        else:
            console.show_findings(drift)
            print("the lock holds" if holds else "the lock does not hold")
        if not holds:
            raise typer.Exit(Exit.LOCK)
        return
    path = output or locking.lock_path_of(spec)
    made = locking.lock_spec(spec, path, lambda: connect(host, quiet), open_store(store), progress, upgrade=upgrade)
    console.show_findings(made.findings)
    if json:
        console.print_json({"lock": str(path), "lock_digest": made.lock.digest, "changed": made.changed, "changes": list(made.changes)})
    else:
        print(made.summary(path))


def fetch(lock: LockPath, host: Host = None, json: Json = False, quiet: Quiet = False, store: StoreFolder = None) -> None:
    """Bring every file of a lock into the store, so that a build needs no network.

    Example: envlock fetch lockfiles/cpu.lock.yaml
    """
    from envlock import console, locking
    from envlock.build import fetch_inputs

    folder = open_store(store)
    chosen = locking.find_lock(lock)
    missing = fetch_inputs(chosen.lock, lambda: connect(host, quiet), folder, console.progress_for(quiet))
    result = {"lock_digest": chosen.lock.digest, "fetched": missing}
    if json:
        console.print_json(result)
    else:
        print(f"the store has every file of {chosen.path.name} ({missing} fetched)")
