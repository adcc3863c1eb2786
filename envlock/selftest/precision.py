"""How exactly a device computes float32: by value, against float64 on the CPU. Flags do not tell; some overrides show in none.

TF32 keeps 10 bits of a factor's mantissa, bfloat16 7. The error of a sum of products, relative to the sum of the products' sizes, is then
about 2^-11 or 2^-8 per product, averaged over the sum, against about 2^-24 for float32: far apart, so one threshold between them tells
them apart at any size. A matrix-vector product never reaches the tensor cores and shows nothing, so the matrices are large.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

FULL = 2.0**-19
"""Largest error, relative to the sum of sizes, that counts as float32. Float32 stays below 2^-21 at these sizes; TF32 is above 2^-16."""


def relative_error(found: torch.Tensor, exact: torch.Tensor, sizes: torch.Tensor) -> float:
    """The largest error, each relative to the sum of its products' sizes."""
    return float(((found.detach().cpu().double() - exact).abs() / sizes).max())


def matmul_error(device: str, size: int) -> float:
    """Error of a float32 product of two size x size matrices."""

    left, right = _factors(size, size), _factors(size, size)
    found = left.to(device) @ right.to(device)
    return relative_error(found, left.double() @ right.double(), left.double().abs() @ right.double().abs())


def conv_error(device: str) -> float:
    """Error of a float32 convolution with 64 channels."""
    import torch

    values, weights = _factors(4, 64, 24, 24), _factors(64, 64, 3, 3)
    convolve = torch.nn.functional.conv2d
    found = convolve(values.to(device), weights.to(device), padding=1)
    exact = convolve(values.double(), weights.double(), padding=1)
    return relative_error(found, exact, convolve(values.double().abs(), weights.double().abs(), padding=1))


def rnn_error(device: str) -> float:
    """Error of a float32 recurrent layer without nonlinearity to speak of: one step of a wide RNN with small factors.

    tanh is close to the identity for what is fed in, so the error is the product's; sizes are bounded by it too.
    """
    import torch

    layer = torch.nn.RNN(512, 512, bias=False)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(_factors(*parameter.shape) * 2.0**-10)
    values = _factors(4, 64, 512) * 2.0**-4
    exact = layer.double()(values.double())[0]
    sizes = values.double().abs() @ layer.weight_ih_l0.abs().T + 2.0**-12
    found = layer.float().to(device)(values.to(device))[0]
    return relative_error(found, exact.detach(), sizes.detach())


def half_error(device: str, kind: str) -> float:
    """Error of a product of float16 or bfloat16 matrices with a long sum, beyond what its short result must lose.

    Reduced-precision reductions add partial sums in the short type: their error grows with the number of parts.
    """
    import torch

    dtype = getattr(torch, kind)
    left, right = _factors(128, 8192).to(dtype), _factors(8192, 128).to(dtype)
    exact = left.double() @ right.double()
    found = (left.to(device) @ right.to(device)).cpu().double()
    unit = torch.finfo(dtype).eps / 2
    sizes = left.double().abs() @ right.double().abs()
    return float((((found - exact).abs() - unit * exact.abs()).clamp(min=0) / sizes).max())


def half_errors(device: str) -> dict[str, float]:
    """The errors of the short types whose product this torch has on the device: torch 1.13 has none of float16 on a CPU."""
    found = {}
    for kind in ("float16", "bfloat16"):
        try:
            found[kind] = half_error(device, kind)
        except RuntimeError as error:
            if "not implemented" not in str(error):
                raise
    return found


def _factors(*shape: int) -> torch.Tensor:
    """Values between 1/2 and 1 in size, of either sign, with full mantissas."""
    import torch

    generator = torch.Generator().manual_seed(sum(shape))
    sizes = 0.5 + 0.5 * torch.rand(shape, generator=generator)
    return torch.where(torch.rand(shape, generator=generator) < 0.5, -sizes, sizes)


def as_tf32(values: torch.Tensor) -> torch.Tensor:
    """Float32 values with their mantissas cut to TF32's 10 bits."""
    import torch

    return (values.view(torch.int32) & ~0x1FFF).view(torch.float32)


def errors(device: str) -> dict[str, float]:
    """All errors of one device, as it is set now."""
    return {
        "matmul 256": matmul_error(device, 256),
        "matmul 1024": matmul_error(device, 1024),
        "conv": conv_error(device),
        "rnn": rnn_error(device),
    }


def measure(device: str) -> dict[str, dict[str, float]]:
    """Errors as the device is set, those of short types, and those once code has asked for lower precision."""
    found = {"set as here": errors(device), "half": half_errors(device)}
    lower()
    return {**found, "lowered": errors(device)}


def with_tf32(device: str) -> dict[str, float]:
    """All errors with TF32 allowed."""
    lower()
    return errors(device)


def tf32_products() -> dict[str, float]:
    """Errors of float32 products, and of products whose factors have TF32's mantissas."""
    left, right = _factors(256, 256), _factors(256, 256)
    exact, sizes = left.double() @ right.double(), left.double().abs() @ right.double().abs()
    short = relative_error(as_tf32(left) @ as_tf32(right), exact, sizes)
    return {"float32": relative_error(left @ right, exact, sizes), "tf32": short}


def lower() -> None:
    """Ask for lower precision as user code does, in every way that this torch knows."""
    import torch

    backends = torch.backends
    attempts: tuple[Callable[[], Any], ...] = (
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: setattr(backends.cuda.matmul, "allow_tf32", True),
        lambda: setattr(backends.cudnn, "allow_tf32", True),
    )
    for attempt in attempts:
        try:
            attempt()
        except (AttributeError, RuntimeError):
            continue
