"""Commands with which a project begins: a spec, its schema for editors, and what an error means."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from envlock.commands.common import Json


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
    python: Annotated[str | None, typer.Option("--python", metavar="VERSION", help="Python as 3.11, whatever a source says")] = None,
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

    given = making.Given(name or making.name_of(output.absolute().parent.name), torch, cuda, python)
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


def explain(id: Annotated[str, typer.Argument(metavar="ID", help="what stands in brackets behind a message")], json: Json = False) -> None:
    """Say what an error or a finding means, and what to do.

    Example: envlock explain gpu-arch
    """
    from dataclasses import asdict

    from envlock import console
    from envlock.explanations import explain as look_up

    found = look_up(id)
    console.print_json(asdict(found)) if json else print(f"{found.id} ({found.topic})\n  cause:  {found.cause}\n  remedy: {found.remedy}")
