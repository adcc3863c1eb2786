"""Data sets whose samples are random draws, to see what DataLoader workers draw. Here, so that spawned workers can import them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKERS = 2
EPOCHS = 2
SAMPLES = 2
"""Samples of each worker in an epoch."""


def _worker() -> int:
    import torch

    info = torch.utils.data.get_worker_info()
    return -1 if info is None else int(info.id)


def draw() -> dict[str, Any]:
    """One number from each library's global generator, exactly, and the worker that drew it."""
    import random

    import torch

    drawn = {"worker": _worker(), "python": random.random().hex(), "torch": float(torch.rand(1, dtype=torch.float64)).hex()}
    try:
        import numpy
    except ImportError:
        return drawn
    return {**drawn, "numpy": float(numpy.random.random()).hex()}


class MapDraws:
    """A map-style data set."""

    def __len__(self) -> int:
        return WORKERS * SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return draw()


def iterable_draws() -> Any:
    """An iterable-style data set; its class needs torch's base class, which is imported late."""
    from envlock.selftest.iterable import IterableDraws

    return IterableDraws()


def as_they_are(samples: list[Any]) -> list[Any]:
    """A collate function that leaves samples alone."""
    return samples


def alike(worker_id: int) -> None:
    """The mistake of seeding every worker with one number, as a negative control."""
    from envlock.runtime.seeds import seed_everything

    del worker_id
    seed_everything(1234)


def draws(kind: str, method: str, seeding: str) -> list[list[dict[str, Any]]]:
    """What workers drew, by epoch. `kind`: map or iterable; `method`: fork or spawn; `seeding`: envlock, torch or alike.

    Workers stay over the epochs, so that starting them is paid for once.
    """
    import torch

    from envlock.runtime.seeds import dataloader_generator, seed_worker

    init = {"envlock": seed_worker, "torch": None, "alike": alike}[seeding]
    loader = torch.utils.data.DataLoader(
        MapDraws() if kind == "map" else iterable_draws(),
        batch_size=1,
        num_workers=WORKERS,
        worker_init_fn=init,
        generator=dataloader_generator(11),
        collate_fn=as_they_are,
        multiprocessing_context=method,
        persistent_workers=True,
    )
    return [[sample for batch in loader for sample in batch] for _ in range(EPOCHS)]


def all_draws(wanted: list[str]) -> dict[str, list[list[dict[str, Any]]]]:
    """Draws by `method.kind`, such as `spawn.map`."""
    return {name: draws(name.partition(".")[2], name.partition(".")[0], "envlock") for name in wanted}


def faults(drawn: list[list[dict[str, Any]]]) -> list[str]:
    """What is wrong with draws: libraries in which two draws, of whatever workers or epochs, came out alike; workers that drew nothing."""
    samples = [sample for epoch in drawn for sample in epoch]
    found = []
    for library in ("python", "numpy", "torch"):
        values = [sample[library] for sample in samples if library in sample]
        if len(set(values)) < len(values):
            found.append(f"{library}: {len(values) - len(set(values))} of {len(values)} draws are repeats")
    if {sample["worker"] for sample in samples} != set(range(WORKERS)):
        found.append("not every worker drew")
    return found


def draw_share() -> Iterator[dict[str, Any]]:
    """Draws for an iterable data set: as many as a worker's share."""
    for _ in range(SAMPLES):
        yield draw()
