"""The check of an artifact, without network or engine: sums, completeness, and that all of it speaks of one image.

The image's archive is read once: hashed, opened, and looked into for what the bill of materials and the rootfs digest say.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import envlock
from envlock import lock as locks
from envlock.artifact import layout, seal
from envlock.artifact.imagefile import BLOBS, Content, read_image
from envlock.artifact.inputs import inputs_of
from envlock.artifact.record import Record, read_record
from envlock.artifact.scan import Scan
from envlock.artifact.subject import Subject
from envlock.artifact.targets import Joined, unpacked
from envlock.artifact.writing import machine_texts
from envlock.bundle import Bundle, read_bundle
from envlock.config import image_settings
from envlock.errors import EnvlockError, Finding, UsageError
from envlock.image import Image, make_image
from envlock.layers import Layer
from envlock.lock import DebianBase, Lock
from envlock.progress import Progress
from envlock.spec import read_spec
from envlock.zips import BROKEN_ZIP

_AGAIN = "copy the artifact again from where you have it; or, if you changed it yourself, seal it: `envlock pin --seal DIR`"
_PIN = "pin the image again into a new folder"


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check found; it holds when no finding is an error. `seal` is the artifact's digest."""

    folder: Path
    findings: tuple[Finding, ...]
    seal: str
    files: int

    @property
    def holds(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """What `pin --check --json` prints, findings aside."""
        return {"artifact": str(self.folder), "holds": self.holds, "artifact_digest": self.seal, "files": self.files}


def open_artifact(folder: Path) -> tuple[Lock, Record]:
    """Lock and record of an artifact. Raises `UsageError` where the folder is none, `Problems` where the lock cannot be read."""
    for name in (layout.LOCK, layout.IMAGE):
        if not (folder / name).is_file():
            hint = "name the folder that `envlock pin IMAGE -o DIR` wrote"
            raise UsageError(f"{folder} is not an artifact", where=str(folder), why=f"it has no {name}", hint=hint)
    record = read_record((folder / layout.IMAGE).read_bytes(), layout.IMAGE)
    return locks.read(folder / layout.LOCK).lock, record


def check(folder: Path, progress: Progress) -> Checked:
    """Test an artifact. Raises `UsageError` where the folder is none at all."""
    for name in (layout.LOCK, layout.IMAGE):
        if not (folder / name).is_file() and not (folder / layout.SUMS).is_file():
            raise UsageError(f"{folder} is not an artifact", where=str(folder), why=f"it has no {name}")
    listed = seal.read_sums(folder)
    there = seal.sizes(folder)
    try:
        lock, record = open_artifact(folder)
    except EnvlockError as error:
        found, _ = _sums(folder, listed, there, {}, progress)
        return _checked(folder, [*found, *error.findings], there)
    content, image_sums = _read_archive(folder, record, there, progress)
    found, sums = _sums(folder, listed, there, image_sums, progress)
    found += _disagreements(folder, lock, record, content, sums)
    return _checked(folder, found, there)


def _checked(folder: Path, findings: list[Finding], there: Mapping[str, int]) -> Checked:
    unique = {(finding.where, finding.what): finding for finding in findings}
    path = folder / layout.SUMS
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    return Checked(folder, tuple(unique.values()), f"sha256:{digest}" if digest else "", len(there))


# sums -----------------------------------------------------------------------------------------------------------------------


def _sums(
    folder: Path, listed: Mapping[str, str], there: Mapping[str, int], known: Mapping[str, str], progress: Progress
) -> tuple[list[Finding], dict[str, str]]:
    """Each file held against SHA256SUMS, and that against its own sum; the sha256 in hex of every file that is there."""
    found: list[Finding] = []
    sums = seal.hashed(folder, there, known, progress)
    for name, sha256 in listed.items():
        if name not in there:
            found.append(_error("artifact-incomplete", f"{name} is missing", name, "", _AGAIN))
        elif sums[name] != sha256:
            found.append(
                _error("artifact-damaged", f"{name} is damaged", name, f"its sha256 is {sums[name]}, the list says {sha256}", _AGAIN)
            )
    for name in there:
        if name not in listed and name not in (layout.SUMS, layout.SEAL):
            what = f"{name} is not in {layout.SUMS}"
            found.append(Finding("artifact-unlisted", "warning", what, name, hint="seal it if it belongs here: `envlock pin --seal DIR`"))
    return found + _seal(folder, sums, files_hold=not found), sums


def _seal(folder: Path, sums: Mapping[str, str], *, files_hold: bool) -> list[Finding]:
    """The list itself, and which of list and seal is at fault where they differ: files that agree with the list speak for it."""
    for name in (layout.SUMS, layout.SEAL):
        if name not in sums:
            return [_error("artifact-incomplete", f"{name} is missing", name, "", _AGAIN)]
    broken = seal.malformed((folder / layout.SUMS).read_text(encoding="utf-8", errors="replace"))
    sealed = (folder / layout.SEAL).read_bytes() == f"{sums[layout.SUMS]}  {layout.SUMS}\n".encode()
    if broken:
        why = f"line {broken[0]} is not a sum and a name"
        return [_error("artifact-damaged", f"{layout.SUMS} is damaged", layout.SUMS, why, _AGAIN)]
    if sealed:
        return []
    name = layout.SEAL if files_hold else layout.SUMS
    why = f"{layout.SUMS} has the sha256 {sums[layout.SUMS]}, which is not what {layout.SEAL} says"
    return [_error("artifact-damaged", f"{name} is damaged", name, why, _AGAIN)]


# the image ------------------------------------------------------------------------------------------------------------------


def archive_paths(folder: Path, record: Record) -> list[Path]:
    """The files of the image's archive, in order."""
    return [folder / file.name for file in record.archive.files]


def _read_archive(folder: Path, record: Record, there: Mapping[str, int], progress: Progress) -> tuple[Content, dict[str, str]]:
    """What the archive holds, and the sha256 in hex of its files."""
    paths = archive_paths(folder, record)
    if any(file.name not in there for file in record.archive.files):
        return Content(faults=["a part of it is missing"]), {}
    joined = Joined(paths)
    layers = {layer.diff_id: layer.holds for layer in record.layers}
    try:
        with progress.track("image archive", record.archive.size) as advance:
            content = read_image(unpacked(joined, record.archive.compression), "the archive", layers, advance)
            joined.drain()
    finally:
        joined.close()
    return content, {path.relative_to(folder).as_posix(): sha256 for path, sha256 in joined.sums.items()}


def _disagreements(folder: Path, lock: Lock, record: Record, content: Content, sums: Mapping[str, str]) -> Iterator[Finding]:
    """Where lock, image, Dockerfile, lists and bill of materials do not speak of one image."""
    name = record.archive.files[0].name if record.archive.files else layout.IMAGE
    for fault in content.faults:
        yield _error("artifact-damaged", f"the image's archive is damaged: {fault}", name, "", _AGAIN)
    if lock.digest != record.lock_digest:
        yield _differs(layout.IMAGE, f"it names the lock {record.lock_digest}, {layout.LOCK} is {lock.digest}")
    layers = tuple(Layer(row.diff_id, row.size, row.holds) for row in record.layers)
    image = make_image(layers, image_settings(lock))
    if (image.digest, image.manifest_digest) != (record.image_digest, record.manifest_digest):
        yield _differs(layout.IMAGE, f"lock and layers give the manifest {image.manifest_digest}, it names {record.manifest_digest}")
    if not content.faults:
        yield from _archive_differs(image, content, name)
    yield from _inputs_differ(folder, lock, record, sums)
    if content.scan is not None:
        yield from _texts_differ(folder, Subject(lock, image, None), record, content.scan)
    spec = folder / layout.SPEC
    if spec.is_file():
        try:
            if read_spec(spec).digest != lock.spec:
                yield _differs(layout.SPEC, f"{layout.LOCK} was made from another spec")
        except EnvlockError as error:
            yield from error.findings


def _archive_differs(image: Image, content: Content, name: str) -> Iterator[Finding]:
    """What `docker load` and the readers of OCI archives would take is the image, and nothing else."""
    try:
        (entry,) = json.loads(content.texts["index.json"])["manifests"]
        (row,) = json.loads(content.texts["manifest.json"])
        manifest, config = _blob(content, entry["digest"]), content.texts[str(row["Config"])]
        layers = [f"{BLOBS}{layer.diff_id.removeprefix('sha256:')}" for layer in image.layers]
        holds = manifest == image.manifest and config == image.config and row["Layers"] == layers
    except (KeyError, ValueError, TypeError):
        holds = False
    absent = [layer.holds for layer in image.layers if layer.diff_id not in content.blobs]
    if absent:
        yield _error("artifact-incomplete", f"the image's archive lacks the layer with {absent[0]}", name, "", _AGAIN)
    elif not holds:
        yield _differs(name, "it holds another image than lock and layers give")


def _blob(content: Content, digest: str) -> bytes:
    return content.texts[f"{BLOBS}{digest.removeprefix('sha256:')}"]


def _inputs_differ(folder: Path, lock: Lock, record: Record, sums: Mapping[str, str]) -> Iterator[Finding]:
    """Every input that should lie here does, is the locked one, and opens."""
    wanted = {row.path: row.sha256 for row in inputs_of(lock) if row.lies_in(record.vendor)}
    wanted[f"{layout.CONTEXT}/runtime.tar"] = record.layers[-1].diff_id.removeprefix("sha256:")
    if record.vendor == "all" and isinstance(lock.base, DebianBase):
        wanted[f"{layout.CONTEXT}/base.tar"] = record.layers[0].diff_id.removeprefix("sha256:")
    for path, sha256 in wanted.items():
        if path not in sums:
            yield _error("artifact-incomplete", f"{path} is missing", path, f"it should lie here: {layout.LOCK} names it", _AGAIN)
        elif sums[path] != sha256:
            yield _differs(path, f"its sha256 is {sums[path]}, locked is {sha256}")
        elif path.endswith(".whl"):
            try:
                with zipfile.ZipFile(folder / path) as wheel:
                    wheel.infolist()
            except BROKEN_ZIP as error:
                yield _error("artifact-damaged", f"{path} does not open", path, str(error), _PIN)


def _texts_differ(folder: Path, subject: Subject, record: Record, scan: Scan) -> Iterator[Finding]:
    """Every text that follows from lock and image is the one that follows."""
    if scan.rootfs_digest != record.rootfs_digest:
        yield _differs(layout.IMAGE, f"the layers give the rootfs digest {scan.rootfs_digest}, it names {record.rootfs_digest}")
    yield from _components_differ(folder, subject.lock)
    bundle = _bundle(folder, subject.lock)
    if bundle is None:
        return
    for path, wanted in machine_texts(subject, bundle, record, scan).items():
        # another release may word its lists otherwise; what the locked bundle renders is the same whoever renders it
        if record.envlock != envlock.__version__ and not path.startswith(f"{layout.CONTEXT}/"):
            continue
        if not (folder / path).is_file():
            yield _error("artifact-incomplete", f"{path} is missing", path, "", _AGAIN)
        elif (folder / path).read_bytes() != wanted:
            yield _differs(path, "it is not what lock and image give")


def _components_differ(folder: Path, lock: Lock) -> Iterator[Finding]:
    """Bill of materials and lock name the same files, whichever release wrote it."""
    if not (folder / layout.SBOM).is_file():
        yield _error("artifact-incomplete", f"{layout.SBOM} is missing", layout.SBOM, "", _AGAIN)
        return
    try:
        document = json.loads((folder / layout.SBOM).read_bytes())
        listed = {row["hashes"][0]["content"] for row in document["components"]}
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        yield _error("artifact-damaged", f"{layout.SBOM} cannot be read", layout.SBOM, "", _AGAIN)
        return
    locked = {wheel.sha256 for wheel in lock.wheels} | {lock.shipped.sha256}
    absent = sorted(locked - listed)
    if absent:
        yield _differs(layout.SBOM, f"it lacks {len(absent)} locked files, the first has the sha256 {absent[0]}")


def _bundle(folder: Path, lock: Lock) -> Bundle | None:
    path = folder / layout.BUNDLE
    if not path.is_file():
        return None
    raw = path.read_bytes()
    return read_bundle(raw) if hashlib.sha256(raw).hexdigest() == lock.shipped.sha256 else None


def _error(id_: str, what: str, where: str, why: str, hint: str) -> Finding:
    return Finding(id_, "error", what, where, why, hint)


def _differs(where: str, why: str) -> Finding:
    return _error("artifact-differs", f"{where} does not agree with the rest", where, why, _PIN)
