"""The command line: parses, calls, prints, and maps an error to an exit status; nothing else.

Nothing heavy is imported here at the top, so that `envlock --help` answers at once; each command imports what it calls.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from envlock import __version__
from envlock.errors import EnvlockError, Exit, exit_code_of

if TYPE_CHECKING:
    from envlock.engine import Engine
    from envlock.store import Store

app = typer.Typer(
    name="envlock",
    help="CUDA/PyTorch images that rebuild bit for bit, and proof that they compute the same bits.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

SpecPath = Annotated[Path, typer.Argument(metavar="SPEC", help="the spec, a YAML file")]
LockPath = Annotated[Path, typer.Argument(metavar="LOCK", help="the lock, or the spec that it was made from")]
SpecOrLock = Annotated[Path, typer.Argument(metavar="SPEC|LOCK", help="a spec (locked first where it has no lock) or a lock")]
Json = Annotated[bool, typer.Option("--json", help="print the result as JSON on stdout")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no narration on stderr")]
Host = Annotated[str | None, typer.Option("--host", "-H", metavar="URL", help="the engine to use; beats DOCKER_HOST and the context")]
StoreFolder = Annotated[Path | None, typer.Option("--store", metavar="DIR", help="the store; default $ENVLOCK_STORE or the user's cache")]


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, typer.Option("--version", help="print the version and the catalogue's digest")] = False) -> None:
    """Holds the options that stand before a command."""
    if version:
        from envlock.catalogue import load

        print(f"envlock {__version__}\ncatalogue {load().digest}")
        raise typer.Exit


@app.command()
def init(
    source: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", metavar="FILE", help="requirements.txt, environment.yml, cog.yaml, Dockerfile or pyproject.toml; may be repeated"
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="SPEC", help="where the spec goes")] = Path("envlock.yaml"),
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="name of the image; default: that of the folder")] = None,
    torch: Annotated[str | None, typer.Option("--torch", metavar="VERSION", help="release of torch, whatever a source says")] = None,
    cuda: Annotated[str | None, typer.Option("--cuda", metavar="VERSION", help="CUDA as 12.4, or cpu, whatever a source says")] = None,
    force: Annotated[bool, typer.Option("--force", help="write over a spec that is there")] = False,
    json: Json = False,
) -> None:
    """Write a spec: for this host's GPUs and driver, or from the files that a project has already. Asks nothing, needs no network.

    The exit status is that of `envlock check` on what was written.

    \b
    Examples: envlock init
              envlock init --from Dockerfile --from environment.yml
    """
    from envlock import console
    from envlock import init as making

    given = making.Given(name or making.name_of(output.absolute().parent.name), torch, cuda)
    if source:
        draft = making.draft_from(source, given)
    else:
        from envlock.host import read_host

        host = read_host()
        draft = making.draft_for_host(host.nvidia, host.platform, given)
    draft = making.write_spec(draft, output, over=force)
    console.print_json(making.as_json(draft, str(output))) if json else print(making.summary(draft, str(output)))
    console.show_findings(draft.findings)
    if draft.problems is not None:
        raise draft.problems


@app.command()
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


@app.command()
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
        if json:
            console.print_json({"holds": not drift, "findings": [console.finding_data(finding) for finding in drift]})
        else:
            console.show_findings(drift)
            print("the lock holds" if not drift else "the lock does not hold")
        if drift:
            raise typer.Exit(Exit.LOCK)
        return
    path = output or locking.lock_path_of(spec)
    made = locking.lock_spec(spec, path, lambda: connect(host, quiet), open_store(store), progress, upgrade=upgrade)
    console.show_findings(made.findings)
    if json:
        console.print_json({"lock": str(path), "lock_digest": made.lock.digest, "changed": made.changed, "changes": list(made.changes)})
    else:
        print(made.summary(path))


@app.command()
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


@app.command()
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


@app.command()
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


@app.command()
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


@app.command()
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


@app.command()
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


@app.command()
def schema(
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="write it there instead of to stdout")] = None,
) -> None:
    """Print the JSON Schema (draft-07) of the spec, with which editors complete and underline.

    Example: envlock schema -o envlock.schema.json
    """
    from envlock.schema import schema_text
    from envlock.store import write_atomically

    if output is None:
        sys.stdout.write(schema_text())
    else:
        write_atomically(output, schema_text().encode())
        print(f"{output} written")


@app.command("store")
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


def open_store(folder: Path | None) -> Store:
    """The store that the user named, or the default one."""
    from envlock.store import Store

    return Store(folder) if folder is not None else Store.default()


def connect(host: str | None, quiet: bool) -> Engine:
    """The engine, and a word on stderr about which one it is."""
    from envlock.engine import connect as connect_engine

    engine = connect_engine(host)
    if not quiet:
        print(f"engine: {engine.endpoint.url} ({engine.endpoint.origin})", file=sys.stderr)
    return engine


def main() -> NoReturn:
    """Run the command line; every deliberate error becomes its text on stderr and its exit status."""
    signal.signal(signal.SIGTERM, _interrupt)
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.umask(0o022)
    try:
        status = app(standalone_mode=False)
    except EnvlockError as error:
        from envlock import console

        console.show_findings(error.findings)
        sys.exit(exit_code_of(error))
    except KeyboardInterrupt:
        print("\ninterrupted; what was finished is kept, run the command again to go on", file=sys.stderr)
        sys.exit(Exit.INTERRUPTED)
    sys.exit(status if isinstance(status, int) else Exit.OK)


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt
