"""Of many hosts the one that computes other bits is named, and what is different about it."""

import json

from sample_report import CHECKS, H100, HOST, check, fingerprint, report

from envlock.comparison import compare, to_text
from envlock.errors import Exit


def host(name, *, letter="d", driver="550.54.15", model=None, kernel="6.1.0"):
    gpu = H100.model_copy(update={"uuid": f"GPU-{name}", "name": model or H100.name})
    print_ = fingerprint(letter, "cuda:0")
    if model:
        print_ = print_.model_copy(update={"depends": {**print_.depends, "gpu.model": model}})
    checks = (*CHECKS[:3], CHECKS[3].model_copy(update={"fingerprints": (print_,)}), *CHECKS[4:])
    return report(checks=checks, host=HOST.model_copy(update={"name": name, "driver": driver, "gpus": (gpu,), "kernel": kernel}))


def test_a_sound_fleet_is_equal():
    found = compare([host("a"), host("b"), host("c")])
    assert (found.outcome, found.exit, found.compared) == ("equal", Exit.OK, 2)


def test_the_odd_gpu_in_a_fleet_is_named():
    found = compare([host("a"), host("b", letter="e"), host("c")])
    assert (found.outcome, found.exit) == ("different", Exit.DOES_NOT_HOLD)
    (difference,) = found.differences
    assert difference.odd == ("b cuda:0",)
    assert "b cuda:0" in found.summary


def test_a_driver_that_separates_them_is_named():
    old = {"letter": "e", "driver": "535.161.08"}
    found = compare([host("a"), host("b", **old), host("c"), host("d", **old), host("e")])
    assert any("driver (535.161.08, 550.54.15)" in fact for fact in found.differences[0].separates)
    assert "driver" in found.summary
    assert found.differences[0].odd == ("b cuda:0", "d cuda:0")


def test_what_is_the_same_everywhere_separates_nothing():
    (difference,) = compare([host("a"), host("b", letter="e"), host("c")]).differences
    assert not any(fact.startswith(("driver", "kernel")) for fact in difference.separates)


def test_two_that_disagree_have_no_majority():
    (difference,) = compare([host("a"), host("b", letter="e")]).differences
    assert difference.odd == ("a cuda:0", "b cuda:0")


def test_other_gpu_models_are_not_held_against_each_other():
    found = compare([host("a"), host("b", letter="e", model="NVIDIA A100")])
    assert (found.outcome, found.compared) == ("equal", 1)


def test_other_images_cannot_be_compared():
    image = report().image.model_copy(update={"image_digest": "sha256:" + "9" * 64})
    other = fingerprint()
    other = other.model_copy(update={"depends": {**other.depends, "image": image.image_digest}})
    found = compare([report(), report(image=image, checks=(check("repeat.matmul", fingerprints=(other,)),))])
    assert (found.outcome, found.exit) == ("inconclusive", Exit.INCONCLUSIVE)
    assert "image digest" in found.summary


def test_a_check_that_fails_on_one_host_is_named():
    failing = report(checks=(CHECKS[0], CHECKS[1].model_copy(update={"status": "fail"})), host=HOST.model_copy(update={"name": "b"}))
    found = compare([report(), failing])
    assert found.outcome == "different"
    assert found.statuses[0].statuses == {"gpu-box cpu": "pass", "b cpu": "fail"}


def test_two_reports_of_one_host_are_told_apart():
    found = compare([host("a"), host("a", letter="e")])
    assert set(found.differences[0].values) == {"a cuda:0 (report 1)", "a cuda:0 (report 2)"}


def test_text_and_json_name_the_odd_one():
    found = compare([host("a"), host("b", letter="e"), host("c")])
    assert "b cuda:0  eeeeeeeeeeeeeeee  <- differs" in to_text(found)
    assert json.loads(json.dumps(found.as_json()))["differences"][0]["odd"] == ["b cuda:0"]
