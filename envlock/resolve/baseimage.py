"""Base images: locked by every digest, fetched once into the store, and looked after when their tag moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from envlock.errors import BaseGone, Exit, FetchError, FileGone, Finding, Problems
from envlock.fetch import Wanted, fetch_all
from envlock.layers.blobs import os_release_of
from envlock.lock import Blob, ImageBase
from envlock.progress import Progress
from envlock.resolve.imagearchive import unpack_archive
from envlock.resolve.manifests import (
    Descriptor,
    Manifest,
    choose,
    environment_of,
    image_base,
    is_index,
    os_release_facts,
    read_json,
    read_manifest,
    what_changed,
)
from envlock.resolve.reference import parse_reference
from envlock.resolve.registry import Repository
from envlock.store import Store
from envlock.transport import Transport

_NOT_STORED = "the store does not have it and the registry no longer serves it: choose another base and lock again"


def resolve_image(reference: str, platform: str, store: Store, progress: Progress, transport: Transport | None = None) -> ImageBase:
    """Lock a base in a registry: what its reference means today, with all its layers in the store.

    Raises `BaseGone`, `RegistryAuth`, `RegistryRateLimited`, `Unreachable` and the other fetch errors, `BaseUnfit`, `DamagedArchive`.
    """
    repository = Repository(parse_reference(reference), progress, transport)
    index_digest, manifest = _find(repository, platform)
    config = _config(repository, manifest, store, progress)
    draft = image_base(config, manifest, kind="image", reference=reference, index_digest=index_digest, platform=platform, facts={})
    _fetch_layers(repository, draft, store, progress)
    return _with_facts(draft, store, progress)


def resolve_archive(path: Path, reference: str, platform: str, store: Store, progress: Progress) -> ImageBase:
    """Lock a base in a `docker save` or OCI archive, with all its layers in the store; `reference` is how the spec names the file.

    Raises `FileUnreadable`, `BaseUnfit`, `DamagedArchive`.
    """
    with progress.track(f"read {reference}", None) as advance:
        index_digest, manifest = unpack_archive(path, reference, platform, store, advance)
    config = store.path(_hex(manifest.config.digest)).read_bytes()
    draft = image_base(config, manifest, kind="archive", reference=reference, index_digest=index_digest, platform=platform, facts={})
    return _with_facts(draft, store, progress)


def fetch_base(base: ImageBase, store: Store, progress: Progress, transport: Transport | None = None) -> None:
    """Bring the layers and the config of a locked base into the store. Asks nobody when they are there already.

    Raises `Problems` (exit 6) naming what could not be had.
    """
    missing = [blob for blob in _blobs(base) if not store.has(_hex(blob.digest), blob.size)]
    if not missing:
        return
    if base.kind == "archive":
        hint = f"lock the spec again, beside {base.reference}: that reads the archive into the store"
        found = [Finding(FileGone.id, "error", f"the store lacks a part of {base.reference}", blob.digest, hint=hint) for blob in missing]
        raise Problems(found, Exit.FILE)
    _fetch_blobs(Repository(parse_reference(base.reference), progress, transport), missing, base.reference, store, progress)


def moved_base(base: ImageBase, platform: str, store: Store, progress: Progress, transport: Transport | None = None) -> Finding | None:
    """What `lock --check` says where the reference means another image than when it was locked; None where it does not.

    Raises the errors of `resolve_image` where the registry does not say.
    """
    if base.kind == "archive":
        return None
    repository = Repository(parse_reference(base.reference), progress, transport)
    index_digest, manifest = _find(repository, platform)
    locked, now = base.index_digest or base.manifest_digest, index_digest or manifest.digest
    if now == locked:
        return None
    why = f"locked {locked}, now {now}"
    if manifest.digest == base.manifest_digest:
        why += f"; the image for {platform} is the same"
    else:
        environment = environment_of(read_json(_config(repository, manifest, store, progress), f"the config of {base.reference}"))
        changed = what_changed(base.environment, environment)
        why += "; " + ("changed: " + ", ".join(changed) if changed else "its CUDA, cuDNN and requirements are the same")
    hint = "the lock still builds what it says; `envlock lock --upgrade` takes the new image"
    return Finding("base-moved", "error", f"the tag {base.reference} means another image now", "base", why, hint)


def _find(repository: Repository, platform: str) -> tuple[str | None, Manifest]:
    """The digest of the index, where there is one, and the platform's manifest."""
    name = str(repository.reference)
    document = repository.manifest(repository.reference.wanted)
    index = read_json(document.raw, f"the manifest of {name}")
    if not is_index(index):
        return None, read_manifest(document.raw, document.digest, name)
    chosen = repository.manifest(choose(index, platform, name))
    return document.digest, read_manifest(chosen.raw, chosen.digest, name)


def _config(repository: Repository, manifest: Manifest, store: Store, progress: Progress) -> bytes:
    name = str(repository.reference)
    if not store.has(_hex(manifest.config.digest)):
        _fetch_blobs(repository, [manifest.config], name, store, progress)
    return store.path(_hex(manifest.config.digest)).read_bytes()


def _fetch_layers(repository: Repository, base: ImageBase, store: Store, progress: Progress) -> None:
    _fetch_blobs(repository, [blob for blob in base.layers if not store.has(_hex(blob.digest), blob.size)], base.reference, store, progress)


def _fetch_blobs(repository: Repository, blobs: Sequence[Blob | Descriptor], name: str, store: Store, progress: Progress) -> None:
    def at(digest: str) -> Callable[[], list[str]]:
        return lambda: [repository.blob_url(digest)]

    wanted = [
        Wanted(f"{name} ({blob.digest[7:19]})", _hex(blob.digest), blob.size, at(blob.digest), _NOT_STORED)
        for blob in {blob.digest: blob for blob in blobs}.values()
    ]
    if not wanted:
        return
    try:
        fetch_all(wanted, store, progress, transport=repository)
    except Problems as problems:
        raise Problems([_explained(finding) for finding in problems.findings], Exit.FILE) from None
    except FetchError as error:
        raise repository.explained(error) from None


def _explained(finding: Finding) -> Finding:
    """A finding about a blob that is gone, in the base's terms."""
    return Finding(BaseGone.id, "error", finding.what, finding.where, finding.why, finding.hint) if finding.id == FileGone.id else finding


def _blobs(base: ImageBase) -> list[Blob]:
    return list({blob.digest: blob for blob in base.layers}.values())


def _with_facts(base: ImageBase, store: Store, progress: Progress) -> ImageBase:
    """The base with what its os-release says; reads, and so checks, every layer."""
    return base.model_copy(update={"facts": {**base.facts, **os_release_facts(os_release_of(base.layers, store, progress))}})


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")
