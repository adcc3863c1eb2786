"""An artifact as a whole: written twice it is the same, whatever is wrong with it is named, an interrupted run goes on."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from artifact_helpers import Small, make_small
from sample_report import report as make_report

from envlock.artifact import layout, seal
from envlock.artifact.check import check
from envlock.artifact.rebuild import differences
from envlock.artifact.subject import fitting
from envlock.artifact.targets import UNFINISHED
from envlock.errors import DiskFull, DownloadDamaged, FileGone, Finding, NotPinnable, UsageError
from envlock.layers import Layer
from envlock.lock import CopiedFile
from envlock.progress import Silent
from envlock.report import Report, to_json

ARCHIVE = "image/cpu-sample-*.tar*"


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Small:
    return make_small(tmp_path, monkeypatch)


def errors(folder: Path) -> list[Finding]:
    return [finding for finding in check(folder, Silent()).findings if finding.severity == "error"]


def sums(folder: Path) -> str:
    return (folder / layout.SUMS).read_text()


def test_written_twice_it_is_the_same(small: Small, tmp_path: Path) -> None:
    one, two = small.pinned(tmp_path / "one"), small.pinned(tmp_path / "two")
    assert sums(tmp_path / "one") == sums(tmp_path / "two")
    assert one.seal == two.seal
    again = small.pinned(tmp_path / "one")
    assert again.seal == one.seal
    assert errors(tmp_path / "one") == []


def test_coreutils_can_check_it(small: Small, tmp_path: Path) -> None:
    small.pinned(tmp_path / "a")
    subprocess.run(["sha256sum", "--check", "--quiet", layout.SEAL, layout.SUMS], cwd=tmp_path / "a", check=True)


def test_one_byte_flipped_anywhere_is_named(small: Small, tmp_path: Path) -> None:
    small.pinned(tmp_path / "a")
    for path in sorted(path for path in (tmp_path / "a").rglob("*") if path.is_file()):
        name = path.relative_to(tmp_path / "a").as_posix()
        raw = path.read_bytes()
        for offset in {0, len(raw) // 2, len(raw) - 1}:
            flipped = bytearray(raw)
            flipped[offset] ^= 1
            path.chmod(0o644)
            path.unlink()  # it may be a link to the store
            path.write_bytes(flipped)
            found = errors(tmp_path / "a")
            assert name in [finding.where for finding in found], (name, offset, found)
            damaged = {finding.where for finding in found if finding.id == "artifact-damaged"}
            assert damaged <= {name, layout.SUMS} or name == layout.SUMS
        path.write_bytes(raw)
    assert errors(tmp_path / "a") == []


@pytest.mark.parametrize("name", [layout.SBOM, layout.SUMS, layout.SEAL, f"{layout.CONTEXT}/Dockerfile", layout.IMAGE, layout.LOCK])
def test_a_file_that_is_missing_is_named(small: Small, tmp_path: Path, name: str) -> None:
    small.pinned(tmp_path / "a")
    (tmp_path / "a" / name).unlink()
    found = errors(tmp_path / "a")
    assert name in " ".join(finding.where + finding.why for finding in found)
    assert {finding.id for finding in found} <= {"artifact-incomplete", "usage", "lock-missing"}


def test_a_missing_part_of_the_archive_is_named(small: Small, tmp_path: Path) -> None:
    small.pinned(tmp_path / "a", split=100_000)
    second = sorted((tmp_path / "a").glob(ARCHIVE))[1]
    second.unlink()
    assert f"image/{second.name}" in [finding.where for finding in errors(tmp_path / "a")]


def test_a_file_that_is_not_listed_is_told(small: Small, tmp_path: Path) -> None:
    small.pinned(tmp_path / "a")
    (tmp_path / "a" / "mine.py").write_text("print(1)\n")
    found = check(tmp_path / "a", Silent())
    assert found.holds
    assert [(finding.id, finding.where) for finding in found.findings] == [("artifact-unlisted", "mine.py")]
    seal.write(tmp_path / "a", {}, Silent())
    assert check(tmp_path / "a", Silent()).findings == ()


class Forgery(NamedTuple):
    """A change that is sealed again, and where the check sees it."""

    name: str
    old: str
    new: str
    where: str


@pytest.mark.parametrize(
    "forgery",
    [
        Forgery(layout.LOCK, "seed: 7", "seed: 8", layout.IMAGE),
        Forgery(layout.SBOM, "BSD-3-Clause", "MIT", layout.SBOM),
        Forgery(f"{layout.CONTEXT}/Dockerfile", "CMD", "# CMD", f"{layout.CONTEXT}/Dockerfile"),
        Forgery(layout.REQUIREMENTS, "torch==1", "torch==2", layout.REQUIREMENTS),
        Forgery(layout.SPEC, "2.13.0", "2.12.0", layout.SPEC),
        Forgery(layout.IMAGE, "Debian bookworm", "Debian trixie", layout.IMAGE),
    ],
    ids=lambda forgery: forgery.name,
)
def test_parts_that_do_not_agree(small: Small, tmp_path: Path, forgery: Forgery) -> None:
    small.pinned(tmp_path / "a")
    path = tmp_path / "a" / forgery.name
    path.write_text(path.read_text().replace(forgery.old, forgery.new))
    seal.write(tmp_path / "a", {}, Silent())
    found = {finding.where: finding.id for finding in errors(tmp_path / "a")}
    assert found[forgery.where] == "artifact-differs"


def test_another_image_in_the_archive(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sealed again, so that only the contents can tell."""
    small.pinned(tmp_path / "a")
    (archive,) = (tmp_path / "a").glob(ARCHIVE)
    raw = archive.read_bytes()
    archive.write_bytes(raw.replace(b"BSD-3-Clause", b"BSD-2-Clause"))
    seal.write(tmp_path / "a", {}, Silent())
    assert any("archive is damaged" in finding.what for finding in errors(tmp_path / "a"))


@pytest.mark.parametrize("choices", [{"compression": "zstd"}, {"split": 100_000}, {"compression": "zstd", "split": 1000}])
def test_the_archive_in_other_forms_is_the_same_image(small: Small, tmp_path: Path, choices: dict[str, object]) -> None:
    plain = small.pinned(tmp_path / "plain").record
    other = small.pinned(tmp_path / "other", **choices).record
    assert (other.manifest_digest, other.rootfs_digest, other.layers) == (plain.manifest_digest, plain.rootfs_digest, plain.layers)
    assert errors(tmp_path / "other") == []
    parts = sorted((tmp_path / "other").glob(ARCHIVE))
    assert (len(parts) > 1) == ("split" in choices)
    (whole,) = (tmp_path / "plain").glob(ARCHIVE)
    (tmp_path / "joined").write_bytes(b"".join(part.read_bytes() for part in parts))
    if "compression" not in choices:
        assert (tmp_path / "joined").read_bytes() == whole.read_bytes()
    elif shutil.which("zstd"):
        assert subprocess.run(["zstd", "-dc", tmp_path / "joined"], capture_output=True, check=True).stdout == whole.read_bytes()


def test_other_choices_leave_nothing_behind(small: Small, tmp_path: Path) -> None:
    small.pinned(tmp_path / "a", split=100_000, vendor="wheels")
    (tmp_path / "a" / "mine.txt").write_text("an author's own\n")
    small.pinned(tmp_path / "a", vendor="none")
    small.pinned(tmp_path / "b", vendor="none")
    assert set(seal.read_sums(tmp_path / "a")) - set(seal.read_sums(tmp_path / "b")) == {"mine.txt"}


def test_an_interrupted_run_goes_on(small: Small, tmp_path: Path) -> None:
    whole = small.pinned(tmp_path / "whole")
    small.opened.clear()
    small.fails_at = "self-test, start-up hook, lock"
    with pytest.raises(KeyboardInterrupt):
        small.pinned(tmp_path / "a")
    assert small.opened == ["Debian bookworm, 2 packages", "2 wheels"]
    assert not list((tmp_path / "a").glob("image/*.tar"))
    small.opened.clear()
    small.fails_at = ""
    assert small.pinned(tmp_path / "a").seal == whole.seal
    assert small.opened == ["self-test, start-up hook, lock"]
    assert not list((tmp_path / "a").rglob(f"*{UNFINISHED}"))


def test_what_an_interrupted_run_left_is_not_trusted(small: Small, tmp_path: Path) -> None:
    whole = small.pinned(tmp_path / "whole")
    small.fails_at = "self-test, start-up hook, lock"
    with pytest.raises(KeyboardInterrupt):
        small.pinned(tmp_path / "a")
    (left,) = (tmp_path / "a").glob(f"image/*{UNFINISHED}")
    raw = bytearray(left.read_bytes())
    raw[len(raw) // 2] ^= 1
    left.write_bytes(raw)
    small.fails_at = ""
    assert small.pinned(tmp_path / "a").seal == whole.seal


def test_a_layer_that_is_another(small: Small, tmp_path: Path) -> None:
    digest = small.image.layers[1].diff_id
    small.tars[digest] = small.tars[digest].replace(b"BSD-3-Clause", b"BSD-2-Clause")
    with pytest.raises(Exception, match="the layer with 2 wheels is not the image's"):
        small.pinned(tmp_path / "a")


def test_what_was_edited_by_hand_is_kept(small: Small, tmp_path: Path) -> None:
    small.pinned(tmp_path / "a")
    appendix = tmp_path / "a" / layout.APPENDIX_MD
    appendix.write_text("# Mine\n")
    small.pinned(tmp_path / "a")
    assert appendix.read_text() == "# Mine\n"
    assert errors(tmp_path / "a") == []


def test_a_folder_of_other_things(small: Small, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.txt").write_text("do not touch\n")
    with pytest.raises(UsageError, match="holds other things"):
        small.pinned(tmp_path / "a")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["thesis.txt"]


def test_the_artifact_of_another_lock(small: Small, tmp_path: Path) -> None:
    small.pinned(tmp_path / "a")
    small.lock = small.lock.model_copy(update={"epoch": 1})
    with pytest.raises(UsageError, match="another lock"):
        small.pinned(tmp_path / "a")


def test_no_space_is_said_before_anything_is_written(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000, "total": 1000, "used": 0}))
    with pytest.raises(DiskFull, match="does not fit"):
        small.pinned(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_damaged_store_is_seen(small: Small, tmp_path: Path) -> None:
    path = small.store.path(small.lock.wheels[0].sha256)
    raw = bytearray(path.read_bytes())
    raw[50] ^= 1
    path.chmod(0o644)
    path.write_bytes(raw)
    with pytest.raises(DownloadDamaged, match="store's copy of torch"):
        small.pinned(tmp_path / "a")
    assert not (tmp_path / "a" / layout.SEAL).exists()


def test_a_file_of_the_spec_that_is_not_at_hand(small: Small, tmp_path: Path) -> None:
    gone = CopiedFile(source="src/train.py", to="/workspace/train.py", sha256="0" * 64, size=1)
    small.lock = small.lock.model_copy(update={"files": (gone,)})
    small.spec = None  # type: ignore[assignment]
    with pytest.raises(FileGone, match=r"src/train\.py"):
        small.pinned(tmp_path / "a")


def test_a_folder_that_is_no_artifact(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not an artifact"):
        check(tmp_path, Silent())


def test_reports_come_along(small: Small, tmp_path: Path) -> None:
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "report.json").write_text(to_json(report_of(small)))
    (tmp_path / "report" / "report.md").write_text("# fine\n")
    (tmp_path / "report" / "junit.xml").write_text("<testsuites />\n")
    small.pinned(tmp_path / "a", reports=(tmp_path / "report",))
    assert errors(tmp_path / "a") == []
    crate = json.loads((tmp_path / "a" / layout.CRATE).read_text())
    assert [row["object"] for row in crate["@graph"] if row["@type"] == "CreateAction"] == [{"@id": "#image"}]
    assert "NVIDIA H100" in (tmp_path / "a" / layout.APPENDIX_MD).read_text()
    assert {path.name for path in (tmp_path / "a" / "reports" / "01-verify").iterdir()} == {"report.json", "report.md", "junit.xml"}


def report_of(small: Small) -> Report:
    report = make_report()
    return report.model_copy(update={"image": report.image.model_copy(update={"image_digest": small.image.digest})})


def test_a_report_of_another_image(small: Small, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(to_json(make_report()))
    with pytest.raises(NotPinnable, match="not about this image"):
        small.pinned(tmp_path / "a", reports=(tmp_path / "report.json",))


def test_the_spec_of_another_lock(small: Small) -> None:
    small.spec.write_text(small.spec.read_text().replace("2.13.0", "2.12.0"))
    with pytest.raises(NotPinnable, match="is not the spec of this lock"):
        fitting(small.spec, small.lock)


def test_a_rebuild_that_differs_names_the_layer(small: Small, tmp_path: Path) -> None:
    record = small.pinned(tmp_path / "a").record
    made = list(small.image.layers)
    assert differences(record, record.manifest_digest, made) == []
    made[1] = Layer(f"sha256:{'0' * 64}", 1, made[1].holds)
    (finding,) = differences(record, f"sha256:{'1' * 64}", made)
    assert "the layer with 2 wheels" in finding.why
