"""The command that makes an artifact of an image, and tests one: pin."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envlock.commands.common import Host, Json, Quiet, StoreFolder, connect, open_store
from envlock.errors import Exit

if TYPE_CHECKING:
    from envlock.artifact.layout import Compression, Vendor
    from envlock.progress import Progress

What = Annotated[str, typer.Argument(metavar="IMAGE|LOCK|DIR", help="an image in the engine, or a lock or spec; with --check an artifact")]


def pin(
    what: What,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="DIR", help="where the artifact goes")] = None,
    vendor: Annotated[
        str, typer.Option("--vendor", metavar="none|wheels|all", help="the inputs to put in; all: rebuilds offline")
    ] = "wheels",
    compress: Annotated[str, typer.Option("--compress", metavar="none|zstd", help="how the image's archive is stored")] = "none",
    split: Annotated[str | None, typer.Option("--split", metavar="SIZE", help="cut the archive into parts of at most this, as 45G")] = None,
    spec: Annotated[Path | None, typer.Option("--spec", metavar="SPEC", help="the spec, where it does not lie beside the lock")] = None,
    report: Annotated[list[Path] | None, typer.Option("--report", metavar="PATH", help="a report of `verify`, file or folder")] = None,
    reference: Annotated[list[Path] | None, typer.Option("--reference", metavar="FILE", help="a reference of `verify`")] = None,
    check: Annotated[bool, typer.Option("--check", help="test an artifact, offline")] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="with --check: make the image again from the artifact's own files")] = False,
    load: Annotated[bool, typer.Option("--load", help="with --check: load the image and run its self-test")] = False,
    allow_partial: Annotated[bool, typer.Option("--allow-partial", help="with --load: checks that cannot run here are no fault")] = False,
    seal: Annotated[bool, typer.Option("--seal", help="write the checksums of an artifact anew, after editing it")] = False,
    push: Annotated[str | None, typer.Option("--push", metavar="REF", help="push the artifact's image to a registry")] = None,
    host: Host = None,
    json: Json = False,
    quiet: Quiet = False,
    store: StoreFolder = None,
) -> None:
    """Write the folder that goes with a paper: the image, its lock and inputs, and what rebuilds, checks and cites it.

    \b
    Examples: envlock pin cpu-classifier:latest -o artifact --vendor all --report report
              envlock pin --check artifact --rebuild --load
              envlock pin artifact --push registry.example.org/team/image
    """
    from envlock import console
    from envlock.errors import UsageError

    _refuse_idle_options(check, seal, rebuild or load or allow_partial, output is not None or push is not None)
    progress = console.progress_for(quiet)
    folder = Path(what)
    result: dict[str, Any] = {}
    if check:
        status = _check(folder, host, quiet, store, progress, result, rebuild=rebuild, load=load, allow_partial=allow_partial)
        if json:
            console.print_json(result)
        raise typer.Exit(status)
    if seal:
        from envlock.artifact import seal as seals
        from envlock.artifact.check import open_artifact

        open_artifact(folder)
        result["artifact_digest"] = seals.write(folder, {}, progress)
        console.print_json(result) if json else print(f"{folder}  sealed\nartifact digest {result['artifact_digest']}")
        return
    if output is None and push is None:
        hint = "name a folder: `envlock pin IMAGE -o artifact`; to test an artifact: `envlock pin --check artifact`"
        raise UsageError("where is the artifact to go?", hint=hint)
    text = []
    if output is not None:
        from envlock.artifact import Choices, subject_of
        from envlock.artifact import pin as write

        choices = Choices(_vendor(vendor), _compression(compress), _size(split), tuple(report or ()), tuple(reference or ()))
        folder, engine, files = output, connect(host, quiet), open_store(store)
        pinned = write(subject_of(what, spec, engine, files, progress), choices, output, engine, files, progress)
        result |= pinned.as_json()
        text.append(pinned.summary())
    if push is not None:
        from envlock.artifact.push import push as push_image

        pushed = push_image(folder, push, progress)
        result["pushed"] = pushed.as_json()
        text.append(f"pushed  {pushed.reference}")
    console.print_json(result) if json else print("\n".join(text))


def _refuse_idle_options(check: bool, seal: bool, tests: bool, makes: bool) -> None:
    """What would be ignored is a misunderstanding."""
    from envlock.errors import UsageError

    if tests and not check:
        raise UsageError(
            "--rebuild, --load and --allow-partial test an artifact", hint="add --check: `envlock pin --check artifact --load`"
        )
    if makes and (check or seal):
        raise UsageError("--check and --seal are for an artifact that is there", hint="--output and --push are a command of their own")
    if check and seal:
        raise UsageError("--seal writes what --check tests", hint="give them one after the other")


def _check(
    folder: Path,
    host: str | None,
    quiet: bool,
    store: Path | None,
    progress: Progress,
    result: dict[str, Any],
    *,
    rebuild: bool,
    load: bool,
    allow_partial: bool,
) -> Exit:
    """Test an artifact, and say what was found; `result` is filled for --json."""
    from envlock import console
    from envlock.artifact.check import check as check_artifact

    checked = check_artifact(folder, progress)
    result |= checked.as_json() | {"findings": [console.finding_data(finding) for finding in checked.findings]}
    console.show_findings(checked.findings)
    if not checked.holds:
        progress.say("the artifact does not hold")
        return Exit.DOES_NOT_HOLD
    progress.say(f"the artifact holds: {checked.files} files, artifact digest {checked.seal}")
    if rebuild:
        from envlock.artifact.rebuild import rebuild as rebuild_image

        rebuilt = rebuild_image(folder, connect(host, quiet), open_store(store), progress)
        result |= rebuilt.as_json()
        console.show_findings(rebuilt.findings)
        if rebuilt.findings:
            return Exit.DOES_NOT_HOLD
        progress.say(f"rebuilt: the same manifest digest {rebuilt.manifest_digest}")
    if load:
        from envlock.artifact.rebuild import load_and_verify
        from envlock.report_forms import to_text

        report, findings = load_and_verify(folder, connect(host, quiet), progress)
        result |= {"report": report.as_json()}
        console.show_findings(findings)
        progress.say(to_text(report))
        return Exit.DOES_NOT_HOLD if findings else report.exit_code(allow_partial=allow_partial)
    return Exit.OK


def _vendor(text: str) -> Vendor:
    known: dict[str, Vendor] = {"none": "none", "wheels": "wheels", "all": "all"}
    if text in known:
        return known[text]
    raise _choice("--vendor", text, "none, wheels and all")


def _compression(text: str) -> Compression:
    known: dict[str, Compression] = {"none": "none", "zstd": "zstd"}
    if text in known:
        return known[text]
    raise _choice("--compress", text, "none and zstd")


def _choice(option: str, text: str, known: str) -> Exception:
    from envlock.errors import UsageError

    return UsageError(f"{option} {text} is not known", hint=f"known are {known}")


def _size(text: str | None) -> int | None:
    """Bytes of a size as `45G` or `900M`, in decimal units as archives count them."""
    if text is None:
        return None
    number, unit = text[:-1], text[-1:].upper()
    if unit in ("K", "M", "G") and number.isdecimal() and int(number) > 0:
        return int(number) * {"K": 10**3, "M": 10**6, "G": 10**9}[unit]
    raise _choice("--split", text, "sizes as 45G or 900M")
