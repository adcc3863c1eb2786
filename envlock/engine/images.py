"""What an engine knows about an image, in one form for both kinds of image store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from envlock.image import Settings, manifest_digest


@dataclass(frozen=True, slots=True)
class EngineImage:
    """One image in an engine.

    `id` is what the engine calls it: the config digest on a graph driver, the digest of a manifest or index on a containerd store.
    `digest` is the image digest (of the config) on either; None where a containerd store does not tell it (`Engine.digest_of` asks
    harder). `ours` is true where the engine holds the very config and manifest that envlock makes, layers uncompressed. `size` is in
    bytes as the engine counts, `created` in seconds since 1970 UTC, `platform` as `os/architecture[/variant]`.
    """

    id: str
    digest: str | None
    manifest_digest: str | None
    ours: bool
    diff_ids: tuple[str, ...]
    tags: tuple[str, ...]
    registry_digests: tuple[str, ...]
    labels: Mapping[str, str]
    environment: Mapping[str, str]
    user: str
    workdir: str
    command: tuple[str, ...]
    entrypoint: tuple[str, ...]
    platform: str
    created: int
    size: int


def read_image(told: Mapping[str, Any], history: Sequence[Mapping[str, Any]], *, config_is_id: bool) -> EngineImage:
    """The image from an engine's inspect and history answers. `config_is_id`: the engine names images by their config (graph drivers)."""
    config = told.get("Config") or {}
    settings = Settings(
        platform="/".join(filter(None, (told["Os"], told["Architecture"], told.get("Variant")))),
        created=_seconds(told.get("Created")),
        environment=_pairs(config.get("Env")),
        labels=config.get("Labels") or {},
        user=config.get("User") or "",
        workdir=config.get("WorkingDir") or "",
        command=tuple(config.get("Cmd") or ()),
        entrypoint=tuple(config.get("Entrypoint") or ()),
    )
    diff_ids = tuple((told.get("RootFS") or {}).get("Layers") or ())
    made = _remade(diff_ids, history, settings)
    name = told["Id"]
    ours = made is not None and name == made[0 if config_is_id else 1]
    registry = tuple(told.get("RepoDigests") or ())
    return EngineImage(
        id=name,
        digest=name if config_is_id else made[0] if ours and made else None,
        manifest_digest=made[1] if ours and made else None if config_is_id else name,
        ours=ours,
        diff_ids=diff_ids,
        tags=tuple(told.get("RepoTags") or ()),
        registry_digests=registry,
        labels=settings.labels,
        environment=settings.environment,
        user=settings.user,
        workdir=settings.workdir,
        command=settings.command,
        entrypoint=settings.entrypoint,
        platform=settings.platform,
        created=settings.created,
        size=int(told.get("Size") or 0),
    )


def _remade(diff_ids: tuple[str, ...], history: Sequence[Mapping[str, Any]], settings: Settings) -> tuple[str, str] | None:
    """Image and manifest digest that the image has if envlock made it: the engine says enough to make both again.

    A proof, not a guess: the caller compares one of the two with the digest by which the engine holds the image.
    """
    rows = []
    for diff_id, line in zip(diff_ids, reversed(history), strict=False):
        size = str(line.get("Comment") or "").removesuffix(" bytes")
        if not size.isdecimal():
            return None
        rows.append((diff_id, str(line.get("CreatedBy") or ""), int(size)))
    return manifest_digest(rows, settings) if len(rows) == len(diff_ids) == len(history) else None


def _pairs(lines: Sequence[str] | None) -> dict[str, str]:
    return dict(line.partition("=")[::2] for line in lines or ())


def _seconds(text: str | None) -> int:
    """Seconds since 1970 from RFC 3339; 0 where the engine has no time (Go's zero time, the year 1)."""
    return 0 if not text or text.startswith("0001-") else int(datetime.fromisoformat(text).timestamp())
