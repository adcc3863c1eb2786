"""The image made again from what lies in its artifact, and held against what the artifact says of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envlock.artifact import layout
from envlock.artifact.check import archive_paths, open_artifact
from envlock.artifact.inputs import inputs_of
from envlock.artifact.record import Record
from envlock.artifact.targets import Joined, unpacked
from envlock.build import fetch_inputs
from envlock.bundle import open_bundle
from envlock.clock import Clock
from envlock.config import image_settings
from envlock.errors import Finding, ImageDiffers
from envlock.image import make_image
from envlock.layers import Layer
from envlock.makers import LayerMaker
from envlock.progress import Progress, human_bytes
from envlock.reference import read as read_reference
from envlock.report import Report
from envlock.selftest_run import Options
from envlock.store import CHUNK, Store
from envlock.verify import verify, with_reference

if TYPE_CHECKING:
    from envlock.engine import Engine


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What came out: the manifest digest, how many inputs were fetched, and a finding where it is not the artifact's image."""

    manifest_digest: str
    fetched: int
    findings: tuple[Finding, ...]

    def as_json(self) -> dict[str, Any]:
        """What `pin --check --rebuild --json` adds."""
        return {"rebuilt": self.manifest_digest, "fetched": self.fetched}


def rebuild(folder: Path, engine: Engine, store: Store, progress: Progress) -> Rebuilt:
    """Make the image again with nothing but the artifact's own files, in a store of its own that goes at the end.

    An artifact with all its inputs needs no network; of another, what `fetch.json` lists is fetched first, and said. Raises what fetching
    and building raise.
    """
    lock, record = open_artifact(folder)
    rows = inputs_of(lock)
    store.require_space(sum(row.size for row in rows) + sum(layer.size for layer in record.layers))
    with store.scratch() as scratch:
        own = Store(scratch / "store")
        with progress.track("inputs", sum(row.size for row in rows if row.lies_in(record.vendor))) as advance:
            for row in rows:
                if row.lies_in(record.vendor):
                    own.add(folder / row.path, row.sha256)
                    advance(row.size)
        missing = [row for row in rows if not row.lies_in(record.vendor)]
        if missing:
            progress.say(
                f"{len(missing)} inputs ({human_bytes(sum(row.size for row in missing))}) do not lie in the artifact: fetching them"
            )
            fetch_inputs(lock, lambda: engine, own, progress)
        made = []
        (scratch / "layers").mkdir()
        with LayerMaker(lock, open_bundle(lock.shipped, own), engine, own, progress, scratch / "layers", Clock()) as maker:
            for layer in maker.layers():
                progress.say(f"made {layer.holds}")
                maker.open(layer).close()
                made.append(layer)
    image = make_image(made, image_settings(lock))
    return Rebuilt(image.manifest_digest, len(missing), tuple(differences(record, image.manifest_digest, made)))


def differences(record: Record, manifest_digest: str, made: Sequence[Layer]) -> list[Finding]:
    """How layers that were made again differ from those of an artifact, the first of them named."""
    if manifest_digest == record.manifest_digest:
        return []
    rows = zip(record.layers, made, strict=False)
    first = next(
        (f"the layer with {row.holds}: {row.diff_id}, made {layer.diff_id}" for row, layer in rows if row.diff_id != layer.diff_id), ""
    )
    why = f"recorded {record.manifest_digest}, made {manifest_digest}" + (f"; the first that differs is {first}" if first else "")
    hint = f"the artifact was written by envlock {record.envlock}: try that release"
    return [Finding(ImageDiffers.id, "error", "the image came out otherwise than the artifact's", layout.IMAGE, why, hint)]


def load_and_verify(folder: Path, engine: Engine, progress: Progress) -> tuple[Report, tuple[Finding, ...]]:
    """Load the artifact's image, see that it is the one, and run its self-test, held against the artifact's references if it has some.

    Raises what loading, verifying and reading references raise.
    """
    _, record = open_artifact(folder)
    joined = Joined(archive_paths(folder, record))
    try:
        with progress.track("load into the engine", record.archive.size) as advance:
            stream = unpacked(joined, record.archive.compression)

            def pieces() -> Iterator[bytes]:
                while chunk := stream.read(CHUNK):
                    advance(len(chunk))
                    yield chunk

            engine.load_archive(pieces())
    finally:
        joined.close()
    found = engine.image(record.tag)
    findings: tuple[Finding, ...] = ()
    if found is None or found.digest != record.image_digest:
        why = f"the engine has {found.digest if found else 'no image'} under {record.tag}, the artifact names {record.image_digest}"
        findings = (
            Finding(ImageDiffers.id, "error", "the loaded image is not the artifact's", record.tag, why, "remove the tag and try again"),
        )
    report = verify(engine, record.tag, Options(), progress)
    if (folder / layout.REFERENCES).is_dir():
        report = with_reference(report, read_reference(folder / layout.REFERENCES))
    return report, findings
