"""Torch's flags, set for a block and put back."""

from __future__ import annotations

import pytest
import torch

from envlock.runtime import deterministic, flags


def state() -> dict[str, object]:
    return flags.in_force(torch, flags.wanted(torch, "strict"))


def test_a_level_holds_in_its_block_and_no_longer() -> None:
    before = state()
    with deterministic("strict"):
        assert state() == flags.wanted(torch, "strict")
        with deterministic("off"):
            assert not torch.are_deterministic_algorithms_enabled()
        assert torch.are_deterministic_algorithms_enabled()
    assert state() == before


def test_flags_are_put_back_after_an_error() -> None:
    before = state()
    with pytest.raises(ZeroDivisionError), deterministic("strict"):
        raise ZeroDivisionError
    assert state() == before


def test_strict_refuses_what_deterministic_only_warns_of() -> None:
    def put() -> None:
        torch.zeros(5).put_(torch.tensor([0, 0]), torch.ones(2))

    with deterministic("strict"), pytest.raises(RuntimeError, match="deterministic"):
        put()
    with deterministic("deterministic"), pytest.warns(UserWarning, match="deterministic"):
        put()
    with deterministic("off"):
        put()


def test_tf32_is_a_choice() -> None:
    assert flags.wanted(torch, "strict")["torch.backends.cudnn.conv.fp32_precision"] == "ieee"
    assert flags.wanted(torch, "strict", tf32=True)["torch.backends.cudnn.conv.fp32_precision"] == "tf32"
    with deterministic("strict", tf32=True):
        assert torch.backends.cuda.matmul.allow_tf32
        assert torch.backends.cudnn.allow_tf32
        assert torch.get_float32_matmul_precision() == "high"
    with deterministic("strict"):
        assert not torch.backends.cuda.matmul.allow_tf32
        assert not torch.backends.cudnn.allow_tf32


def test_flags_that_an_older_torch_lacks_are_passed_over() -> None:
    class Matmul:
        allow_tf32 = True

        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"Unknown attribute {name}")

    class Cudnn:
        allow_tf32 = deterministic = benchmark = True

    class Old:
        class backends:  # noqa: N801
            class cuda:  # noqa: N801
                matmul = Matmul()

            cudnn = Cudnn()

        are_deterministic_algorithms_enabled = staticmethod(lambda: False)

    wanted = flags.wanted(Old, "strict")  # type: ignore[arg-type]
    assert wanted["torch.backends.cuda.matmul.allow_tf32"] is False
    assert wanted["torch.backends.cudnn.allow_tf32"] is False
    assert not any("fp32_precision" in name for name in wanted)


def test_a_level_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="strikt"), deterministic("strikt"):
        pass
