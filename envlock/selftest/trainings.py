"""Two small trainings with everything in them that has been seen to differ: dropout, AdamW, mixed precision, gradient accumulation."""

from __future__ import annotations

import io
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

STEPS = 50
ACCUMULATED = 2
"""Backward passes in each step."""
SEED = 23


@dataclass(frozen=True)
class Step:
    """What one step came out as: loss and gradient norm exactly (hexadecimal), and the weights' fingerprint."""

    loss: str
    norm: str
    weights: str


class Training:
    """A model, its optimizer, its scaler and its data. `kind` is conv or transformer."""

    def __init__(self, kind: str, device: str) -> None:
        import torch

        from envlock.runtime.seeds import seed_everything

        seed_everything(SEED)
        self._torch = torch
        self._kind = kind
        self._device = device
        self.model = (_conv_net() if kind == "conv" else _transformer()).to(device)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self._scaler = torch.cuda.amp.GradScaler(init_scale=2.0**10, growth_interval=10**6) if device != "cpu" else None
        self._data = torch.Generator().manual_seed(SEED)
        self.done = 0

    def run(self, steps: int) -> list[Step]:
        """Take some steps."""
        return [self._step() for _ in range(steps)]

    def _step(self) -> Step:
        from envlock.runtime.fingerprints import fingerprint

        torch = self._torch
        self._optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for _ in range(ACCUMULATED):
            with _mixed(torch, self._device):
                loss = self._loss() / ACCUMULATED
            (loss if self._scaler is None else self._scaler.scale(loss)).backward()
            total += float(loss.detach().double())
        if self._scaler is not None:
            self._scaler.unscale_(self._optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if self._scaler is None:
            self._optimizer.step()
        else:
            self._scaler.step(self._optimizer)
            self._scaler.update()
        self.done += 1
        return Step(total.hex(), float(norm.double()).hex(), fingerprint(self.model))

    def _loss(self) -> torch.Tensor:
        torch = self._torch
        if self._kind == "conv":
            values = torch.randn(8, 3, 12, 12, generator=self._data).to(self._device)
            labels = torch.randint(10, (8,), generator=self._data).to(self._device)
            return torch.nn.functional.cross_entropy(self.model(values).float(), labels)
        tokens = torch.randint(40, (4, 17), generator=self._data).to(self._device)
        scores = self.model(tokens[:, :-1]).float()
        return torch.nn.functional.cross_entropy(scores.reshape(-1, 40), tokens[:, 1:].reshape(-1))

    def save(self) -> bytes:
        """Everything that a resumed training needs to go on with the same bits, generators and scaler among it."""
        torch = self._torch
        state = {
            "done": self.done,
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "scaler": None if self._scaler is None else self._scaler.state_dict(),
            "data": self._data.get_state(),
            "cpu": torch.get_rng_state(),
            "gpu": None if self._device == "cpu" else torch.cuda.get_rng_state(self._device),
        }
        stream = io.BytesIO()
        torch.save(state, stream)
        return stream.getvalue()

    def load(self, saved: bytes) -> None:
        """Take over what `save` gave."""
        torch = self._torch
        state = torch.load(io.BytesIO(saved), map_location="cpu")
        self.done = state["done"]
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        if self._scaler is not None:
            self._scaler.load_state_dict(state["scaler"])
        self._data.set_state(state["data"])
        torch.set_rng_state(state["cpu"])
        if self._device != "cpu":
            torch.cuda.set_rng_state(state["gpu"], self._device)


@contextmanager
def _mixed(torch: Any, device: str) -> Iterator[None]:
    """bfloat16 on the CPU, float16 on a GPU, where the model's layers allow it."""
    kind = torch.bfloat16 if device == "cpu" else torch.float16
    with torch.autocast(device.partition(":")[0], dtype=kind, enabled=device != "cpu" or _mixes_on_cpu(torch)):
        yield


@lru_cache
def _mixes_on_cpu(torch: Any) -> bool:
    """Whether this torch has a group norm for mixed precision on the CPU; torch 1.13 refuses float32 weights there."""
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.nn.GroupNorm(1, 2)(torch.zeros(1, 2, 2, 2, dtype=torch.bfloat16))
    except RuntimeError:
        return False
    return True


def _conv_net() -> torch.nn.Module:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1, stride=2),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


def _transformer() -> torch.nn.Module:
    from torch import nn

    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
    return nn.Sequential(nn.Embedding(40, 32), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, 40))


def whole(kind: str, device: str, steps: int = STEPS) -> list[dict[str, str]]:
    """A training from start to end."""
    return [vars(step) for step in Training(kind, device).run(steps)]


def resumed(kind: str, device: str, steps: int = STEPS) -> list[dict[str, str]]:
    """The same training, stopped in the middle and resumed from what it saved, in a process that has drawn other numbers since."""
    import torch

    first = Training(kind, device)
    taken = first.run(steps // 2)
    saved = first.save()
    torch.rand(1000)
    second = Training(kind, device)
    second.load(saved)
    return [vars(step) for step in taken + second.run(steps - steps // 2)]


def all_of(device: str, runs: list[str]) -> dict[str, list[dict[str, str]]]:
    """Several trainings: `conv.whole`, `transformer.resumed`."""
    kinds = {"whole": whole, "resumed": resumed}
    return {run: kinds[run.partition(".")[2]](run.partition(".")[0], device) for run in runs}


def first_difference(one: list[dict[str, str]], other: list[dict[str, str]]) -> str:
    """Where two trainings part: `loss at step 3`; empty where they do not."""
    for number, (left, right) in enumerate(zip(one, other), start=1):  # noqa: B905
        for what in ("loss", "norm", "weights"):
            if left[what] != right[what]:
                return f"{what} at step {number}"
    return "" if len(one) == len(other) else "the number of steps"
