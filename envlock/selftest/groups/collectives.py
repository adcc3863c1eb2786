"""Sums over processes give the same bits: repeated, launched again, and, for the exact sum, in any order of ranks."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

from envlock.runtime.fingerprints import fingerprint
from envlock.selftest import launch
from envlock.selftest.checks import Check, Context
from envlock.selftest.protocol import Fingerprint, Outcome, failed, passed, unsupported

BACKENDS = (("gloo", "cpu", ()), ("nccl", "gpu", ("gpus",)))


def checks(context: Context) -> tuple[Check, ...]:
    """The group's checks."""
    del context
    found = []
    for backend, label, needs in BACKENDS:
        for name, proves, run in (
            ("launch", "ranks start and finish under torchrun without a network", started),
            ("repeats", "all_reduce, reduce_scatter and all_gather give the same bits when repeated", repeated),
            ("launches", "they give the same bits when launched again", launched_again),
            ("initial-weights", "ranks start from the same weights", initial_weights),
            ("ranks-differ", "each rank's dropout is its own", ranks_differ),
            ("gradients", "data-parallel gradients are the same at each step over launches", gradients),
            ("exact", "the exact sum does not depend on the order of ranks", exact_order),
            ("control", "an ordinary sum does depend on it, so the check can see it", control),
        ):
            check = Check(f"collectives.{label}.{name}", f"{name}, {backend}", proves, partial(run, backend), needs=needs, limit=600)
            found.append(check)
    return tuple(found)


def world_size(backend: str, context: Context) -> int:
    """How many ranks: as asked for on the CPU, at most one a GPU."""
    return context.world if backend == "gloo" else min(context.world, len(context.facts["gpus"]))


@lru_cache(maxsize=None)  # noqa: UP033
def _launch(number: int, backend: str, count: int) -> list[dict[str, Any]]:
    """One launch; `number` tells launches apart."""
    del number
    return launch.ranks(count, backend)


def _both(backend: str, context: Context) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    count = world_size(backend, context)
    return _launch(1, backend, count), _launch(2, backend, count)


def started(backend: str, context: Context) -> Outcome:
    first, second = _both(backend, context)
    return passed(f"{len(first)} ranks, twice", evidence={"world": first[0]["world"], "again": second[0]["world"]})


def _judge(name: str, same: bool, value: Any, backend: str, context: Context, why: str) -> Outcome:
    """Equal bits are a fingerprint; different ones fail at the strict level alone."""
    if same:
        device = "cpu" if backend == "gloo" else "cuda:0"
        depends = context.depends(device, **{"world.size": world_size(backend, context), "world.backend": backend})
        return passed(outcome="equal", fingerprints=(Fingerprint(name, fingerprint(value), depends),))
    if context.settings.level == "strict":
        return failed(
            why, outcome="differs", fault="image", hint="NCCL_ALGO, NCCL_NVLS_ENABLE and NCCL_COLLNET_ENABLE decide the order of sums"
        )
    return passed(f"{why}; the level {context.settings.level} does not promise more", outcome="differs")


def repeated(backend: str, context: Context) -> Outcome:
    first, _ = _both(backend, context)
    odd = [
        f"{name} on rank {rank}" for rank, found in enumerate(first) for name, runs in found["collectives"].items() if len(set(runs)) > 1
    ]
    return _judge("collectives", not odd, [found["collectives"] for found in first], backend, context, f"different: {', '.join(odd)}")


def launched_again(backend: str, context: Context) -> Outcome:
    first, second = (_by_rank(runs, "collectives") for runs in _both(backend, context))
    odd = [f"rank {rank}" for rank, found in enumerate(first) if found != second[rank]]
    return _judge("collectives", not odd, first, backend, context, f"different: {', '.join(odd)}")


def _by_rank(runs: list[dict[str, Any]], key: str) -> list[Any]:
    return [found[key] for found in runs]


def initial_weights(backend: str, context: Context) -> Outcome:
    first, _ = _both(backend, context)
    if len(set(_by_rank(first, "initial"))) > 1:
        return failed(
            "ranks that were seeded alike have different weights", outcome="differs", evidence={"weights": _by_rank(first, "initial")}
        )
    return passed(outcome="equal")


def ranks_differ(backend: str, context: Context) -> Outcome:
    first, _ = _both(backend, context)
    drawn = [step for found in first for step in found["dropout"]]
    if len(set(drawn)) < len(drawn):
        return failed("two ranks or steps dropped the same elements", evidence={"dropout": _by_rank(first, "dropout")})
    return passed()


def gradients(backend: str, context: Context) -> Outcome:
    first, second = (_by_rank(runs, "gradients") for runs in _both(backend, context))
    steps = [str(step + 1) for step in range(len(first[0])) if any(one[step] != other[step] for one, other in zip(first, second))]  # noqa: B905
    return _judge("gradients", not steps, first, backend, context, f"other gradients at step {', '.join(steps)}")


def exact_order(backend: str, context: Context) -> Outcome:
    first, _ = _both(backend, context)
    results = {result for found in first for result in [*found["orders"]["exact"], *found["collectives"]["exact"]]}
    if len(results) > 1:
        return failed(f"{len(results)} results over the orders of ranks", outcome="differs", fault="image")
    return _judge("exact", True, sorted(results), backend, context, "")


def control(backend: str, context: Context) -> Outcome:
    first, _ = _both(backend, context)
    results = {result for found in first for result in found["orders"]["float"]}
    if len(results) > 1:
        return passed(f"{len(results)} results over {len(first)} orders of ranks", outcome="seen")
    why = "two summands commute; use --nproc 3 or more" if len(first) < 3 else "all orders came out alike"
    return unsupported(f"not discriminating: {why}", outcome="not-discriminating")
