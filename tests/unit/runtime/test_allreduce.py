"""The exact sum, against whole fractions, without a process group: ranks are a list."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
import torch

from envlock.runtime import allreduce, exact_all_reduce

FORMATS = {torch.float16: (11, -24), torch.bfloat16: (8, -133), torch.float32: (24, -149), torch.float64: (53, -1074)}
"""Bits of the mantissa, and the exponent of the smallest number."""


def summed(ranks: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    values = [rank.double() for rank in ranks]
    exponent = max(int(allreduce.exponent_of(value)) for value in values)
    parts = [allreduce.quantised(value, exponent, len(ranks)) for value in values]
    return allreduce.rounded(torch.stack(parts).sum(0), exponent, len(ranks), dtype)


def nearest(value: Fraction, quantum: Fraction) -> Fraction:
    """The multiple of a quantum next to a value, ties to even."""
    return round(value / quantum) * quantum


def expected(numbers: list[float], scale: int, dtype: torch.dtype) -> float:
    exact = sum((nearest(Fraction(number), Fraction(2) ** -scale) for number in numbers), Fraction(0))
    if exact == 0:
        return 0.0
    bits, smallest = FORMATS[dtype]
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    found = float(nearest(exact, Fraction(2) ** max(exponent - bits + 1, smallest)))
    return found if abs(found) <= torch.finfo(dtype).max else math.copysign(math.inf, found)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(("world", "size"), [(1, 1.0), (2, 3e-5), (3, 1.0), (5, 1e-40), (8, 200.0)])
def test_the_sum_is_rounded_once_and_right(dtype: torch.dtype, world: int, size: float) -> None:
    generator = torch.Generator().manual_seed(world)
    draw = torch.randn((world, 60), generator=generator, dtype=torch.float64)
    draw = draw * torch.exp(2 * torch.randn((world, 60), generator=generator, dtype=torch.float64)) * size
    ranks = list(draw.clamp(-60_000, 60_000).to(dtype))
    scale = allreduce.scale(max(int(allreduce.exponent_of(rank.double())) for rank in ranks), world)
    wanted = [expected([float(rank[place]) for rank in ranks], scale, dtype) for place in range(60)]
    assert summed(ranks, dtype).double().tolist() == wanted


def test_the_order_of_ranks_does_not_count_where_it_does_for_an_ordinary_sum() -> None:
    ranks = [torch.randn(500, generator=torch.Generator().manual_seed(rank)) * 10.0**rank for rank in range(4)]
    orders = [list(order) for order in itertools.permutations(ranks)]
    assert len({tuple(summed(order, torch.float32).tolist()) for order in orders}) == 1
    assert len({tuple(sum(order[1:], order[0]).tolist()) for order in orders}) > 1


def test_the_largest_sum_fits() -> None:
    ranks = [torch.tensor([torch.finfo(torch.float32).max * 0.99]) * sign for sign in (1.0, 1.0, -1.0)]
    assert summed(ranks, torch.float32).tolist() == [ranks[0].item()]


def test_infinities_and_nan_come_out_as_adding_gives_them() -> None:
    inf, nan = float("inf"), float("nan")
    ranks = [torch.tensor([inf, inf, nan, 1.0, inf], dtype=torch.float64), torch.tensor([1.0, -inf, 1.0, 2.0, inf], dtype=torch.float64)]
    counts = sum((allreduce.special_counts(rank) for rank in ranks[1:]), allreduce.special_counts(ranks[0]))
    found = allreduce.with_specials(torch.full((5,), 3.0), counts)
    assert found[[0, 3, 4]].tolist() == [inf, 3.0, inf]
    assert found[[1, 2]].isnan().all()


def test_alone_it_gives_the_tensor_back() -> None:
    for values in (torch.randn(9), torch.zeros(3), torch.zeros(0), torch.arange(4), torch.randn(3, dtype=torch.complex64)):
        assert torch.equal(exact_all_reduce(values), values)
    special = exact_all_reduce(torch.tensor([1.5, float("inf"), float("nan")]))
    assert special[:2].tolist() == [1.5, float("inf")]
    assert special[2].isnan()
