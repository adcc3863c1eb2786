"""Locks on disk: where they stand, which is meant, whether they still fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_locks import built_of, cpu_lock, deb, wheel

from envlock import lock as locks
from envlock import locking
from envlock.errors import EnvlockError, Exit, LockMissing, exit_code_of
from envlock.lock import Built, Lock, LockFile
from envlock.locking import ChosenLock, MadeLock, changes_between, find_lock, lock_path_of, solve_file, staleness
from envlock.outside import Outside
from envlock.progress import Silent
from envlock.sources import hash_requirements, list_files
from envlock.stack import completed
from envlock.store import Store

SPEC = """\
name: sample
python: "3.11"
stack: {torch: "2.13.0", cuda: cpu}
requirements: [requirements.txt]
files: [{from: src, to: /workspace}]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a spec, what it names, and a lock that fits."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.py").write_text("a\n")
    (tmp_path / "requirements.txt").write_text("numpy\n")
    (tmp_path / "sample.yaml").write_text(SPEC)
    lock_it(tmp_path / "sample.yaml")
    return tmp_path


def lock_it(path: Path, built: Built | None = None) -> Lock:
    spec, solution = solve_file(path)
    lock = cpu_lock(
        name=spec.name,
        spec=spec.digest,
        stack=completed(solution.stack, cpu_lock().wheels),
        files=list_files(spec, path.parent),
        requirements=hash_requirements(spec, path.parent),
    )
    lock_path_of(path).write_bytes(locks.dump(LockFile(lock=lock, built=built)))
    return lock


def test_a_lock_stands_beside_its_spec_unless_there_is_a_folder_for_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tmp_path / "examples/cpu.yaml"
    spec.parent.mkdir()
    assert lock_path_of(spec) == tmp_path / "examples/cpu.lock.yaml"
    (tmp_path / "lockfiles").mkdir()
    assert lock_path_of(spec) == tmp_path / "lockfiles/cpu.lock.yaml"
    (tmp_path / "examples/lockfiles").mkdir()
    assert lock_path_of(spec) == tmp_path / "examples/lockfiles/cpu.lock.yaml"
    monkeypatch.chdir(tmp_path)
    assert lock_path_of(Path("examples/cpu.yaml")) == Path("examples/lockfiles/cpu.lock.yaml")


def test_spec_and_lock_are_told_apart_by_name_and_by_content(project: Path) -> None:
    lock_path = project / "sample.lock.yaml"
    renamed = lock_path.rename(project / "other.yaml")
    assert not locking.is_lock(project / "sample.yaml")
    assert locking.is_lock(renamed)
    assert locking.is_lock(project / "absent.lock.yaml")
    assert find_lock(renamed).spec_folder is None


def test_a_spec_stands_for_its_lock(project: Path) -> None:
    chosen = find_lock(project / "sample.yaml")
    assert chosen.path == project / "sample.lock.yaml"
    assert chosen.spec_folder == project
    assert find_lock(project / "sample.lock.yaml").lock == chosen.lock


def test_a_spec_without_a_lock(project: Path) -> None:
    (project / "sample.lock.yaml").unlink()
    with pytest.raises(LockMissing) as caught:
        find_lock(project / "sample.yaml")
    assert f"envlock lock {project / 'sample.yaml'}" in caught.value.hint


@pytest.mark.parametrize(
    ("file", "text", "what"),
    [
        ("sample.yaml", SPEC.replace("3.11", "3.12"), "the spec changed"),
        ("sample.yaml", SPEC + "env: {A: b}\n", "the spec changed"),
        ("requirements.txt", "numpy<2\n", "requirements.txt changed"),
        ("src/a.py", "b\n", "what goes to /workspace/a.py changed"),
        ("src/new.py", "a\n", "what goes to /workspace/new.py changed"),
    ],
)
def test_what_changed_since_is_named(project: Path, file: str, text: str, what: str) -> None:
    (project / file).write_text(text)
    with pytest.raises(EnvlockError) as caught:
        find_lock(project / "sample.yaml")
    assert exit_code_of(caught.value) is Exit.LOCK
    first, *_, last = caught.value.findings
    assert what in first.what
    assert (first.id, first.severity) == ("lock-stale", "error")
    assert "envlock lock" in last.what
    # The lock itself can still be built.
    assert find_lock(project / "sample.lock.yaml").lock.name == "sample"


def test_a_comment_or_another_layout_of_the_spec_changes_nothing(project: Path) -> None:
    (project / "sample.yaml").write_text("# a comment\n" + SPEC.replace('{torch: "2.13.0", cuda: cpu}', "\n  cuda: cpu\n  torch: 2.13.0"))
    find_lock(project / "sample.yaml")


def test_a_file_that_became_executable_or_went_is_a_change(project: Path) -> None:
    (project / "src/a.py").chmod(0o755)
    with pytest.raises(EnvlockError, match=r"/workspace/a\.py"):
        find_lock(project / "sample.yaml")
    (project / "src/a.py").unlink()
    with pytest.raises(EnvlockError, match=r"/workspace/a\.py"):
        find_lock(project / "sample.yaml")


def test_all_that_changed_is_told_at_once(project: Path) -> None:
    (project / "requirements.txt").write_text("scipy\n")
    (project / "src/a.py").write_text("b\n")
    (project / "src/b.py").write_text("b\n")
    spec, _ = solve_file(project / "sample.yaml")
    found = staleness(spec, project, locks.read(project / "sample.lock.yaml").lock)
    assert [finding.what.split()[0] for finding in found] == ["requirements.txt", "what", "what"]


def test_a_lock_of_an_older_catalogue_is_stale(project: Path) -> None:
    lock = find_lock(project / "sample.yaml").lock
    older = lock.model_copy(update={"stack": lock.stack.model_copy(update={"architectures": ("sm_50",)})})
    spec, _ = solve_file(project / "sample.yaml")
    (found,) = staleness(spec, project, older)
    assert "architectures" in found.what
    assert staleness(spec, project, lock) == []


def test_what_came_out_is_recorded_once(project: Path) -> None:
    chosen = find_lock(project / "sample.lock.yaml")
    built = built_of(chosen.lock, "base")
    chosen.record(built)
    assert find_lock(chosen.path).built == built
    assert find_lock(chosen.path).lock == chosen.lock
    written = chosen.path.stat().st_mtime_ns
    find_lock(chosen.path).record(built)
    assert chosen.path.stat().st_mtime_ns == written


@pytest.mark.parametrize("name", ["cpu.lock.yaml", "cpu.yaml", "cpu.json"])
def test_what_belongs_to_a_lock_is_named_after_it(name: str) -> None:
    assert ChosenLock(Path("a") / name, cpu_lock(), None).sibling(".Dockerfile") == Path("a/cpu.Dockerfile")


def test_changes_between_locks_are_versions() -> None:
    old = cpu_lock()
    base = old.base.model_copy(update={"debs": (deb("base-files", "2"), deb("python3"))})
    new = cpu_lock(wheels=(wheel("numpy", "2.3.0"), *old.wheels[2:], wheel("scipy", "1.16")), base=base)
    assert list(changes_between(old, new)) == [
        "base-files (Debian): 1 → 2",
        "numpy: 2.2.6 → 2.3.0",
        "scipy: absent → 1.16",
        "sympy: 1.14.0 → gone",
    ]
    summary = MadeLock(new, (), True, tuple(changes_between(old, new))).summary(Path("x.lock.yaml"))
    assert summary.splitlines()[0] == "x.lock.yaml  written: 3 wheels (300 MB), 2 Debian packages"
    assert new.digest in summary


def test_checking_a_lock_tells_of_its_spec_and_of_every_outside_source(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = (
        Outside("there.whl", "there", "the index", "", stored=False),
        Outside("old.whl", "delisted", "the index", "no page names it", stored=False),
        Outside("lost.deb", "gone", "the mirror", "it answers 404", stored=False),
        Outside("kept.deb", "gone", "the mirror", "it answers 404", stored=True),
    )
    monkeypatch.setattr(locking, "sources_of", lambda lock, store, progress: sources)
    (project / "src/a.py").write_text("changed\n")
    found = locking.check_lock(project / "sample.yaml", project / "sample.lock.yaml", Store(project / "store"), Silent())
    assert [(finding.id, finding.severity) for finding in found] == [
        ("lock-stale", "error"),
        ("source-delisted", "warning"),
        ("source-gone", "error"),
        ("source-gone", "warning"),
    ]
