"""A sum over ranks whose bits do not depend on the order in which ranks are added.

Floating-point sums depend on their order; integer sums do not. So every rank turns its values into multiples of one common quantum, a
power of two, the integers are summed, and the sum is rounded to the type once.

- The ranks agree on an exponent E, by a MAX, such that every finite value is below 2^E in size.
- A value x becomes q = round(x * 2^k), with k as large as keeps |q| <= (2^63 - 1) / world: the sum of `world` such integers fits.
- The resolution is 2^-k: at most (largest value) * world * 2^-61. Smaller parts of a value are rounded off before the sum.
- Infinities and NaN are counted by reductions of their own and give what adding them gives.

The result depends on the values and on the number of ranks (through k), on nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

LARGEST = 2**63 - 1
_NOTHING = -(2**20)
"""Exponent of a tensor without any value other than zero: below that of any number."""


def exact_all_reduce(tensor: torch.Tensor, group: Any = None) -> torch.Tensor:
    """The sum of a tensor over the ranks of a group, the same bits on every rank and in any order of ranks. The tensor stays as it is.

    Floating-point and complex types of any width; integers are summed as they are, and wrap around as they do. Works on gloo and NCCL,
    and without a process group as for one rank. Needs about six times the memory of a float32 tensor while it runs.
    """
    import torch

    if tensor.is_complex():
        parts = exact_all_reduce(torch.view_as_real(tensor.resolve_conj()), group)
        return torch.view_as_complex(parts)
    if not tensor.is_floating_point():
        total = tensor.detach().clone()
        _reduce(total, "SUM", group)
        return total
    world = _world(group)
    values = tensor.detach().to(torch.float64)
    finite = torch.isfinite(values)
    # One reduction agrees on both: the exponent, and whether any rank has a value that is not finite.
    agreed = torch.stack([exponent_of(values), (~finite).any().to(torch.int64)])
    _reduce(agreed, "MAX", group)
    exponent, special = (int(number) for number in agreed.tolist())
    total = quantised(torch.where(finite, values, torch.zeros_like(values)), exponent, world)
    _reduce(total, "SUM", group)
    result = rounded(total, exponent, world, tensor.dtype)
    if special:
        counts = special_counts(values)
        _reduce(counts, "SUM", group)
        result = with_specials(result, counts)
    return result


def scale(exponent: int, world: int) -> int:
    """The power k of two by which values below 2^exponent are multiplied, so that `world` of them can be added in 63 bits."""
    return (LARGEST // world).bit_length() - 1 - exponent


def exponent_of(values: torch.Tensor) -> torch.Tensor:
    """The smallest E with all finite values below 2^E in size, as a 0-dimensional int64 tensor."""
    import torch

    sizes = torch.where(torch.isfinite(values), values.abs(), torch.zeros_like(values))
    largest = sizes.max() if sizes.numel() else torch.zeros((), dtype=torch.float64, device=values.device)
    exponent = torch.frexp(largest).exponent.to(torch.int64)
    return torch.where(largest > 0, exponent, torch.full_like(exponent, _NOTHING))


def quantised(values: torch.Tensor, exponent: int, world: int) -> torch.Tensor:
    """Finite float64 values as int64 multiples of 2^-k."""
    import torch

    if exponent == _NOTHING:
        return torch.zeros_like(values, dtype=torch.int64)
    k = scale(exponent, world)
    return torch.round(_times_power(values, torch.full_like(values, k, dtype=torch.int64))).to(torch.int64)


def rounded(total: torch.Tensor, exponent: int, world: int, dtype: torch.dtype) -> torch.Tensor:
    """Integer sums back as a floating-point type: rounded once, to nearest, ties to even, also where the result is subnormal.

    Conversions of torch go through float32 on their way to shorter types and would round twice, so the integer is rounded first, to as
    many bits as the type holds at that size; what follows is exact.
    """
    import torch

    if exponent == _NOTHING:
        return torch.zeros_like(total, dtype=dtype)
    k = scale(exponent, world)
    info = torch.finfo(dtype)
    precision = 1 - int(torch.frexp(torch.tensor(info.eps, dtype=torch.float64)).exponent) + 1
    smallest = int(torch.frexp(torch.tensor(info.tiny, dtype=torch.float64)).exponent) - precision
    length = torch.frexp(total.to(torch.float64)).exponent.to(torch.int64)
    drop = torch.clamp(torch.maximum(length - precision, torch.full_like(length, smallest + k)), min=0)
    kept = _shifted_to_even(total, drop)
    return _times_power(kept.to(torch.float64), drop - k).to(dtype)


def _shifted_to_even(total: torch.Tensor, drop: torch.Tensor) -> torch.Tensor:
    """total / 2^drop, rounded to nearest, ties to even."""
    import torch

    shift = torch.clamp(drop, max=62)
    floor = total >> shift
    rest = total - (floor << shift)
    half = torch.ones_like(total) << torch.clamp(shift - 1, min=0)
    up = (shift > 0) & ((rest > half) | ((rest == half) & (floor & 1 == 1)))
    # Sums are below 2^63 in size: past 63 dropped bits less than half is left.
    return torch.where(drop > 63, torch.zeros_like(total), floor + up.to(torch.int64))


def _times_power(values: torch.Tensor, power: torch.Tensor) -> torch.Tensor:
    """values * 2^power in float64. In three steps, each with a power that float64 holds exactly; torch.ldexp goes through pow."""
    third = _divided(power, 3)
    rest = power - 2 * third
    return values * _power_of_two(third) * _power_of_two(third) * _power_of_two(rest)


def _divided(power: torch.Tensor, by: int) -> torch.Tensor:
    """Whole division towards zero."""
    import torch

    return torch.div(power, by, rounding_mode="trunc")


def _power_of_two(power: torch.Tensor) -> torch.Tensor:
    """2^power from the bits of float64, for powers from -1022 to 1023."""
    import torch

    return ((power + 1023) << 52).view(torch.float64)


_FIELD = 20
"""Bits for each count of special values: enough for a million ranks."""


def special_counts(values: torch.Tensor) -> torch.Tensor:
    """By element: one for +inf, one for -inf, one for NaN, each in a field of its own of an int64."""
    import torch

    def one(where: torch.Tensor, place: int) -> torch.Tensor:
        return where.to(torch.int64) << (_FIELD * place)

    infinite = torch.isinf(values)
    return one(infinite & (values > 0), 0) + one(infinite & (values < 0), 1) + one(torch.isnan(values), 2)


def with_specials(result: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The result with infinities and NaN put where adding them would give them."""
    import torch

    def any_of(place: int) -> torch.Tensor:
        return (counts >> (_FIELD * place)) & (2**_FIELD - 1) > 0

    plus, minus, nan = any_of(0), any_of(1), any_of(2)
    result = torch.where(plus, torch.full_like(result, float("inf")), result)
    result = torch.where(minus, torch.full_like(result, float("-inf")), result)
    return torch.where(nan | (plus & minus), torch.full_like(result, float("nan")), result)


def _world(group: Any) -> int:
    import torch.distributed

    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 1
    return int(torch.distributed.get_world_size(group))


def _reduce(tensor: torch.Tensor, operation: str, group: Any) -> None:
    import torch.distributed

    if _world(group) > 1:
        torch.distributed.all_reduce(tensor, op=getattr(torch.distributed.ReduceOp, operation), group=group)
