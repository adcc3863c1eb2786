"""The same key must have the same bits; another key is no reference, never right or wrong."""

import pytest
from sample_report import CHECKS, HOST, check, fingerprint, report

from envlock.errors import Exit, FileUnreadable, UsageError
from envlock.reference import Recorded, held_against, merged, read, record, write
from envlock.report import judge

TRUSTED = report()
REFERENCE = record(TRUSTED)


def verdict(made, reference=REFERENCE):
    checks = (*made.checks, *held_against(made, reference))
    return judge(checks)[0], {c.device: (c.status, c.why) for c in checks if c.group == "reference"}


def changed(letter="e", **depends):
    """The report with the GPU's matrix product computed otherwise, or under other fields."""
    old = fingerprint(letter, "cuda:0")
    new = old.model_copy(update={"depends": {**old.depends, **depends}})
    return report(checks=(*CHECKS[:3], CHECKS[3].model_copy(update={"fingerprints": (new,)}), *CHECKS[4:]))


def test_the_same_bits_hold():
    outcome, found = verdict(TRUSTED)
    assert outcome == "pass"
    assert {device: status for device, (status, _) in found.items()} == {"cpu": "pass", "cuda:0": "pass"}
    assert "gpu-box" in found["cpu"][1]


def test_other_bits_under_the_same_key_fail():
    outcome, found = verdict(changed("e"))
    assert outcome == "fail"
    assert found["cuda:0"][0] == "fail"
    assert "Matrix product" in found["cuda:0"][1]
    assert "550.54.15" in found["cuda:0"][1]


OTHER_KEYS = (
    {"gpu.model": "NVIDIA A100"},
    {"gpu.sm_count": "114"},
    {"gpu.mig": "3g.40gb"},
    {"image": "sha256:" + "9" * 64},
    {"level": "seeded"},
    {"selftest": "2"},
)


@pytest.mark.parametrize("depends", OTHER_KEYS)
@pytest.mark.parametrize("letter", ["d", "e"])
def test_another_key_is_no_reference(depends, letter):
    outcome, found = verdict(changed(letter, **depends))
    assert outcome == "inconclusive"
    assert found["cuda:0"][0] == "not-run"
    assert "no reference for this GPU" in found["cuda:0"][1]
    assert next(iter(depends)) in found["cuda:0"][1]


def test_the_driver_is_no_part_of_the_key():
    other = report(host=HOST.model_copy(update={"driver": "570.1", "name": "other-box"}))
    assert verdict(other)[0] == "pass"
    assert REFERENCE.fingerprints[0].driver == "550.54.15"


def test_a_report_without_fingerprints_is_inconclusive():
    assert verdict(report(checks=(check("x"),)))[0] == "inconclusive"


def test_only_checks_that_passed_are_recorded():
    failed = check("y", status="fail", fingerprints=(fingerprint(),))
    assert "y" not in {recorded.check for recorded in record(report(failed)).fingerprints}


def test_recording_adds_to_what_other_machines_recorded(tmp_path):
    path = tmp_path / "new" / "reference.json"
    write(path, REFERENCE)
    write(path, record(changed("e", **{"gpu.model": "NVIDIA A100"})))
    write(path, REFERENCE)
    assert len(read(path).fingerprints) == 3
    assert verdict(TRUSTED, read(path))[0] == "pass"
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["reference.json"]


def test_two_machines_that_disagree_are_not_merged(tmp_path):
    path = tmp_path / "reference.json"
    write(path, REFERENCE)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="disagree"):
        write(path, record(changed("e")))
    assert path.read_bytes() == before


def test_a_folder_is_all_the_references_in_it(tmp_path):
    write(tmp_path / "a.json", REFERENCE)
    write(tmp_path / "b.json", record(changed("e", **{"gpu.model": "NVIDIA A100"})))
    assert len(read(tmp_path).fingerprints) == 3


def test_what_is_no_reference_is_told(tmp_path):
    (tmp_path / "x.json").write_text('{"version": 1, "fingerprints": [{"check": 1}]}')
    with pytest.raises(UsageError, match="not a reference"):
        read(tmp_path / "x.json")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(UsageError, match="not a reference"):
        read(tmp_path / "x.json")
    with pytest.raises(FileUnreadable):
        read(tmp_path / "missing.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileUnreadable):
        read(tmp_path / "empty")


def test_a_strangers_reference_does_not_steer_the_terminal(tmp_path):
    recorded = REFERENCE.fingerprints[0].model_copy(update={"host": "\x1b[2Jbox"})
    write(tmp_path / "x.json", REFERENCE.model_copy(update={"fingerprints": (recorded,)}))
    assert read(tmp_path / "x.json").fingerprints[0].host == "�[2Jbox"


def test_a_reference_does_not_depend_on_the_order_of_fields():
    first = REFERENCE.fingerprints[0]
    turned = Recorded(**{**first.model_dump(), "depends": dict(reversed(first.depends.items()))})
    assert merged([REFERENCE, REFERENCE.model_copy(update={"fingerprints": (turned,)})]).fingerprints == merged([REFERENCE]).fingerprints


def test_exit_status_of_a_missing_reference_is_inconclusive():
    made = changed("d", **{"gpu.model": "NVIDIA A100"})
    checks = (*made.checks, *held_against(made, REFERENCE))
    outcome, summary = judge(checks)
    assert report(checks=checks, verdict=outcome, summary=summary).exit_code(allow_partial=False) == Exit.INCONCLUSIVE
