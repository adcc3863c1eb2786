"""Fingerprints see bits, names, types and shapes; and nothing else."""

from __future__ import annotations

import numpy
import pytest
import torch

from envlock.runtime import fingerprint, gradient_fingerprint


def test_order_and_place_do_not_count() -> None:
    values = torch.randn(6, 4)
    assert fingerprint({"a": values, "b": values + 1}) == fingerprint({"b": values + 1, "a": values})
    assert fingerprint(values.T.contiguous()) == fingerprint(values.T)
    assert fingerprint(values[::2]) == fingerprint(values[::2].clone())


@pytest.mark.parametrize(
    "other",
    [
        torch.tensor([1.0, -0.0]),
        torch.tensor([1.0000001, 0.0]),
        torch.tensor([1.0, 0.0], dtype=torch.float64),
        torch.tensor([[1.0, 0.0]]),
        [torch.tensor([1.0, 0.0])],
        {"x": torch.tensor([1.0, 0.0])},
    ],
)
def test_what_differs_in_a_bit_a_type_or_a_shape_differs(other: object) -> None:
    assert fingerprint(torch.tensor([1.0, 0.0])) != fingerprint(other)


def test_nan_is_equal_to_itself_by_its_bits() -> None:
    assert fingerprint(torch.tensor(float("nan"))) == fingerprint(torch.tensor(float("nan")))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.bool, torch.complex64, torch.uint8, torch.int64])
def test_every_type_has_bits(dtype: torch.dtype) -> None:
    values = torch.ones(3, 3).to(dtype)
    assert len(fingerprint(values)) == 64
    assert fingerprint(values) != fingerprint(torch.zeros(3, 3).to(dtype))


def test_views_that_are_conjugated_are_resolved() -> None:
    values = torch.randn(4, dtype=torch.complex64)
    assert fingerprint(values.conj()) == fingerprint(values.conj().resolve_conj())
    assert fingerprint(values.conj()) != fingerprint(values)


@pytest.mark.filterwarnings("ignore:torch.quantize:UserWarning")
def test_sparse_quantized_and_empty_tensors_have_bits() -> None:
    sparse = torch.eye(3).to_sparse()
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    assert len({fingerprint(thing) for thing in (sparse, quantized, torch.zeros(0), torch.zeros(0, 3))}) == 4


def test_models_optimizers_and_arrays() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    before = fingerprint(model), fingerprint(optimizer)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert fingerprint(model) != before[0]
    assert fingerprint(optimizer) != before[1]
    assert fingerprint(numpy.arange(3)) != fingerprint(numpy.arange(3.0))


def test_gradients() -> None:
    model = torch.nn.Linear(3, 2)
    none = gradient_fingerprint(model)
    model(torch.ones(1, 3)).sum().backward()
    assert gradient_fingerprint(model) != none


def test_what_has_no_bits_is_refused() -> None:
    with pytest.raises(TypeError, match="object at /str:a has no bits"):
        fingerprint({"a": object()})
    with pytest.raises(TypeError, match="meta"):
        fingerprint(torch.ones(2, device="meta"))
