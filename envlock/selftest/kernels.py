"""A written-down matrix of operations and number formats, each held against float64 on the CPU.

Inputs are rounded to the format first, and the reference starts from the rounded ones: what is left is the error of the computation. The
bound is relative to the largest value of the reference.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

BOUNDS = {
    "float64": 1e-12,
    "float32": 2e-5,
    "tf32": 4e-3,
    "float16": 4e-3,
    "bfloat16": 3e-2,
    "complex64": 2e-5,
    "complex128": 1e-12,
    "int8": 0.0,
    "float8_e4m3fn": 2e-2,
}
"""Largest error by format, relative to the largest value: some ten times the format's own rounding, for sums of a few hundred products."""

REAL = ("float64", "float32", "float16", "bfloat16")
WIDE = ("float64", "float32")


class Lacking(Exception):
    """This torch or this device has no such operation or format."""


class Operands:
    """Inputs in one format: on a device, or the same values in float64 on the CPU for the reference."""

    def __init__(self, device: str, dtype: str, exact: bool) -> None:
        import torch

        self.torch = torch
        self.device = "cpu" if exact else device
        self.exact = exact
        name = "float32" if dtype == "tf32" else dtype
        if not hasattr(torch, name):
            raise Lacking(f"this torch has no {name}")
        self.dtype = getattr(torch, name)
        self._generator = torch.Generator().manual_seed(31)

    def normal(self, *shape: int) -> torch.Tensor:
        """Normal values."""
        if self.dtype.is_complex:
            made = self.torch.randn(shape, generator=self._generator, dtype=self.dtype)
            return made.to(self.torch.complex128) if self.exact else made.to(self.device)
        made = self.torch.randn(shape, generator=self._generator).to(self.dtype)
        return made.double() if self.exact else made.to(self.device)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Whole numbers from low to high - 1, as int64."""
        return self.torch.randint(low, high, shape, generator=self._generator).to(self.device)


@dataclass(frozen=True)
class Kernel:
    """One operation in some formats. `library` is the CUDA library that it is there to touch; `gpu_only` where CPUs have none such."""

    name: str
    library: str
    compute: Callable[[Operands], torch.Tensor]
    dtypes: Sequence[str] = REAL
    gpu_only: bool = False
    factor: float = 1.0


def _linear(o: Operands) -> torch.Tensor:
    return o.torch.nn.functional.linear(o.normal(64, 256), o.normal(128, 256), o.normal(128))


def _conv(o: Operands) -> torch.Tensor:
    return o.torch.nn.functional.conv2d(o.normal(4, 32, 20, 20), o.normal(48, 32, 3, 3), padding=1)


def _attention(backend: str) -> Callable[[Operands], torch.Tensor]:
    def compute(o: Operands) -> torch.Tensor:
        query, key, value = (o.normal(2, 4, 128, 64) for _ in range(3))
        function = getattr(o.torch.nn.functional, "scaled_dot_product_attention", None)
        if function is None:
            raise Lacking("this torch has no scaled_dot_product_attention")
        with contextlib.nullcontext() if o.exact else _only_backend(o.torch, backend):
            return function(query, key, value)

    return compute


def _only_backend(torch: Any, backend: str) -> Any:
    attention = getattr(torch.nn, "attention", None)
    chosen = getattr(getattr(attention, "SDPBackend", None), backend, None)
    if attention is None or chosen is None or not hasattr(attention, "sdpa_kernel"):
        raise Lacking(f"this torch cannot choose {backend}")
    return attention.sdpa_kernel(chosen)


def _embedding(o: Operands) -> torch.Tensor:
    return o.torch.nn.functional.embedding(o.integers(0, 100, 50), o.normal(100, 32))


def _int8(o: Operands) -> torch.Tensor:
    left, right = o.integers(-100, 100, 64, 64), o.integers(-100, 100, 64, 64)
    if o.exact:
        return (left.double() @ right.double()).to(o.torch.float64)
    function = getattr(o.torch, "_int_mm", None)
    if function is None:
        raise Lacking("this torch has no int8 product")
    return function(left.to(o.torch.int8), right.to(o.torch.int8))


def _fp8(o: Operands) -> torch.Tensor:
    left, right = o.normal(64, 64), o.normal(64, 64)
    if o.exact:
        return left @ right.T
    function = getattr(o.torch, "_scaled_mm", None)
    if function is None:
        raise Lacking("this torch has no fp8 product")
    one = o.torch.ones((), device=o.device)
    found = function(left, right.T, scale_a=one, scale_b=one, out_dtype=o.torch.bfloat16)
    return found[0] if isinstance(found, tuple) else found


def _sparse(o: Operands) -> torch.Tensor:
    places = o.torch.stack([o.torch.arange(500) % 90, o.torch.arange(500) * 7 % 80]).to(o.device)
    matrix = o.torch.sparse_coo_tensor(places, o.normal(500), (90, 80)).coalesce().to_sparse_csr()
    return matrix @ o.normal(80, 32)


def _semi_structured(o: Operands) -> torch.Tensor:
    weights = o.normal(128, 128)
    mask = o.torch.tensor([1, 0, 0, 1], device=o.device).repeat(128, 32).to(weights.dtype)
    weights = weights * mask
    values = o.normal(128, 128)
    if o.exact:
        return weights @ values
    convert = getattr(o.torch.sparse, "to_sparse_semi_structured", None)
    if convert is None:
        raise Lacking("this torch has no semi-structured sparsity")
    return convert(weights) @ values


def _solve(o: Operands) -> torch.Tensor:
    eye = o.torch.eye(64, dtype=o.torch.float64 if o.exact else o.dtype, device=o.device)
    return o.torch.linalg.solve(o.normal(64, 64) + 20 * eye, o.normal(64, 8))


def _eigh(o: Operands) -> torch.Tensor:
    square = o.normal(48, 48)
    return o.torch.linalg.eigvalsh(square + square.T)


def _jiterator(o: Operands) -> torch.Tensor:
    values = o.normal(1000)
    if o.exact:
        return values * values + 1
    create = getattr(getattr(o.torch.cuda, "jiterator", None), "_create_jit_fn", None)
    if create is None:
        raise Lacking("this torch compiles nothing at run time")
    return create("template <typename T> T square_plus_one(T x) { return x * x + T(1); }")(values)


def _graph(o: Operands) -> torch.Tensor:
    left, right = o.normal(64, 64), o.normal(64, 64)
    if o.exact:
        return (left @ right).relu()
    side = o.torch.cuda.Stream(device=o.device)
    side.wait_stream(o.torch.cuda.current_stream(o.device))
    with o.torch.cuda.stream(side):
        (left @ right).relu()
    o.torch.cuda.current_stream(o.device).wait_stream(side)
    graph = o.torch.cuda.CUDAGraph()
    with o.torch.cuda.graph(graph):
        result = (left @ right).relu()
    result.zero_()
    graph.replay()
    return result


def _nccl(o: Operands) -> torch.Tensor:
    values = o.normal(1000)
    if not o.exact:
        o.torch.cuda.nccl.all_reduce([values])
    return values


def _random(o: Operands) -> torch.Tensor:
    """Mean and variance of many uniform numbers, against those of the distribution, within five standard errors by the factor."""
    if o.exact:
        return o.torch.tensor([0.5, 1 / 12], dtype=o.torch.float64)
    drawn = o.torch.rand(1_000_000, device=o.device, dtype=o.dtype, generator=o.torch.Generator(o.device).manual_seed(1)).double()
    return o.torch.stack([drawn.mean(), drawn.var()])


def _batch_norm(o: Operands) -> torch.Tensor:
    return o.torch.nn.functional.batch_norm(o.normal(8, 16, 12, 12), None, None, training=True)


KERNELS: Sequence[Kernel] = (
    Kernel("matmul", "cuBLAS", lambda o: o.normal(128, 200) @ o.normal(200, 96), (*REAL, "tf32", "complex64", "complex128")),
    Kernel("linear", "cuBLASLt", _linear),
    Kernel("conv2d", "cuDNN", _conv, (*REAL, "tf32")),
    Kernel("attention-math", "torch", _attention("MATH")),
    Kernel("attention-flash", "torch", _attention("FLASH_ATTENTION"), ("float16", "bfloat16"), gpu_only=True),
    Kernel("attention-efficient", "torch", _attention("EFFICIENT_ATTENTION"), ("float32", "float16", "bfloat16"), gpu_only=True),
    Kernel("attention-cudnn", "cuDNN", _attention("CUDNN_ATTENTION"), ("float16", "bfloat16"), gpu_only=True),
    Kernel("layer_norm", "torch", lambda o: o.torch.nn.functional.layer_norm(o.normal(64, 300), (300,))),
    Kernel("batch_norm", "cuDNN", _batch_norm),
    Kernel("softmax", "torch", lambda o: o.normal(64, 300).softmax(-1)),
    Kernel("gelu", "torch", lambda o: o.torch.nn.functional.gelu(o.normal(5000))),
    Kernel("embedding", "torch", _embedding),
    Kernel("sort", "CUB", lambda o: o.normal(5000).sort().values),
    Kernel("sum", "torch", lambda o: o.normal(300, 500).sum(1)),
    Kernel("cumsum", "CUB", lambda o: o.normal(4, 400).cumsum(1)),
    Kernel("fft", "cuFFT", lambda o: o.torch.view_as_real(o.torch.fft.fft(o.normal(8, 243))), WIDE),
    Kernel("solve", "cuSOLVER", _solve, WIDE),
    Kernel("eigvalsh", "cuSOLVER", _eigh, WIDE),
    Kernel("sparse", "cuSPARSE", _sparse, WIDE),
    Kernel("semi-structured", "cuSPARSELt", _semi_structured, ("float16",), gpu_only=True),
    Kernel("int8", "cuBLASLt", _int8, ("int8",), gpu_only=True),
    Kernel("fp8", "cuBLASLt", _fp8, ("float8_e4m3fn",), gpu_only=True),
    Kernel("random", "cuRAND", _random, WIDE, factor=1e3),
    Kernel("jiterator", "NVRTC", _jiterator, ("float32",), gpu_only=True),
    Kernel("nccl", "NCCL", _nccl, ("float32",), gpu_only=True),
    Kernel("graph", "CUDA graphs", _graph, ("float32",), gpu_only=True),
)


@dataclass(frozen=True)
class Measured:
    """A kernel's error, relative to the largest value, and its bound."""

    error: float
    bound: float


def measure(kernel: Kernel, dtype: str, device: str) -> Measured:
    """Run a kernel on a device. Raises Lacking where it cannot be had there."""
    import torch

    operands = Operands(device, dtype, exact=False)
    # Some interfaces use the current device, whatever their inputs are on.
    here = contextlib.nullcontext() if device == "cpu" else torch.cuda.device(device)
    with here, tf32_allowed(torch) if dtype == "tf32" else contextlib.nullcontext():
        try:
            found = kernel.compute(operands)
        except (NotImplementedError, RuntimeError) as refusal:
            if is_lacking(str(refusal)):
                raise Lacking(str(refusal).splitlines()[0]) from None
            raise
    found = found.detach().cpu()
    exact = kernel.compute(Operands(device, dtype, exact=True))
    found = found.to(exact.dtype)
    if not torch.isfinite(torch.view_as_real(found) if found.is_complex() else found).all():
        return Measured(float("inf"), BOUNDS[dtype])
    error = float((found - exact).abs().max() / exact.abs().max())
    bound = BOUNDS[dtype] * kernel.factor if kernel.name != "random" else 5e-3
    return Measured(error, bound)


def is_lacking(message: str) -> bool:
    """Whether an error says that an operation or a format is not there, rather than that it failed."""
    signs = (
        "not implemented for",
        "not supported",
        "No available kernel",
        "only supported on",
        "requires compute capability",
        "does not support",
        "is only supported",
        "not compiled with",
        "No viable backend",
        "deterministic implementation",
    )
    return "CUDA error" not in message and any(sign in message for sign in signs)


def tf32_allowed(torch: Any) -> Any:
    """Flags that allow TF32, in a block; the variable NVIDIA_TF32_OVERRIDE=0 still forbids it, and the bound holds all the more."""
    from envlock.runtime.flags import deterministic

    level = {"off": "off", "warn": "deterministic", "raise": "strict"}[_mode(torch)]
    return deterministic("deterministic" if level == "off" else level, tf32=True)


def _mode(torch: Any) -> str:
    if not torch.are_deterministic_algorithms_enabled():
        return "off"
    return "warn" if torch.is_deterministic_algorithms_warn_only_enabled() else "raise"
