"""What commands share: options of the same name and meaning, the store, the engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from envlock.engine import Engine
    from envlock.store import Store

SpecPath = Annotated[Path, typer.Argument(metavar="SPEC", help="the spec, a YAML file")]
LockPath = Annotated[Path, typer.Argument(metavar="LOCK", help="the lock, or the spec that it was made from")]
SpecOrLock = Annotated[Path, typer.Argument(metavar="SPEC|LOCK", help="a spec (locked first where it has no lock) or a lock")]
Json = Annotated[bool, typer.Option("--json", help="print the result as JSON on stdout")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no narration on stderr")]
Host = Annotated[str | None, typer.Option("--host", "-H", metavar="URL", help="the engine to use; beats DOCKER_HOST and the context")]
StoreFolder = Annotated[Path | None, typer.Option("--store", metavar="DIR", help="the store; default $ENVLOCK_STORE or the user's cache")]
GpuChoice = Annotated[
    str,
    typer.Option("--gpus", metavar="auto|all|none|DEVICES", help="auto: where both image and host have CUDA; devices as 0,1 or UUIDs"),
]
User = Annotated[str | None, typer.Option("--user", metavar="UID[:GID]", help="run as this user instead of the image's")]
ShmSize = Annotated[str | None, typer.Option("--shm-size", metavar="SIZE", help="size of /dev/shm, as 8g")]
Environment = Annotated[list[str] | None, typer.Option("--env", "-e", metavar="NAME=VALUE", help="set a variable; may be repeated")]


def open_store(folder: Path | None) -> Store:
    """The store that the user named, or the default one."""
    from envlock.store import Store

    return Store(folder) if folder is not None else Store.default()


def connect(host: str | None, quiet: bool) -> Engine:
    """The engine, and a word on stderr about which one it is."""
    from envlock.engine import connect as connect_engine
    from envlock.secrecy import redact_text

    engine = connect_engine(host)
    if not quiet:
        print(f"engine: {redact_text(engine.endpoint.url)} ({engine.endpoint.origin})", file=sys.stderr)
    return engine


def variables(given: list[str] | None) -> dict[str, str]:
    """Variables given as NAME=VALUE. Raises `UsageError` for one that is not."""
    from envlock.errors import UsageError

    found = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"{text!r} is not NAME=VALUE", where="--env", hint="write it as --env SEED=1")
        found[name] = value
    return found
