"""Seeds: one for all of Python, NumPy and torch, and independent streams for ranks and workers.

The usual `base + 1000 * rank + worker` gives two workers the same stream as soon as a rank has 1000 of them, or a base is near
another. Here a stream's seed is a hash of its whole path, so that no two paths meet.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    import torch

_STREAMS = b"envlock-seed-1"


def derive(seed: int, *path: int | str) -> int:
    """The 64-bit seed of the stream at a path below a seed: distinct paths give independent streams."""
    text = "/".join([str(seed), *(f"{type(part).__name__}:{len(str(part))}:{part}" for part in path)])
    return int.from_bytes(blake2b(text.encode(), digest_size=8, person=_STREAMS).digest(), "little")


@dataclass(frozen=True)
class Seeds:
    """What each library was seeded with. NumPy's legacy generator takes 32 bits as a number, and longer seeds as words of 32 bits."""

    python: int
    numpy: int | tuple[int, ...]
    torch: int


def streams(seed: int, rank: int | None = None) -> Seeds:
    """The seeds for a rank. Without a rank, the seed itself for all three, as people expect to read it back."""
    if rank is None:
        return Seeds(seed, seed if seed < 2**32 else _words(seed, 2), seed % 2**64)
    numpy = _words(derive(seed, "rank", rank, "numpy"), 2)
    return Seeds(derive(seed, "rank", rank, "python"), numpy, derive(seed, "rank", rank, "torch"))


def _words(number: int, count: int) -> tuple[int, ...]:
    return tuple((number >> (32 * place)) & 0xFFFFFFFF for place in range(count))


def seed_everything(seed: int, rank: int | None = None) -> Seeds:
    """Seed `random`, NumPy's legacy generator, torch on the CPU and on every GPU; return what each got.

    Without `rank` every process of a job gets the same streams: right before a model is built and data is split. With it each rank
    gets its own: right afterwards, so that dropout and augmentation differ between ranks. NumPy is left out where it is not
    installed. `numpy.random.default_rng()` and `torch.Generator()` are not covered: give them a seed. Raises ValueError for a
    negative seed.
    """
    if seed < 0:
        raise ValueError(f"a seed is 0 or more, not {seed}")
    chosen = streams(seed, rank)
    _seed_all(chosen)
    return chosen


def _seed_all(chosen: Seeds) -> None:
    import random

    import torch

    random.seed(chosen.python)
    try:
        import numpy
    except ImportError:
        pass
    else:
        numpy.random.seed(chosen.numpy if isinstance(chosen.numpy, int) else list(chosen.numpy))
    seed_torch(torch, chosen.torch)


def seed_torch(torch: ModuleType, seed: int) -> None:
    """Seed torch's generators of the CPU and of every GPU, without starting CUDA: GPUs are seeded when CUDA starts.

    Calls what `torch.manual_seed` calls; that one also asks for other accelerators, and imports what the hook must not wait for.
    """
    torch.default_generator.manual_seed(seed)
    if not torch.cuda._is_in_bad_fork():
        torch.cuda.manual_seed_all(seed)


def seed_worker(worker_id: int) -> None:
    """For `DataLoader(worker_init_fn=seed_worker)`: distinct streams over ranks, workers and epochs, in all three libraries.

    torch gives worker w the seed base + w, with a new base each epoch; old versions did not seed NumPy at all, and ranks that were
    seeded alike (as they should be) give their workers the same seeds. The rank is read from RANK, as torchrun sets it.
    """
    import torch

    info = torch.utils.data.get_worker_info()
    base = (torch.initial_seed() if info is None else info.seed) - worker_id
    rank = int(os.environ.get("RANK", "0"))
    path = ("rank", rank, "worker", worker_id)
    torch_seed = derive(base, *path, "torch")
    _seed_all(Seeds(derive(base, *path, "python"), _words(derive(base, *path, "numpy"), 2), torch_seed))


def dataloader_generator(seed: int | None = None, rank: int | None = None) -> torch.Generator:
    """A generator for `DataLoader(generator=…)`: it decides the order of samples and each epoch's worker seeds.

    `seed` is ENVLOCK_SEED (0 where unset) if left out. Leave `rank` out where ranks shuffle one data set together: their order must
    agree. Give it where each rank has data of its own.
    """
    import torch

    base = int(os.environ.get("ENVLOCK_SEED") or 0) if seed is None else seed
    path: tuple[int | str, ...] = ("dataloader",) if rank is None else ("dataloader", "rank", rank)
    generator = torch.Generator()
    generator.manual_seed(derive(base, *path))
    return generator
