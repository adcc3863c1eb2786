"""Compiled functions: what torch.compile makes of them, from an empty cache."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

from envlock.selftest import children

if TYPE_CHECKING:
    from collections.abc import Callable

REPEATS = 10


def fresh(device: str) -> dict[str, Any]:
    """Results of every function, compiled in a fresh process with empty caches of Inductor and Triton."""
    with tempfile.TemporaryDirectory() as empty:
        env = {
            "TORCHINDUCTOR_CACHE_DIR": f"{empty}/inductor",
            "TRITON_CACHE_DIR": f"{empty}/triton",
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        found: dict[str, Any] = children.call("envlock.selftest.compiled:results", {"device": device}, env=env, timeout=600)
    return found


def results(device: str) -> dict[str, list[str]]:
    """Fingerprints over repeats of each compiled function; for `dropout` also what eager mode gives."""
    import torch

    from envlock.runtime.fingerprints import fingerprint
    from envlock.runtime.seeds import seed_torch

    torch._inductor.config.fallback_random = True
    generator = torch.Generator().manual_seed(41)
    found = {}
    for name, function, shape in _functions(torch):
        values = torch.randn(shape, generator=generator).to(device).requires_grad_()
        upstream = torch.randn(shape, generator=generator).to(device)
        compiled = torch.compile(function)

        def once(function: Callable[[Any], Any], values: Any = values, upstream: Any = upstream) -> str:
            seed_torch(torch, 20)
            result = function(values)
            return fingerprint([result.detach(), *torch.autograd.grad(result, values, upstream[: result.shape[0]].reshape(result.shape))])

        found[name] = [once(compiled) for _ in range(REPEATS)]
        if name == "dropout":
            found["dropout-eager"] = [once(function)]
    return found


def _functions(torch: Any) -> list[tuple[str, Callable[[Any], Any], tuple[int, ...]]]:
    functional = torch.nn.functional
    return [
        ("pointwise", lambda x: torch.sin(x) * torch.exp(-x * x) + x.abs().sqrt(), (300_007,)),
        ("cumsum", lambda x: x.cumsum(0), (1_000_003,)),
        ("softmax", lambda x: functional.softmax(x * 3, -1), (300, 1001)),
        ("layer_norm", lambda x: functional.gelu(functional.layer_norm(x, (512,))), (256, 512)),
        ("dropout", lambda x: functional.dropout(x, 0.3) * 2, (100_003,)),
    ]
