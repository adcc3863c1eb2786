"""What differs between locks, specs and images, in a researcher's terms."""

from __future__ import annotations

from pathlib import Path

import pytest
from stand_in_engine import StandInEngine, sample_image, sample_lock

from envlock import lock as locks
from envlock.diff import Change, Diff, diff
from envlock.errors import UsageError
from envlock.lock import Built, Deb, LockFile, Settings, Wheel
from envlock.portrait import of_image, of_lock
from envlock.progress import Silent
from envlock.rootfs import Difference
from envlock.sides import Sides
from envlock.treediff import Explained, TreeComparison

OLD = sample_lock()


def wheel(name: str, version: str, letter: str = "a") -> Wheel:
    return Wheel(name=name, version=version, file=f"{name}.whl", sha256=letter * 64, size=1, index="default")


def deb(name: str, version: str) -> Deb:
    return Deb(name=name, version=version, architecture="amd64", archive="debian", path=f"pool/{name}.deb", sha256="b" * 64, size=1)


def with_stack(**changes):
    return sample_lock(stack=OLD.stack.model_copy(update=changes))


def with_base(**changes):
    return sample_lock(base=OLD.base.model_copy(update=changes))


def with_settings(**changes):
    return sample_lock(determinism=OLD.determinism.model_copy(update=changes))


def new(name: str, value: str) -> dict[str, tuple[None, str]]:
    return {name: (None, value)}


def changes(new, old=OLD) -> dict[str, tuple[str | None, str | None]]:
    found, _ = diff(of_lock(old, None, "old"), of_lock(new, None, "new"))
    return {change.name: (change.was, change.now) for change in found}


def means(new, name: str) -> str:
    found, _ = diff(of_lock(OLD, None, "old"), of_lock(new, None, "new"))
    return next(change.means for change in found if change.name == name)


def test_a_lock_does_not_differ_from_itself():
    assert changes(OLD) == {}


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (with_stack(torch="2.6.0"), {"torch": ("2.5.1", "2.6.0")}),
        (with_stack(cudnn="9.5.1"), {"cuDNN": (None, "9.5.1")}),
        (with_stack(driver_floor="550.54.14"), {"driver floor": ("525.60.13", "550.54.14")}),
        (with_stack(architectures=("sm_90", "sm_100")), {"architectures dropped": ("sm_80", None), **new("architectures added", "sm_100")}),
        (with_stack(gpus=("sm_80", "sm_90")), {"target GPUs": ("sm_90", "sm_80 sm_90")}),
        (with_stack(cuda=None, driver_floor=None), {"CUDA": ("12.4", None), "driver floor": ("525.60.13", None)}),
        (with_settings(level="seeded", tf32=True), {"level": ("strict", "seeded"), "TF32": ("false", "true")}),
        (sample_lock(environment={**OLD.environment, "HF_HOME": "/data"}), {"HF_HOME": (None, "/data")}),
        (sample_lock(wheels=(wheel("numpy", "1.26.4"),)), {"numpy": (None, "1.26.4")}),
        (with_base(snapshot="20270101T000000Z"), {"debian bookworm moved": (f"snapshot {OLD.base.snapshot}", "snapshot 20270101T000000Z")}),
        (with_base(suite="trixie"), {"base": ("debian bookworm", "debian trixie")}),
        (with_base(debs=(deb("libc6", "2.36"),)), new("libc6", "2.36")),
        (sample_lock(epoch=1), {"epoch": ("0", "1")}),
    ],
)  # fmt: skip
def test_each_kind_of_change_has_its_name(new, expected):
    assert changes(new) == expected


def test_what_a_change_means_is_said():
    assert "550.54.14 can no longer run it" in means(with_stack(driver_floor="550.54.14"), "driver floor")
    assert means(with_stack(driver_floor="450.80"), "driver floor").startswith("lowered")
    assert means(with_stack(driver_floor=None), "driver floor") == "it needs no driver any more"


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_another_file_of_one_version_is_seen(name):
    old, new = sample_lock(wheels=(wheel(name, "1", "a"),)), sample_lock(wheels=(wheel(name, "1", "c"),))
    assert changes(new, old) == {name: ("1 (aaaaaaaaaaaa)", "1 (cccccccccccc)")}


def test_every_input_of_a_lock_counts():
    """Whatever changes the lock digest is named: no input may be forgotten."""
    other = {
        "name": "other", "spec": "sha256:" + "9" * 64, "epoch": 7, "wheels": (wheel("x", "1"),), "installer": wheel("installer", "2"),
        "shipped": OLD.shipped.model_copy(update={"sha256": "3" * 64}), "environment": {}, "run": locks.Run(user="1"),
        "files": (locks.CopiedFile(source="a", to="/a", sha256="4" * 64, size=1),), "stack": OLD.stack.model_copy(update={"torch": "1"}),
        "base": OLD.base.model_copy(update={"suite": "trixie"}), "determinism": Settings(level="off", seed=0, tf32=False, threads=4),
        "apt": locks.Apt(asked=("git",), date=0, debs=(deb("git", "1"),)), "tools": {"uv": "1"}, "rules": locks.Rules(layer=2),
        "requirements": {"requirements.txt": "5" * 64},
    }  # fmt: skip
    assert other.keys() == locks.Lock.model_fields.keys() - {"version"}
    assert {name for name, value in other.items() if not changes(sample_lock(**{name: value}))} == set()


def test_an_image_is_what_its_lock_says_with_the_environment_that_it_has():
    image = sample_image(OLD, environment={**OLD.environment, "LATER": "1"}, digest="sha256:" + "e" * 64)
    recorded = Built(lock=OLD.digest, image_digest="sha256:" + "f" * 64, manifest_digest="sha256:" + "f" * 64, diff_ids=())
    found, _ = diff(of_lock(OLD, recorded, "lock"), of_image(image, OLD, "image"))
    assert [(change.name, change.now) for change in found] == [("LATER", "1"), ("image digest", image.digest)]


def test_an_image_of_somebody_else_tells_what_its_config_says():
    told = {"CUDA_VERSION": "12.1.0", "NV_CUDNN_VERSION": "8.9.0.131", "PYTORCH_VERSION": "2.1.0"}
    found, silent = diff(of_lock(OLD, None, "a"), of_image(sample_image(environment=told), None, "b"))
    stack = {change.name: (change.was, change.now) for change in found if change.topic == "stack"}
    assert stack == {"torch": ("2.5.1", "2.1.0"), "CUDA": ("12.4", "12.1.0"), "cuDNN": (None, "8.9.0.131")}
    assert silent == ("determinism, versions of packages, versions of Debian packages, files of the spec: b does not tell",)


SPEC = 'name: sample\nstack: {torch: "2.5.1", cuda: cpu}\npackages: ["numpy<2", "einops"]\n'


def test_a_spec_is_held_against_what_is_locked(tmp_path: Path):
    (tmp_path / "s.yaml").write_text(SPEC)
    (tmp_path / "s.lock.yaml").write_bytes(locks.dump(LockFile(lock=sample_lock(wheels=(wheel("numpy", "2.1.0"),)))))
    sides = Sides(lambda: pytest.fail("no engine is needed"))
    for names, expected in (
        (("s.yaml", "s.lock.yaml"), ("numpy<2", "numpy 2.1.0")),
        (("s.lock.yaml", "s.yaml"), ("numpy 2.1.0", "numpy<2")),
    ):
        found, _ = diff(*sides.pair(*(str(tmp_path / name) for name in names)))
        asked = {change.name: (change.was, change.now) for change in found if change.topic == "packages asked for"}
        assert asked["numpy"] == expected
        assert None in asked["einops"]


def test_two_specs_are_compared_by_what_they_ask(tmp_path: Path):
    (tmp_path / "a.yaml").write_text(SPEC)
    (tmp_path / "b.yaml").write_text(SPEC.replace("numpy<2", "numpy<3"))
    found, _ = diff(*Sides(lambda: pytest.fail("no engine is needed")).pair(str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")))
    assert found == (Change("packages asked for", "numpy", "numpy<2", "numpy<3"),)


def test_a_spec_has_no_files():
    engine = StandInEngine(sample_image(OLD), OLD)
    spec = of_lock(OLD, None, "s.yaml")
    with pytest.raises(UsageError, match="is a spec"):
        Sides(lambda: engine).compare_files(type(spec)(name="s.yaml", kind="spec", stack={}), spec, Silent())


def test_the_text_says_the_count_and_arrows():
    found, silent = diff(of_lock(OLD, None, "old"), of_lock(with_stack(torch="2.6.0"), None, "new"))
    text = Diff("old", "new", found, silent).as_text()
    assert text == "1 difference between old and new\n\nstack\n  torch  2.5.1 → 2.6.0"
    assert Diff("a", "b", (), ()).as_text() == "no difference between a and b"


def test_files_that_alone_differ_are_no_equality():
    files = TreeComparison("a", "b", (Explained(Difference("/x", "content"), "", ""),), 0)
    assert Diff("a", "b", (), (), files).as_text().startswith("no difference but in files between a and b\n")
