"""Commands that test an image and its host: verify, doctor."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from envlock.commands.common import Environment, GpuChoice, Host, Json, Quiet, ShmSize, User, connect, variables
from envlock.errors import EnvlockError, Exit, UsageError

if TYPE_CHECKING:
    from envlock.doctor import Needs
    from envlock.engine import Engine
    from envlock.report import Report


def verify(
    images: Annotated[list[str], typer.Argument(metavar="IMAGE", help="an image in the engine, ours or any other that has torch")],
    compare: Annotated[
        bool, typer.Option("--compare", help="run nothing: hold these reports of many hosts against each other, and name the odd one")
    ] = False,
    gpus: GpuChoice = "auto",
    level: Annotated[
        str | None, typer.Option("--level", metavar="LEVEL", help="hold it to off, seeded, deterministic or strict; default: the lock's")
    ] = None,
    group: Annotated[list[str] | None, typer.Option("--group", metavar="NAME", help="only these groups of checks")] = None,
    repeats: Annotated[
        int | None, typer.Option("--repeats", metavar="N", min=2, help="how often a computation is repeated; default 10")
    ] = None,
    nproc: Annotated[int | None, typer.Option("--nproc", metavar="N", min=1, help="run the collectives on N processes")] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="also measure what determinism costs, and how far results spread without it")
    ] = False,
    reference: Annotated[
        Path | None, typer.Option("--reference", metavar="FILE|DIR", help="hold the fingerprints against those recorded there")
    ] = None,
    record_reference: Annotated[
        Path | None, typer.Option("--record-reference", metavar="FILE", help="record the fingerprints there, beside those of other hosts")
    ] = None,
    report: Annotated[Path | None, typer.Option("--report", metavar="DIR", help="write the report there in every form")] = None,
    user: User = None,
    shm_size: ShmSize = None,
    env: Environment = None,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=1, help="for each container")] = 7200,
    allow_partial: Annotated[bool, typer.Option("--allow-partial", help="count as success when some checks could not run here")] = False,
    host: Host = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run the self-test in a container of the image, without network, and say whether it computes the same bits every time.

    Exit status: 0 all holds, 1 something does not, 5 the host is not ready, 8 not everything could run here.

    \b
    Examples: envlock verify cpu-classifier:latest --report report
              envlock verify cpu-classifier:latest --reference references
              envlock verify --compare host-a.json host-b.json host-c.json
    """
    if compare:
        _compare(images, json)
    if len(images) != 1:
        raise UsageError("verify takes one image", where=" ".join(images[1:]), hint="to hold reports against each other, add --compare")
    _require_level(level)

    from envlock import console
    from envlock import reference as references
    from envlock.report import to_json
    from envlock.report_forms import to_github, to_text, write_all
    from envlock.selftest_run import Options
    from envlock.verify import verify as verify_image
    from envlock.verify import with_reference

    known = references.read(reference) if reference is not None else None
    options = Options(
        gpus=tuple(gpus.split(",")),
        shm_size=shm_size,
        user=user,
        nproc=nproc,
        groups=tuple(group or ()),
        level=level,
        repeats=repeats,
        extra=("--measure",) if measure else (),
        timeout=timeout,
        environment=variables(env),
    )
    found = verify_image(connect(host, quiet), images[0], options, console.progress_for(quiet))
    if known is not None:
        found = with_reference(found, known)
    if report is not None:
        write_all(found, report)
    if json:
        sys.stdout.write(to_json(found))
    else:
        print(to_text(found, sys.stdout))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        print(to_github(found), file=sys.stderr)
    if record_reference is not None:
        print(_recorded(found, record_reference), file=sys.stderr)
    raise typer.Exit(found.exit_code(allow_partial=allow_partial))


def _recorded(found: Report, path: Path) -> str:
    """Record a report's fingerprints, and say so; those of an image that does not hold are no reference."""
    from envlock import reference

    made = reference.record(found)
    if found.verdict in ("fail", "host-not-ready") or not made.fingerprints:
        why = "what does not hold is no reference" if made.fingerprints else "no check computed a fingerprint"
        return f"nothing was recorded in {path}: {why}"
    return f"{path} has {len(reference.write(path, made).fingerprints)} fingerprints"


def _compare(reports: list[str], json: bool) -> NoReturn:
    """`verify --compare`: many hosts' reports side by side."""
    from envlock import comparison, console, report

    if len(reports) < 2:
        raise UsageError("one report cannot be compared", hint="name two or more: envlock verify --compare a.json b.json")
    found = comparison.compare([report.read(Path(name)) for name in reports])
    if json:
        console.print_json(found.as_json())
    else:
        sys.stdout.write(comparison.to_text(found))
    raise typer.Exit(found.exit)


def _require_level(level: str | None) -> None:
    from envlock.runtime.settings import LEVELS

    if level is not None and level not in LEVELS:
        raise UsageError(f"there is no level {level!r}", where="--level", hint=f"levels are {', '.join(LEVELS)}")


def doctor(
    subject: Annotated[
        str | None, typer.Argument(metavar="[LOCK|IMAGE]", help="say whether this host can run it: a lock, its spec, or an image")
    ] = None,
    host: Host = None,
    json: Json = False,
) -> None:
    """Say what this host has (driver, GPUs, engine), what is wrong with it, and whether it can run an image. Starts no container.

    Exit status: 0 nothing stands in the way, 5 something does.

    \b
    Examples: envlock doctor
              envlock doctor lockfiles/cuda.lock.yaml
    """
    from envlock import console
    from envlock import doctor as medicine
    from envlock.host import container_runtime, read_host
    from envlock.sides import names_file

    needs = _needs_of_file(Path(subject)) if subject is not None and names_file(subject) else None
    trouble: EnvlockError | None = None
    engine: Engine | None = None
    try:
        engine = connect(host, quiet=True)
    except EnvlockError as error:
        trouble = error
    if subject is not None and needs is None:
        if engine is None:
            assert trouble is not None
            raise trouble
        needs = _needs_of_image(engine, subject)
    found = read_host(container_runtime(engine.info, engine.endpoint) if engine is not None else None)
    findings = ((trouble.finding,) if trouble is not None else ()) + medicine.examine(found, needs)
    ready = all(finding.severity != "error" for finding in findings)
    if json:
        rows = [console.finding_data(finding) for finding in findings]
        console.print_json({"ready": ready, "host": medicine.as_json(found), "findings": rows})
    else:
        for label, text in medicine.describe(found):
            print(f"{label:<8} {text}")
        console.show_findings(findings)
        print(_conclusion(subject, ready, warned=any(finding.severity == "warning" for finding in findings)))
    raise typer.Exit(Exit.OK if ready else Exit.HOST)


def _conclusion(subject: str | None, ready: bool, warned: bool) -> str:
    if not ready:
        return f"this host cannot run {subject}" if subject else "something stands in the way"
    if warned:
        return f"this host can run {subject} only in part" if subject else "nothing stands in the way but what is warned of"
    return f"this host can run {subject}" if subject else "nothing stands in the way"


def _needs_of_file(path: Path) -> Needs:
    from envlock.doctor import needs_of_lock
    from envlock.locking import find_lock

    return needs_of_lock(find_lock(path).lock)


def _needs_of_image(engine: Engine, reference: str) -> Needs:
    from envlock.verify import find_image, needs_of, read_lock

    image = find_image(engine, reference)
    return needs_of(image, read_lock(engine, image).lock)
