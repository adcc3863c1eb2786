"""Seeds of libraries, ranks and workers."""

from __future__ import annotations

import itertools
import random

import numpy
import pytest
import torch

from envlock.runtime import dataloader_generator, seed_everything, seed_worker
from envlock.runtime.seeds import derive, streams


@pytest.fixture(autouse=True)
def _generators_as_before() -> object:
    python, numbers, here = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(python)
    numpy.random.set_state(numbers)
    torch.set_rng_state(here)


def drawn() -> tuple[float, float, float]:
    return random.random(), float(numpy.random.random()), float(torch.rand(1))


def test_one_seed_gives_the_same_numbers_again() -> None:
    seed_everything(3)
    first = drawn()
    seed_everything(3)
    assert drawn() == first
    seed_everything(4)
    assert drawn() != first


def test_without_a_rank_the_seed_is_the_one_that_people_read_back() -> None:
    seed_everything(3)
    assert torch.initial_seed() == 3
    assert float(numpy.random.random()) == numpy.random.RandomState(3).random_sample()


def test_ranks_have_streams_of_their_own() -> None:
    found = []
    for rank in range(4):
        seed_everything(3, rank)
        found.append(drawn())
    assert all(len(set(values)) == 4 for values in zip(*found, strict=True))


def test_seeds_wider_than_numpy_takes_are_taken() -> None:
    seed_everything(2**40 + 1)
    first = drawn()
    seed_everything(2**40 + 2)
    assert drawn() != first


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        seed_everything(-1)


def test_no_two_paths_share_a_stream() -> None:
    paths = itertools.product(range(4), range(32), range(64))
    seeds = [derive(base, "rank", rank, "worker", worker) for base, rank, worker in paths]
    assert len(set(seeds)) == len(seeds)
    assert derive(0, "a", "b") != derive(0, "ab") != derive(0, "a/b")
    assert derive(0, 1) != derive(0, "1")


def test_streams_stay_as_they_are() -> None:
    assert derive(0, "rank", 1) == 14446713192721134834
    assert streams(5).torch == 5


def test_workers_differ_by_worker_rank_and_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for epoch, rank, worker in itertools.product(range(2), range(2), range(2)):
        monkeypatch.setenv("RANK", str(rank))
        torch.default_generator.manual_seed(1000 * epoch + worker)  # what torch gives a worker: base + worker
        seed_worker(worker)
        found.append(drawn())
    assert all(len(set(values)) == 8 for values in zip(*found, strict=True))


def test_the_order_of_samples_agrees_over_ranks_unless_a_rank_is_given() -> None:
    assert dataloader_generator(3).initial_seed() == dataloader_generator(3).initial_seed()
    assert dataloader_generator(3, rank=0).initial_seed() != dataloader_generator(3, rank=1).initial_seed()


def test_the_image_s_seed_is_used_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVLOCK_SEED", "9")
    assert dataloader_generator().initial_seed() == dataloader_generator(9).initial_seed()
