"""Hashes over bits: equal fingerprints mean equal bits, in whatever order things were given.

NaN, -0.0 and every last bit count. What names a tensor, its type and its shape count too; where it lies does not.
"""

from __future__ import annotations

import ctypes
import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


def fingerprint(thing: Any) -> str:
    """sha256 in hex over a model's state, a tensor, an array, an optimizer's state, or any nest of dicts and lists of those.

    Tensors are hashed by their bits and in the order of their names. Raises TypeError for an object that has no bits to hash.
    """
    digest = hashlib.sha256()
    for name, kind, content in sorted(_parts(_state(thing), ""), key=lambda part: part[0]):
        for piece in (name.encode(), kind.encode(), content):
            digest.update(len(piece).to_bytes(8, "little"))
            digest.update(piece)
    return digest.hexdigest()


def gradient_fingerprint(model: torch.nn.Module) -> str:
    """sha256 in hex over the gradients of a model's parameters; one that has none counts as such."""
    return fingerprint({name: parameter.grad for name, parameter in model.named_parameters()})


def _state(thing: Any) -> Any:
    return thing.state_dict() if hasattr(thing, "state_dict") else thing


def _parts(thing: Any, name: str) -> Iterator[tuple[str, str, bytes]]:
    """Leaves as (name, kind, bytes). Names are paths, with the type of each key, so that 1 and "1" are two keys."""
    if hasattr(thing, "state_dict") or isinstance(thing, dict):
        for key, value in _state(thing).items():
            yield from _parts(value, f"{name}/{type(key).__name__}:{key}")
    elif isinstance(thing, (list, tuple)):
        yield name, f"{type(thing).__name__}[{len(thing)}]", b""
        for place, value in enumerate(thing):
            yield from _parts(value, f"{name}/{place:012d}")
    elif thing is None or isinstance(thing, (bool, int, float, complex, str, bytes)):
        yield name, type(thing).__name__, repr(thing).encode()
    elif hasattr(thing, "data_ptr"):
        yield from _tensor_parts(thing, name)
    elif hasattr(thing, "tobytes") and hasattr(thing, "dtype"):
        yield name, f"{thing.dtype}{tuple(thing.shape)}", thing.tobytes()
    else:
        raise TypeError(f"{type(thing).__name__} at {name or 'the top'} has no bits to hash; give tensors, arrays, numbers or texts")


def _tensor_parts(tensor: torch.Tensor, name: str) -> Iterator[tuple[str, str, bytes]]:
    tensor = tensor.detach()
    if tensor.is_meta:
        raise TypeError(f"the tensor at {name or 'the top'} is on the meta device and has no bits")
    if tensor.is_quantized:
        yield name, f"{tensor.qscheme()}", b""
        yield from _tensor_parts(tensor.int_repr(), f"{name}/values")
        yield from _tensor_parts(tensor.dequantize(), f"{name}/dequantized")
        return
    layout = str(tensor.layout)
    if layout == "torch.sparse_coo":
        tensor = tensor.coalesce()
        yield name, f"{layout}{tuple(tensor.shape)}", b""
        yield from _tensor_parts(tensor.indices(), f"{name}/indices")
        yield from _tensor_parts(tensor.values(), f"{name}/values")
        return
    if layout != "torch.strided":
        raise TypeError(f"the tensor at {name or 'the top'} has layout {layout}; make it dense or COO first")
    yield name, f"{tensor.dtype}{tuple(tensor.shape)}", bits(tensor)


def bits(tensor: torch.Tensor) -> bytes:
    """A dense tensor's bits in C order, of any type and from any device."""
    here = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    size = here.numel() * here.element_size()
    return ctypes.string_at(here.data_ptr(), size) if size else b""
