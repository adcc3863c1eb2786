"""The image of an artifact into a registry, by its digest, with lock, bill of materials and reports attached to it.

Blobs go up as they lie in the archive, so that the manifest, and with it the digest, is the artifact's own. What is attached refers to
the manifest (OCI distribution specification 1.1, "Pushing Manifests with Subject"); where a registry does not keep such references,
they are listed under a tag made of the digest (the same, "Referrers Tag Schema").
"""

from __future__ import annotations

import io
import json
import posixpath
import tarfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import requests
import urllib3
from zstandard import ZstdError

from envlock.artifact import layout, seal
from envlock.artifact.check import archive_paths, open_artifact
from envlock.artifact.imagefile import blobs_in
from envlock.artifact.record import Record
from envlock.artifact.targets import Joined, unpacked
from envlock.errors import AccessDenied, DamagedArchive, FetchError, FileGone, UsageError
from envlock.image import OCI_INDEX, OCI_MANIFEST, digest_of
from envlock.progress import Advance, Progress
from envlock.resolve.manifests import LARGEST
from envlock.resolve.reference import ImageReference, parse_reference
from envlock.resolve.registry import Repository
from envlock.spec import canonical_json
from envlock.store import write_atomically
from envlock.transport import Fault, fault_of, fault_of_status
from envlock.urls import join_url, split_url

EMPTY = b"{}"
OCI_EMPTY = "application/vnd.oci.empty.v1+json"
LOCK_TYPE = "application/vnd.envlock.lock.v1+yaml"
SBOM_TYPE = "application/vnd.cyclonedx+json"
REPORT_TYPE = "application/vnd.envlock.report.v1+json"
_ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class Pushed:
    """An image in a registry: `NAME@sha256:…`, and the digests of what refers to it, by file."""

    reference: str
    attached: dict[str, str]
    listed_by: str

    def as_json(self) -> dict[str, Any]:
        """What REGISTRY.json holds and `pin --json` prints."""
        return {"reference": self.reference, "attached": self.attached, "listed_by": self.listed_by}


class Destination(Repository):
    """One repository in a registry, to write to."""

    actions = "pull,push"

    def has(self, digest: str) -> bool:
        """Whether the registry has a blob."""
        try:
            self.send("HEAD", self.blob_url(digest), {}, None)
        except FileGone:
            return False
        return True

    def upload(self, digest: str, size: int, open_blob: Callable[[], AbstractContextManager[BinaryIO]], advance: Advance) -> None:
        """Put a blob there unless it is there (the specification's "POST then PUT"). Tries again from the start after transient faults."""
        if self.has(digest):
            advance(size)
            return
        for attempt in range(1, _ATTEMPTS + 1):
            started = self.send("POST", self._url("blobs/uploads/"), {"Content-Length": "0"}, None)
            place = join_url(started.url, started.headers.get("Location", ""))
            place += ("&" if split_url(place).query else "?") + f"digest={digest}"
            with open_blob() as stream:
                body = _Body(stream, size, advance)
                try:
                    self.send("PUT", place, {"Content-Type": "application/octet-stream"}, body)
                    return
                except FetchError as error:
                    advance(-body.done)
                    if attempt == _ATTEMPTS or isinstance(error, AccessDenied | FileGone):
                        raise

    def put_manifest(self, reference: str, raw: bytes, media_type: str) -> requests.Response:
        """Put a manifest under a tag or its digest."""
        return self.send("PUT", self._url(f"manifests/{reference}"), {"Content-Type": media_type}, raw)

    def send(self, method: str, url: str, headers: dict[str, str], body: Any) -> requests.Response:
        """One request, with the repository's token. Raises `FetchError` in the registry's terms."""
        try:
            token = self._authorization or self._log_in(stale={})
            try:
                return self._sent(method, url, {**headers, **token}, body)
            except Fault as fault:
                if not isinstance(fault.error, AccessDenied) or not token or isinstance(body, _Body):
                    raise
            return self._sent(method, url, {**headers, **self._log_in(stale=token)}, body)
        except Fault as fault:
            raise (fault.error if isinstance(fault.error, FileGone) else self.explained(fault.error)) from None

    def _sent(self, method: str, url: str, headers: dict[str, str], body: Any) -> requests.Response:
        timeout = (self.patience.connect, max(self.patience.read, 300.0))  # a registry hashes a large blob before it answers
        try:
            with self._session().request(method, url, headers=headers, data=body, timeout=timeout, auth=_as_it_is) as answer:
                answer.content  # noqa: B018  # read, so that the connection can be used again
        except (requests.RequestException, OSError, ValueError, urllib3.exceptions.HTTPError) as error:
            raise fault_of(error, url) from None
        if answer.status_code not in (200, 201, 202):
            raise fault_of_status(answer, url)
        return answer


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Keeps requests from putting ~/.netrc's password in the place of a registry's token."""
    return request


class _Body:
    """A blob as the body of a request, of known length."""

    def __init__(self, stream: BinaryIO, size: int, advance: Advance) -> None:
        self._stream = stream
        self._size = size
        self._advance = advance
        self.done = 0

    def __len__(self) -> int:
        return self._size

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(min(size, 2**20) if size > 0 else 2**20)
        self.done += len(data)
        self._advance(len(data))
        return data


def push(folder: Path, name: str, progress: Progress) -> Pushed:
    """Push an artifact's image and record where it is in REGISTRY.json. Raises `UsageError`, `DamagedArchive` and the registry's errors.

    `name` is a repository with or without a tag; without one the image gets its lock's.
    """
    lock, record = open_artifact(folder)
    reference = parse_reference(name)
    if reference.digest:
        hint = "name a repository and a tag: registry.example.org/team/image:1"
        raise UsageError(f"{name} names a digest", where=name, why="an image is pushed under a tag", hint=hint)
    tag = reference.tag if f":{reference.tag}" in name else lock.short_digest
    destination = Destination(reference, progress)
    try:
        small = _push_blobs(destination, folder, record, progress)
    except (tarfile.TarError, EOFError, ZstdError) as error:
        hint = f"see `envlock pin --check {folder}`"
        raise DamagedArchive("the image's archive is damaged", where=str(folder), why=str(error), hint=hint) from None
    manifest = small[record.manifest_digest]
    destination.put_manifest(str(tag), manifest, OCI_MANIFEST)
    attached, listed_by = _attach(destination, folder, record, len(manifest), lock.epoch)
    pushed = Pushed(str(ImageReference(reference.registry, reference.repository, None, record.manifest_digest)), attached, listed_by)
    _record(folder, pushed, progress)
    return pushed


def _push_blobs(destination: Destination, folder: Path, record: Record, progress: Progress) -> dict[str, bytes]:
    """Push config and layers in the order of the archive; its documents by digest."""
    small: dict[str, bytes] = {}
    with progress.track(f"push {record.tag}", sum(layer.size for layer in record.layers)) as advance, _archive(folder, record) as stream:
        for digest, size, content in blobs_in(stream):
            if size <= LARGEST:
                small[digest] = content.read()
            if digest != record.manifest_digest:
                if digest in small:
                    raw = small[digest]
                    destination.upload(digest, size, partial(io.BytesIO, raw), advance)
                else:
                    first = iter([content])
                    destination.upload(digest, size, partial(_again, first, folder, record, digest), advance)
    return small


@contextmanager
def _again(first: Iterator[BinaryIO], folder: Path, record: Record, digest: str) -> Iterator[BinaryIO]:
    """A blob's content: the first time where the archive's reader stands, later from a reader of its own."""
    stream = next(first, None)
    if stream is not None:
        yield stream
        return
    with _archive(folder, record) as archive:
        yield next(content for found, _, content in blobs_in(archive) if found == digest)


@contextmanager
def _archive(folder: Path, record: Record) -> Iterator[BinaryIO]:
    joined = Joined(archive_paths(folder, record))
    try:
        yield unpacked(joined, record.archive.compression)
    finally:
        joined.close()


def _attach(destination: Destination, folder: Path, record: Record, size: int, epoch: int) -> tuple[dict[str, str], str]:
    """Push what refers to the image; digests by file, and what lists them."""
    files = {layout.LOCK: LOCK_TYPE, layout.SBOM: SBOM_TYPE}
    files |= {path.relative_to(folder).as_posix(): REPORT_TYPE for path in sorted((folder / layout.REPORTS).glob("*/report.json"))}
    subject = {"mediaType": OCI_MANIFEST, "digest": record.manifest_digest, "size": size}
    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    destination.upload(digest_of(EMPTY), len(EMPTY), partial(io.BytesIO, EMPTY), lambda done: None)
    attached: dict[str, str] = {}
    unlisted: list[dict[str, Any]] = []
    for name, kind in files.items():
        raw = (folder / name).read_bytes()
        destination.upload(digest_of(raw), len(raw), partial(io.BytesIO, raw), lambda done: None)
        layer = {"mediaType": kind, "digest": digest_of(raw), "size": len(raw)}
        manifest = canonical_json(
            {
                "schemaVersion": 2,
                "mediaType": OCI_MANIFEST,
                "artifactType": kind,
                "config": {"mediaType": OCI_EMPTY, "digest": digest_of(EMPTY), "size": len(EMPTY)},
                "layers": [{**layer, "annotations": {"org.opencontainers.image.title": posixpath.basename(name)}}],
                "subject": subject,
                "annotations": {"org.opencontainers.image.created": created},
            }
        )
        answer = destination.put_manifest(digest_of(manifest), manifest, OCI_MANIFEST)
        attached[name] = digest_of(manifest)
        if not answer.headers.get("OCI-Subject"):
            row = {"mediaType": OCI_MANIFEST, "digest": digest_of(manifest), "size": len(manifest), "artifactType": kind}
            unlisted.append(row)
    if not unlisted:
        return attached, "referrers API"
    return attached, _list_by_tag(destination, record.manifest_digest, unlisted)


def _list_by_tag(destination: Destination, digest: str, rows: list[dict[str, Any]]) -> str:
    """Add to the index under the tag that stands for a digest; its name."""
    tag = digest.replace(":", "-")
    try:
        before = json.loads(destination.manifest(tag).raw)["manifests"]
    except (FileGone, KeyError, ValueError):
        before = []
    known = {row["digest"] for row in rows}
    listed = [*(row for row in before if row.get("digest") not in known), *rows]
    destination.put_manifest(tag, canonical_json({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": listed}), OCI_INDEX)
    return f"tag {tag}"


def _record(folder: Path, pushed: Pushed, progress: Progress) -> None:
    """Add to REGISTRY.json, and seal the artifact again."""
    path = folder / layout.REGISTRY
    before = json.loads(path.read_bytes()) if path.is_file() else []
    rows = [row for row in before if row["reference"] != pushed.reference] + [pushed.as_json()]
    known = {name: sha256 for name, sha256 in seal.read_sums(folder).items() if name.startswith(f"{layout.IMAGE_FOLDER}/")}
    write_atomically(path, (json.dumps(rows, indent=2) + "\n").encode())
    seal.write(folder, known, progress)
