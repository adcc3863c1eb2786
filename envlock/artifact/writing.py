"""Pinning: an image, its lock and its inputs written as the folder that goes with a paper.

Every file is a function of lock, image, paper and the reports that are given; nothing asks the clock. What an interrupted run has
written is kept.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envlock import lock as locks
from envlock import report as reports
from envlock.artifact import citation, crate, imagefile, inputs, layout, packages, seal
from envlock.artifact.layout import Compression, Vendor
from envlock.artifact.pages import Facts, pages
from envlock.artifact.record import Record, make_record
from envlock.artifact.sbom import sbom
from envlock.artifact.scan import Scan
from envlock.artifact.subject import Subject, open_layers
from envlock.artifact.targets import open_target
from envlock.build import built_of, fetch_inputs
from envlock.bundle import Bundle, keep_bundle, open_bundle
from envlock.context import MARK, texts, write_context
from envlock.errors import DiskFull, DownloadDamaged, FileGone, ImageDiffers, NotPinnable, UsageError
from envlock.fetch import fetch_all
from envlock.lock import DebianBase, Lock, LockFile
from envlock.locking import ChosenLock
from envlock.progress import Progress, human_bytes
from envlock.reference import read as read_reference
from envlock.report import Report
from envlock.resolve.python import wheel_wanted
from envlock.sources import keep_files
from envlock.spec import read_spec
from envlock.store import Store, write_atomically

if TYPE_CHECKING:
    from envlock.engine import Engine

_SMALL = 4_000_000
"""Bytes set aside for all pages and lists together; those of a CUDA image take 1 MB."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What a person chose: the inputs that come along, the archive's form, the most bytes of one file, reports and references."""

    vendor: Vendor = "wheels"
    compression: Compression = "none"
    split: int | None = None
    reports: tuple[Path, ...] = ()
    references: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Pinned:
    """An artifact that was written."""

    folder: Path
    record: Record
    seal: str
    size: int
    files: int

    def as_json(self) -> dict[str, Any]:
        """What `pin --json` prints."""
        facts = ("image_digest", "manifest_digest", "rootfs_digest", "lock_digest")
        digests = {name: getattr(self.record, name) for name in facts}
        return {"artifact": str(self.folder), "artifact_digest": self.seal, **digests, "size": self.size, "files": self.files}

    def summary(self) -> str:
        """What people read after `envlock pin`."""
        return "\n".join(
            [
                f"{self.folder}  {self.files} files, {human_bytes(self.size)}",
                f"artifact digest {self.seal}",
                f"manifest digest {self.record.manifest_digest}",
                f"next: {self.folder / layout.CHECKLIST} says what is left to do; `envlock pin --check {self.folder}` tests it",
            ]
        )


def pin(subject: Subject, choices: Choices, folder: Path, engine: Engine, store: Store, progress: Progress) -> Pinned:
    """Write the artifact of an image into a folder that is new, empty, or of an earlier run for the same lock.

    Raises `UsageError` for a folder that holds other things, `DiskFull` before anything is written, and what fetching and opening the
    layers raise.
    """
    lock = subject.lock
    told = _read_reports(choices.reports, subject)
    references = _read_references(choices.references)
    paper = read_spec(subject.spec).paper if subject.spec else None
    _claim(folder, lock)
    _require_space(subject, choices, folder, progress)
    _fetch(subject, choices.vendor, engine, store, progress)
    bundle = open_bundle(lock.shipped, store)
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / layout.LOCK, locks.dump(LockFile(lock=lock)))
    if choices.vendor == "all":
        _write(folder / layout.CONTEXT / MARK, b"")  # the folder is ours, whatever an earlier run has put there
        chosen = ChosenLock(folder / layout.LOCK, lock, None)
        write_context(chosen, bundle, store, folder / layout.CONTEXT, lambda: engine, progress)
        _require_same_runtime(subject, folder / layout.CONTEXT / "runtime.tar")
    _put_inputs(subject, choices.vendor, store, folder, progress)
    record, scan = _write_archive(subject, choices, folder, engine, store, progress)
    _write_texts(subject, bundle, record, scan, folder)
    copies = {**told.raw, **references}
    for name, raw in copies.items():
        _write(folder / name, raw)
    facts = Facts(lock, record, scan, paper, told.reports, tuple(references), subject.spec is not None)
    edited = _write_pages(facts, folder)
    for name in edited:
        progress.say(f"kept {name}, which was edited by hand; delete it to have it written anew")
    _remove_others(folder, subject, choices, record, [*copies])
    listed = {name: size for name, size in seal.sizes(folder).items() if name not in (layout.SUMS, layout.SEAL, layout.CRATE)}
    _write(folder / layout.CRATE, crate.crate(lock, record, paper, listed, told.reports))
    known = {file.name: file.sha256 for file in record.archive.files}
    digest = seal.write(folder, known, progress)
    _require_locked_inputs(subject, choices.vendor, folder)
    sizes = seal.sizes(folder)
    return Pinned(folder, record, digest, sum(sizes.values()), len(sizes))


# before anything is written -------------------------------------------------------------------------------------------------


def _claim(folder: Path, lock: Lock) -> None:
    """Raises `UsageError` unless the folder may be written."""
    if not folder.exists() or not any(folder.iterdir()):
        return
    hint = "name a new or an empty folder"
    if not (folder / layout.LOCK).exists():
        raise UsageError(f"{folder} holds other things", where=str(folder), why="an artifact must not mix with them", hint=hint)
    if locks.read(folder / layout.LOCK).lock.digest != lock.digest:
        raise UsageError(f"{folder} holds the artifact of another lock", where=str(folder), hint=hint)


def _require_space(subject: Subject, choices: Choices, folder: Path, progress: Progress) -> None:
    """Say what each part takes, and raise `DiskFull` where it will not fit."""
    parts = plan(subject, choices)
    for what, size in parts.items():
        progress.say(f"{human_bytes(size):>9}  {what}")
    there = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.exists() else 0
    needed = sum(parts.values()) - there
    place = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(place).free
    if needed > free:
        why = f"{human_bytes(needed)} are needed and {human_bytes(free)} are free"
        hint = "free some space, or take `--compress zstd` and `--vendor none`, which take the least"
        raise DiskFull(f"the artifact does not fit where {folder} is", where=str(place), why=why, hint=hint)


def plan(subject: Subject, choices: Choices) -> dict[str, int]:
    """What an artifact will take at most, in bytes, by part."""
    image = imagefile.archive_size(subject.image, layout.image_tag(subject.lock))
    rows = [row for row in inputs.inputs_of(subject.lock) if row.lies_in(choices.vendor)]
    base = _base_size(subject) if choices.vendor == "all" else 0
    packed = " before compression" if choices.compression == "zstd" else ""
    parts = {f"image{packed}": image, f"inputs ({choices.vendor}, {len(rows)} files)": sum(row.size for row in rows) + base}
    return {**parts, "pages and lists": _SMALL}


def _base_size(subject: Subject) -> int:
    """Bytes of the base as a tar in the Dockerfile's context: of all its layers; a base in a registry is mostly not put there."""
    base = subject.lock.base
    if isinstance(base, DebianBase):
        return subject.image.layers[0].size
    return sum(layer.size for layer in subject.image.layers[: len(base.layers)]) if base.starts_as_archive else 0


@dataclass(frozen=True, slots=True)
class _Told:
    """Reports as read, and the bytes that were, by their path in the artifact."""

    reports: Mapping[str, Report]
    raw: Mapping[str, bytes]


def _read_reports(paths: Iterable[Path], subject: Subject) -> _Told:
    """Report files, or folders of `envlock verify --report`: of these all forms come along.

    Raises `NotPinnable` for a report of another image.
    """
    read: dict[str, Report] = {}
    raw: dict[str, bytes] = {}
    for number, path in enumerate(paths, 1):
        source = path / "report.json" if path.is_dir() else path
        name = f"{layout.REPORTS}/{number:02}-{path.stem if path.stem != 'report' else 'verify'}"
        report = read[f"{name}/report.json"] = reports.read(source)
        if report.image.image_digest not in (None, subject.image.digest):
            why = f"it verified {report.image.image_digest}, pinned is {subject.image.digest}"
            raise NotPinnable(f"{path} is not about this image", where=str(path), why=why, hint="verify the image that you pin")
        raw[f"{name}/report.json"] = source.read_bytes()
        if path.is_dir():
            forms = sorted([*path.glob("report.*"), path / "junit.xml"])
            raw |= {f"{name}/{form.name}": form.read_bytes() for form in forms if form.is_file()}
    return _Told(read, raw)


def _read_references(paths: Iterable[Path]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for path in paths:
        read_reference(path)
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
        found |= {f"{layout.REFERENCES}/{file.name}": file.read_bytes() for file in files}
    return found


# inputs ---------------------------------------------------------------------------------------------------------------------


def _fetch(subject: Subject, vendor: Vendor, engine: Engine, store: Store, progress: Progress) -> None:
    """Bring what the artifact will hold into the store. Raises `FileGone` for a lost file of the spec, and what fetching raises."""
    lock = subject.lock
    keep_bundle(store)
    if subject.spec is not None:
        keep_files(lock.files, subject.spec.parent, store)
    absent = [file.source for file in lock.files if not store.has(file.sha256, file.size)]
    if absent:
        hint = "name the spec, so that the files beside it are found: --spec envlock.yaml"
        raise FileGone(f"{absent[0]} goes into the image and is not at hand", where=absent[0], why="the store does not have it", hint=hint)
    if vendor == "all":
        fetch_inputs(lock, lambda: engine, store, progress)
    elif vendor == "wheels":
        fetch_all([wheel_wanted(wheel) for wheel in (*lock.wheels, lock.installer)], store, progress)


def _put_inputs(subject: Subject, vendor: Vendor, store: Store, folder: Path, progress: Progress) -> None:
    """The inputs as links to the store where the file system allows, so that they take no space twice; they cannot be written to."""
    rows = [row for row in inputs.inputs_of(subject.lock) if row.lies_in(vendor)]
    for row in rows:
        path = folder / row.path
        if path.exists() and path.stat().st_size == row.size:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        try:
            os.link(store.path(row.sha256), path)
        except OSError:
            shutil.copyfile(store.path(row.sha256), path)
            path.chmod(0o644)
    progress.say(f"{len(rows)} inputs in place")
    if subject.spec is not None:
        beside = subject.spec.parent
        _write(folder / layout.SPEC, subject.spec.read_bytes())
        for name in subject.lock.requirements:
            if ".." in Path(name).parts:
                raise NotPinnable(
                    f"{name} does not lie beside the spec", where=name, hint="move the requirement file into the spec's folder"
                )
            _write(folder / layout.SPEC_FOLDER / name, (beside / name).read_bytes())


def _require_locked_inputs(subject: Subject, vendor: Vendor, folder: Path) -> None:
    """Raises `DownloadDamaged` where an input that came out of the store is not the locked one: the store is damaged."""
    sums = seal.read_sums(folder)
    for row in inputs.inputs_of(subject.lock):
        if row.lies_in(vendor) and sums[row.path] != row.sha256:
            (folder / layout.SEAL).unlink()
            (folder / row.path).unlink()
            why = f"its sha256 is {sums[row.path]}, locked is {row.sha256}"
            hint = "see `envlock store --verify`, fetch the file again, then pin again"
            raise DownloadDamaged(f"the store's copy of {row.name} is damaged", where=row.path, why=why, hint=hint)


def _require_same_runtime(subject: Subject, path: Path) -> None:
    """Raises `ImageDiffers` where this envlock makes another uppermost layer of the lock than the image has: a rebuild would differ."""
    layer = subject.image.layers[-1]
    with path.open("rb") as stream:
        found = f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"
    if found != layer.diff_id:
        hint = f"pin with the release that built it ({subject.lock.shipped.envlock}), or build the image again and pin that"
        why = f"the image has {layer.diff_id}, made now is {found}"
        raise ImageDiffers(f"the layer with {layer.holds} comes out otherwise now", where=layer.holds, why=why, hint=hint)


# the image ------------------------------------------------------------------------------------------------------------------


def _write_archive(
    subject: Subject, choices: Choices, folder: Path, engine: Engine, store: Store, progress: Progress
) -> tuple[Record, Scan]:
    lock, image = subject.lock, subject.image
    name = layout.archive_name(lock, choices.compression)
    size = imagefile.archive_size(image, layout.image_tag(lock))
    copies = {} if choices.vendor == "all" else {image.layers[-1].diff_id: folder / layout.CONTEXT / "runtime.tar"}
    with open_layers(subject, engine, store, progress) as open_layer, progress.track("image archive", size) as advance:
        target = open_target(folder / name, choices.compression, choices.split)
        written = imagefile.write_image(image, layout.image_tag(lock), open_layer, target, copies, advance)
    form = (choices.compression, choices.split, choices.vendor)
    record = make_record(lock, image, written.scan.rootfs_digest, written.parts, size, layout.IMAGE_FOLDER, form)
    return record, written.scan


# texts ----------------------------------------------------------------------------------------------------------------------


def _write_texts(subject: Subject, bundle: Bundle, record: Record, scan: Scan, folder: Path) -> None:
    built = built_of(subject.lock, subject.image).model_copy(update={"rootfs_digest": record.rootfs_digest})
    _write(folder / layout.LOCK, locks.dump(LockFile(lock=subject.lock, built=built)))
    for name, content in machine_texts(subject, bundle, record, scan).items():
        _write(folder / name, content)


def machine_texts(subject: Subject, bundle: Bundle, record: Record, scan: Scan) -> dict[str, bytes]:
    """Every text that follows from lock and image alone, by its path: what `--check` makes again and compares."""
    lock = subject.lock
    context = {f"{layout.CONTEXT}/{name}": content for name, content in texts(lock, bundle).items()}
    return {
        **context,
        layout.IMAGE: record.to_json,
        layout.FETCH: inputs.fetch_list(lock, record.vendor),
        layout.PYLOCK: packages.pylock(lock),
        layout.REQUIREMENTS: packages.requirements(lock),
        layout.APT: packages.apt_list(lock),
        layout.SBOM: sbom(lock, subject.image, scan),
    }


def _write_pages(facts: Facts, folder: Path) -> list[str]:
    """Write the pages; the paths of those that were edited by hand, and so are left as they are."""
    made = {
        **pages(facts),
        layout.CITATION: citation.citation(facts.lock, facts.paper),
        layout.ZENODO: citation.zenodo(facts.lock, facts.paper),
    }
    before = seal.read_sums(folder)
    edited = []
    for name, content in made.items():
        path = folder / name
        there = hashlib.sha256(path.read_bytes()).hexdigest() if name in layout.EDITED and path.exists() else None
        if there is not None and there != before.get(name) and there != hashlib.sha256(content).hexdigest():
            edited.append(name)
        else:
            _write(path, content)
    return edited


def _remove_others(folder: Path, subject: Subject, choices: Choices, record: Record, copies: Iterable[str]) -> None:
    """Remove what an earlier run with other choices wrote and this one did not; an author's own files stay."""
    ours = {row.path for row in inputs.inputs_of(subject.lock) if not row.lies_in(choices.vendor)}
    if choices.vendor != "all":
        ours |= {f"{layout.CONTEXT}/{name}" for name in ("base.tar", "base-image.tar", MARK, ".dockerignore", layout.SUMS)}
    for folder_of_ours, kept in (
        (layout.IMAGE_FOLDER, {file.name for file in record.archive.files}),
        (layout.REPORTS, set(copies)),
        (layout.REFERENCES, set(copies)),
    ):
        there = (path.relative_to(folder).as_posix() for path in (folder / folder_of_ours).rglob("*") if path.is_file())
        ours |= {name for name in there if name not in kept}
    for name in ours:
        (folder / name).unlink(missing_ok=True)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_bytes() != content:
        write_atomically(path, content)
