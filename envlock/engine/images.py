"""What an engine knows about an image, in one form for both kinds of image store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from envlock.errors import EngineRefused
from envlock.image import Image, Settings, remade


@dataclass(frozen=True, slots=True)
class EngineImage:
    """One image in an engine.

    `id` is what the engine calls it: the config digest on a graph driver, the digest of a manifest or index on a containerd store.
    `digest` is the image digest (of the config) on either; None where a containerd store does not tell it (`Engine.digest_of` asks
    harder). `made` is the image as envlock made it, layers uncompressed, where the digests prove that it did. `size` is in bytes as the
    engine counts, `created` in seconds since 1970 UTC, `platform` as `os/architecture[/variant]`.
    """

    id: str
    digest: str | None
    manifest_digest: str | None
    made: Image | None
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


def read_image(told: Mapping[str, Any], *, named_by_config: bool) -> EngineImage:
    """The image from an engine's inspect answer; graph drivers name images by their config, containerd stores by their manifest.

    Raises `EngineRefused` for an answer that is not of the Engine API's form.
    """
    try:
        return _read(told, named_by_config=named_by_config)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
        hint = "remove the image, or look at it with `docker image inspect`"
        raise EngineRefused("what the engine says of an image cannot be read", where=str(told.get("Id"))[:80], hint=hint) from None


def _read(told: Mapping[str, Any], *, named_by_config: bool) -> EngineImage:
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
    identity = told["Id"]
    diff_ids = tuple((told.get("RootFS") or {}).get("Layers") or ())
    image = remade(diff_ids, settings)
    if image is not None and identity != (image.digest if named_by_config else image.manifest_digest):
        image = None
    return EngineImage(
        id=identity,
        digest=image.digest if image else identity if named_by_config else None,
        manifest_digest=image.manifest_digest if image else None if named_by_config else identity,
        made=image,
        diff_ids=diff_ids,
        tags=tuple(told.get("RepoTags") or ()),
        registry_digests=tuple(told.get("RepoDigests") or ()),
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


def _pairs(lines: Sequence[str] | None) -> dict[str, str]:
    return dict(line.partition("=")[::2] for line in lines or ())


def _seconds(text: str | None) -> int:
    """Seconds since 1970 from RFC 3339; 0 where the engine has no time (Go's zero time, the year 1)."""
    return 0 if not text or text.startswith("0001-") else int(datetime.fromisoformat(text).timestamp())
