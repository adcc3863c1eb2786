"""The operations that people get hurt by, each as forward and backward on fixed inputs.

Inputs come from a CPU generator seeded by the operation's name, so they are the same on every device and in every process. Gradients
that flow back are random: constant ones cancel errors. Sizes are such that the work is split over threads on a CPU, and over many
blocks on a GPU, where a second, larger set is used.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    Step = Callable[[], "list[torch.Tensor]"]


class Inputs:
    """Makes an operation's inputs. `scale` multiplies the first dimension of what is asked for as `large`."""

    def __init__(self, name: str, device: str) -> None:
        import torch

        self._torch = torch
        self.device = device
        self.large = 1 if device == "cpu" else 8
        self._generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))

    def normal(self, *shape: int, grad: bool = False) -> torch.Tensor:
        """Normal values on the device; a leaf that wants its gradient if asked for."""
        made = self._torch.randn(shape, generator=self._generator).to(self.device)
        return made.requires_grad_() if grad else made

    def integers(self, below: int, *shape: int) -> torch.Tensor:
        """Whole numbers from 0 to `below` - 1."""
        return self._torch.randint(below, shape, generator=self._generator).to(self.device)

    def backward(self, compute: Callable[[], torch.Tensor], *inputs: torch.Tensor) -> Step:
        """A step that computes, and flows one random gradient back to the inputs."""
        with self._torch.no_grad():
            shape = compute().shape
        upstream = self.normal(*shape)

        def step() -> list[torch.Tensor]:
            result = compute()
            return [result.detach(), *self._torch.autograd.grad(result, inputs, upstream)]

        return step


@dataclass(frozen=True)
class Operation:
    """One operation: `make` prepares inputs and gives the step to repeat."""

    name: str
    make: Callable[[Inputs], Step]

    def step(self, device: str) -> Step:
        """The step on a device. Raises AttributeError where this torch lacks the operation."""
        return self.make(Inputs(self.name, device))


def seeded(compute: Callable[[], Any]) -> Callable[[], Any]:
    """The same computation with torch's generators seeded before each time."""
    import torch

    from envlock.runtime.seeds import seed_torch

    def again() -> Any:
        seed_torch(torch, 20)
        return compute()

    return again


def _scatter_add(i: Inputs) -> Step:
    index, source, target = i.integers(50, i.large * 100_000), i.normal(i.large * 100_000, grad=True), i.normal(50, grad=True)
    return i.backward(lambda: target.scatter_add(0, index, source), target, source)


def _scatter_reduce(i: Inputs) -> Step:
    index, source = i.integers(50, i.large * 100_000), i.normal(i.large * 100_000, grad=True)
    target = i.normal(50, grad=True)
    return i.backward(lambda: target.scatter_reduce(0, index, source, "mean"), target, source)


def _index_add(i: Inputs) -> Step:
    index, source, target = i.integers(40, i.large * 4000), i.normal(i.large * 4000, 32, grad=True), i.normal(40, 32, grad=True)
    return i.backward(lambda: target.index_add(0, index, source), target, source)


def _index_put(i: Inputs) -> Step:
    index, source, target = i.integers(50, i.large * 100_000), i.normal(i.large * 100_000, grad=True), i.normal(50, grad=True)
    return i.backward(lambda: target.index_put((index,), source, accumulate=True), target, source)


def _index_put_duplicates(i: Inputs) -> Step:
    index, source, target = i.integers(50, i.large * 100_000), i.normal(i.large * 100_000), i.normal(50)
    return lambda: [target.index_put((index,), source)]


def _index_backward(i: Inputs) -> Step:
    index, weights = i.integers(50, i.large * 100_000), i.normal(50, grad=True)
    return i.backward(lambda: weights[index], weights)


def _index_select(i: Inputs) -> Step:
    index, weights = i.integers(50, i.large * 4000), i.normal(50, 32, grad=True)
    return i.backward(lambda: weights.index_select(0, index), weights)


def _gather(i: Inputs) -> Step:
    index, weights = i.integers(50, 4, i.large * 40_000), i.normal(4, 50, grad=True)
    return i.backward(lambda: weights.gather(1, index), weights)


def _put(i: Inputs) -> Step:
    index, source, target = i.integers(50, i.large * 100_000), i.normal(i.large * 100_000), i.normal(50)
    return lambda: [target.put(index, source, accumulate=True)]


def _embedding(i: Inputs) -> Step:
    import torch

    index, weights = i.integers(20, i.large * 5000), i.normal(20, 64, grad=True)
    return i.backward(lambda: torch.nn.functional.embedding(index, weights), weights)


def _embedding_bag(mode: str) -> Callable[[Inputs], Step]:
    def make(i: Inputs) -> Step:
        import torch

        index, weights = i.integers(20, i.large * 500, 10), i.normal(20, 64, grad=True)
        return i.backward(lambda: torch.nn.functional.embedding_bag(index, weights, mode=mode), weights)

    return make


def _cumsum(i: Inputs) -> Step:
    values = i.normal(1_000_003, grad=True)
    return i.backward(lambda: values.cumsum(0), values)


def _convolution(dimensions: int, transposed: bool) -> Callable[[Inputs], Step]:
    def make(i: Inputs) -> Step:
        import torch

        side = {1: 4096, 2: 48, 3: 14}[dimensions]
        name = f"conv{'_transpose' if transposed else ''}{dimensions}d"
        function = getattr(torch.nn.functional, name)
        values = i.normal(i.large * 2, 8, *([side] * dimensions), grad=True)
        weights, bias = i.normal(8, 8, *([3] * dimensions), grad=True), i.normal(8, grad=True)
        return i.backward(lambda: function(values, weights, bias, padding=1), values, weights, bias)

    return make


def _pool(name: str, dimensions: int, *arguments: Any) -> Callable[[Inputs], Step]:
    def make(i: Inputs) -> Step:
        import torch

        function = getattr(torch.nn.functional, name)
        side = {2: 64, 3: 18}[dimensions]
        values = i.normal(i.large * 2, 8, *([side] * dimensions), grad=True)
        return i.backward(lambda: function(values, *arguments), values)

    return make


def _max_unpool(i: Inputs) -> Step:
    import torch

    pooled, index = torch.nn.functional.max_pool2d(i.normal(i.large, 8, 64, 64), 2, return_indices=True)
    return lambda: [torch.nn.functional.max_unpool2d(pooled, index, 2)]


def _interpolate(mode: str, dimensions: int) -> Callable[[Inputs], Step]:
    def make(i: Inputs) -> Step:
        import torch

        side = {1: 2000, 2: 40, 3: 12}[dimensions]
        values = i.normal(i.large, 8, *([side] * dimensions), grad=True)
        size = [side * 3 // 2] * dimensions
        return i.backward(lambda: torch.nn.functional.interpolate(values, size=size, mode=mode), values)

    return make


def _grid_sample(dimensions: int) -> Callable[[Inputs], Step]:
    def make(i: Inputs) -> Step:
        import torch

        side = {2: 40, 3: 12}[dimensions]
        values = i.normal(i.large, 4, *([side] * dimensions), grad=True)
        grid = torch.tanh(i.normal(i.large, *([side * 2] * dimensions), dimensions)).requires_grad_()
        return i.backward(lambda: torch.nn.functional.grid_sample(values, grid, align_corners=False), values, grid)

    return make


def _pad(mode: str) -> Callable[[Inputs], Step]:
    def make(i: Inputs) -> Step:
        import torch

        values = i.normal(i.large * 2, 8, 48, 48, grad=True)
        return i.backward(lambda: torch.nn.functional.pad(values, (3, 3, 3, 3), mode=mode), values)

    return make


def _ctc(i: Inputs) -> Step:
    import torch

    scores, targets = i.normal(60, i.large * 8, 20, grad=True), i.integers(19, i.large * 8, 20) + 1
    inputs, lengths = torch.full((i.large * 8,), 60), torch.full((i.large * 8,), 20)
    return i.backward(lambda: torch.nn.functional.ctc_loss(scores.log_softmax(2), targets, inputs, lengths, reduction="none"), scores)


def _recurrent(name: str) -> Callable[[Inputs], Step]:
    def make(i: Inputs) -> Step:
        import torch

        layer = seeded(lambda: getattr(torch.nn, name)(32, 64, num_layers=2, dropout=0.5))().to(i.device)
        values = i.normal(24, i.large * 8, 32, grad=True)
        return seeded(i.backward(seeded(lambda: layer(values)[0]), values, *layer.parameters()))

    return make


def _attention(i: Inputs) -> Step:
    import torch

    function = torch.nn.functional.scaled_dot_product_attention
    query, key, value = (i.normal(i.large, 4, 160, 32, grad=True) for _ in range(3))
    return i.backward(lambda: function(query, key, value, is_causal=True), query, key, value)


def _sort_ties(i: Inputs) -> Step:
    values = i.integers(10, i.large * 50_000).to(i.normal(1).dtype)
    return lambda: list(values.sort())


def _kthvalue_ties(i: Inputs) -> Step:
    values = i.integers(10, 16, i.large * 2000).to(i.normal(1).dtype)
    return lambda: list(values.kthvalue(700, dim=1))


def _bincount(i: Inputs) -> Step:
    import torch

    index, weights = i.integers(30, i.large * 100_000), i.normal(i.large * 100_000)
    return lambda: [torch.bincount(index, weights)]


def _histc(i: Inputs) -> Step:
    import torch

    values = i.normal(i.large * 100_000)
    return lambda: [torch.histc(values, 40, -3, 3)]


def _norm(name: str) -> Callable[[Inputs], Step]:
    def make(i: Inputs) -> Step:
        import torch

        values, weight, bias = i.normal(i.large * 8, 16, 32, 32, grad=True), i.normal(16, grad=True), i.normal(16, grad=True)
        functional = torch.nn.functional
        compute = {
            "batch": lambda: functional.batch_norm(values, None, None, weight, bias, training=True),
            "group": lambda: functional.group_norm(values, 4, weight, bias),
        }[name]
        return i.backward(compute, values, weight, bias)

    return make


def _layer_norm(i: Inputs) -> Step:
    import torch

    values, weight, bias = i.normal(i.large * 500, 256, grad=True), i.normal(256, grad=True), i.normal(256, grad=True)
    return i.backward(lambda: torch.nn.functional.layer_norm(values, (256,), weight, bias), values, weight, bias)


def _cross_entropy(i: Inputs) -> Step:
    import torch

    scores, labels, weight = i.normal(i.large * 2, 20, 48, 48, grad=True), i.integers(20, i.large * 2, 48, 48), i.normal(20).abs()
    return i.backward(lambda: torch.nn.functional.cross_entropy(scores, labels, weight), scores)


def _matmul(i: Inputs) -> Step:
    left, right = i.normal(i.large * 160, 333, grad=True), i.normal(333, 257, grad=True)
    return i.backward(lambda: left @ right, left, right)


def _sum(i: Inputs) -> Step:
    values = i.normal(i.large * 500_003)
    return lambda: [values.sum(), values.norm(), values.std()]


def _cdist(i: Inputs) -> Step:
    import torch

    left, right = i.normal(i.large * 60, 16, grad=True), i.normal(50, 16, grad=True)
    return i.backward(lambda: torch.cdist(left, right), left, right)


def _svd(i: Inputs) -> Step:
    import torch

    values = i.normal(96, 64)
    return lambda: list(torch.linalg.svd(values, full_matrices=False))


def _fft(i: Inputs) -> Step:
    import torch

    values = i.normal(i.large * 16, 1000, grad=True)
    return i.backward(lambda: torch.view_as_real(torch.fft.rfft(values)), values)


def _sparse(i: Inputs) -> Step:
    import torch

    places = torch.stack([i.integers(300, 6000), i.integers(300, 6000)])
    matrix = torch.sparse_coo_tensor(places, i.normal(6000), (300, 300))
    dense = i.normal(300, 64)
    return lambda: [torch.sparse.mm(matrix, dense)]


def _dropout(i: Inputs) -> Step:
    import torch

    values = i.normal(i.large * 50_000, grad=True)
    return seeded(i.backward(seeded(lambda: torch.nn.functional.dropout(values, 0.3)), values))


OPERATIONS: Sequence[Operation] = (
    Operation("scatter_add", _scatter_add),
    Operation("scatter_reduce", _scatter_reduce),
    Operation("index_add", _index_add),
    Operation("index_put-accumulate", _index_put),
    Operation("index_put-duplicates", _index_put_duplicates),
    Operation("index-backward", _index_backward),
    Operation("index_select-backward", _index_select),
    Operation("gather-backward", _gather),
    Operation("put-accumulate", _put),
    Operation("embedding", _embedding),
    *(Operation(f"embedding_bag-{mode}", _embedding_bag(mode)) for mode in ("sum", "mean", "max")),
    Operation("cumsum", _cumsum),
    *(Operation(f"conv{d}d", _convolution(d, False)) for d in (1, 2, 3)),
    *(Operation(f"conv_transpose{d}d", _convolution(d, True)) for d in (1, 2, 3)),
    Operation("max_pool2d", _pool("max_pool2d", 2, 3, 2)),
    Operation("max_pool3d", _pool("max_pool3d", 3, 3, 2)),
    Operation("avg_pool2d", _pool("avg_pool2d", 2, 3, 2)),
    Operation("avg_pool3d", _pool("avg_pool3d", 3, 3, 2)),
    Operation("adaptive_avg_pool2d", _pool("adaptive_avg_pool2d", 2, 7)),
    Operation("adaptive_max_pool2d", _pool("adaptive_max_pool2d", 2, 7)),
    Operation("max_unpool2d", _max_unpool),
    *(
        Operation(f"interpolate-{mode}", _interpolate(mode, dimensions))
        for mode, dimensions in (
            ("nearest", 2),
            ("nearest-exact", 2),
            ("linear", 1),
            ("bilinear", 2),
            ("bicubic", 2),
            ("trilinear", 3),
            ("area", 2),
        )
    ),
    *(Operation(f"grid_sample{d}d", _grid_sample(d)) for d in (2, 3)),
    *(Operation(f"pad-{mode}", _pad(mode)) for mode in ("reflect", "replicate")),
    Operation("ctc_loss", _ctc),
    Operation("lstm-dropout", _recurrent("LSTM")),
    Operation("gru-dropout", _recurrent("GRU")),
    Operation("attention", _attention),
    Operation("sort-ties", _sort_ties),
    Operation("kthvalue-ties", _kthvalue_ties),
    Operation("bincount-weights", _bincount),
    Operation("histc", _histc),
    Operation("batch_norm", _norm("batch")),
    Operation("group_norm", _norm("group")),
    Operation("layer_norm", _layer_norm),
    Operation("cross_entropy", _cross_entropy),
    Operation("matmul", _matmul),
    Operation("sum", _sum),
    Operation("cdist", _cdist),
    Operation("svd", _svd),
    Operation("fft", _fft),
    Operation("sparse-mm", _sparse),
    Operation("dropout", _dropout),
)


def named(name: str) -> Operation:
    """The operation of a name."""
    return next(operation for operation in OPERATIONS if operation.name == name)
