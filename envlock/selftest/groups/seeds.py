"""The same numbers in each run, other numbers in each rank, worker and epoch."""

from __future__ import annotations

import itertools
import random
from functools import lru_cache, partial
from typing import Any

from envlock.runtime.seeds import derive, streams
from envlock.selftest import children, loaders
from envlock.selftest.checks import Check, Context
from envlock.selftest.protocol import Fingerprint, Outcome, failed, passed

HERE = "envlock.selftest.groups.seeds"
SMALL, LARGE = 1000, 3_000_000
"""Numbers drawn at once. A GPU's stream depends on its SM count above one wave of blocks: the small draw is below it on every GPU."""


def checks(context: Context) -> tuple[Check, ...]:
    """The group's checks."""
    del context
    in_hook = "without a line of user code, Python, NumPy and torch draw the same numbers in each process, those of the seed"
    found = [
        Check("seeds.libraries", "Libraries", in_hook, libraries, level="seeded"),
        Check("seeds.kept", "User's seeds", "a seed that user code sets stays, before and after importing torch", kept, level="seeded"),
        Check(
            "seeds.processes",
            "Child processes",
            "children draw other numbers than each other, the same in each run",
            processes,
            level="seeded",
        ),
        Check(
            "seeds.cuda-untouched", "CUDA untouched", "seeding starts no CUDA, so that a process can still fork", untouched, level="seeded"
        ),
        Check("seeds.ranks", "Ranks", "seed_everything gives ranks the same numbers, or each its own", ranks),
        Check("seeds.streams", "Streams", "no rank or worker has another's stream", independent),
    ]
    for method, kind in itertools.product(("fork", "spawn"), ("map", "iterable")):
        proves = f"workers of a {kind} data set ({method}) draw distinct numbers in each epoch, the same in each run"
        found.append(Check(f"seeds.workers.{method}.{kind}", f"Workers, {method}, {kind}", proves, partial(workers, method, kind)))
    for size, count in (("small", SMALL), ("large", LARGE)):
        proves = f"each GPU draws the same {count} numbers in each process"
        found.append(Check(f"seeds.gpu.{size}", f"GPU, {size}", proves, partial(gpu, size, count), needs=("gpu",)))
    return tuple(found)


@lru_cache(maxsize=None)  # noqa: UP033
def _probes(seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    first, second = children.call_each([(f"{HERE}:probe", {"seed": seed})] * 2)
    return first, second


def probe(seed: int) -> dict[str, Any]:
    """What a fresh process draws without a seed of its own, whether that started CUDA, and what ranks draw."""
    import torch

    found: dict[str, Any] = {"untouched": untouched_draws(), "cuda": bool(torch.cuda.is_initialized())}
    return {**found, "ranks": rank_draws(seed, 4)}


def libraries(context: Context) -> Outcome:
    seed = context.settings.seed
    first, second = (found["untouched"] for found in _probes(seed))
    expected = children.call(f"{HERE}:explicit_draws", {"seed": seed}, env={"ENVLOCK_DETERMINISM": "off"})
    evidence = {"process 1": first, "process 2": second, "seed_everything": expected}
    if not first == second == expected:
        wrong = [key for key in first if not first[key] == second.get(key) == expected.get(key)]
        return failed(f"different numbers: {', '.join(wrong)}", outcome="differs", evidence=evidence, hint="see environment.hook")
    depends = context.depends("cpu", seed=seed)
    found = tuple(Fingerprint(f"seeds.{key}", value, depends) for key, value in first.items())
    return passed(outcome="equal", fingerprints=found)


def untouched_draws() -> dict[str, str]:
    """Fingerprints of what each library draws with whatever seed it has."""
    import random

    import torch

    from envlock.runtime.fingerprints import fingerprint

    found = {"python": fingerprint([random.random() for _ in range(100)]), "torch": fingerprint(torch.rand(SMALL))}
    found["torch-large"] = fingerprint(torch.randn(200_000))
    try:
        import numpy
    except ImportError:
        return found
    return {**found, "numpy": fingerprint(numpy.random.random(SMALL))}


def explicit_draws(seed: int) -> dict[str, str]:
    """The same after seeding in code."""
    from envlock.runtime.seeds import seed_everything

    seed_everything(seed)
    return untouched_draws()


def kept(context: Context) -> Outcome:
    del context
    found = children.call(f"{HERE}:kept_here")
    wrong = [name for name, same in found.items() if not same]
    return failed(f"overwritten: {', '.join(wrong)}", evidence=found) if wrong else passed(evidence=found)


def kept_here() -> dict[str, bool]:
    """Whether seeds that are set before torch is imported, and after it, give what they give without us."""
    import random

    random.seed(5)
    expected = random.Random(5).random()
    import torch

    kept = {"random before torch": random.random() == expected}
    torch.manual_seed(5)
    kept["torch"] = bool(torch.equal(torch.rand(9), torch.rand(9, generator=torch.Generator().manual_seed(5))))
    try:
        import numpy
    except ImportError:
        return kept
    numpy.random.seed(5)
    import numpy.random as again

    kept["numpy"] = bool(again.random() == numpy.random.RandomState(5).random_sample())
    return kept


def processes(context: Context) -> Outcome:
    first, second = children.call_each(
        [(f"{HERE}:children_draw", {"methods": ["fork", "spawn"]}), (f"{HERE}:children_draw", {"methods": ["fork"]})]
    )
    evidence = {"run 1": first, "run 2": second}
    for method, drawn in first.items():
        if len({child["python"] for child in drawn.values()}) < len(drawn):
            return failed(f"children ({method}) draw the same numbers from random", evidence=evidence)
    if first["fork"] != second["fork"]:
        return failed("forked children draw other numbers in each run", outcome="differs", evidence=evidence)
    for name, drawn in first["spawn"].items():
        expected = random.Random(derive(context.settings.seed, "process", name)).random().hex()
        if drawn["python"] != expected:
            return failed(f"spawned child {name} does not draw from its own stream of the seed", evidence=evidence)
    if len({child["torch"] for child in first["spawn"].values()}) < len(first["spawn"]):
        return failed("spawned children draw the same numbers from torch", evidence=evidence)
    return passed(outcome="equal")


def children_draw(methods: list[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """What children of multiprocessing draw: by start method, by the child's name."""
    import multiprocessing
    import random  # noqa: F401

    import torch  # noqa: F401

    found = {}
    for method in methods:
        context: Any = multiprocessing.get_context(method)
        queues = [context.SimpleQueue() for _ in range(2)]
        started = [context.Process(target=_draw_into, args=(queue,)) for queue in queues]
        for process in started:
            process.start()
        found[method] = {process.name: queue.get() for process, queue in zip(started, queues)}  # noqa: B905
        for process in started:
            process.join()
    return found


def _draw_into(queue: Any) -> None:
    queue.put(loaders.draw())


def untouched(context: Context) -> Outcome:
    started = [found["cuda"] for found in _probes(context.settings.seed)]
    return failed("CUDA was started by importing torch") if any(started) else passed()


def ranks(context: Context) -> Outcome:
    own, again = (found["ranks"] for found in _probes(context.settings.seed))
    if own != again:
        return failed("a rank's numbers differ from process to process", outcome="differs", evidence={"first": own, "second": again})
    for library in own[0]:
        if len({drawn[library] for drawn in own}) < len(own):
            return failed(f"two ranks draw the same numbers from {library}", evidence={"draws": own})
    return passed("4 ranks, each its own numbers", outcome="equal")


def rank_draws(seed: int, count: int) -> list[dict[str, str]]:
    """What ranks draw after seeding with their rank."""
    from envlock.runtime.seeds import seed_everything

    found = []
    for rank in range(count):
        seed_everything(seed, rank)
        found.append(untouched_draws())
    return found


def independent(context: Context) -> Outcome:
    count_ranks, count_workers, bases = 64, 64, 4
    seed = context.settings.seed
    paths = itertools.product(range(bases), range(count_ranks), range(count_workers))
    made = [derive(seed + base, "rank", rank, "worker", worker, "torch") for base, rank, worker in paths]
    made += [value.torch for value in (streams(seed, rank) for rank in range(count_ranks))]
    usual = [seed + base + rank * 1000 + worker for base in range(bases) for rank in range(2) for worker in range(1001)]
    evidence = {
        "streams": len(made),
        "collisions": len(made) - len(set(made)),
        "collisions of base + rank*1000 + worker": len(usual) - len(set(usual)),
    }
    if evidence["collisions"]:
        return failed(f"{evidence['collisions']} streams are another's", evidence=evidence)
    return passed(f"{len(made)} streams, no two alike", evidence=evidence)


def workers(method: str, kind: str, context: Context) -> Outcome:
    del context
    run, other = _worker_draws()
    if f"{method}.{kind}" not in run:
        run, other = other, run
    # How a worker is started must not matter, so a forked one of the other process is as good.
    first, second = run[f"{method}.{kind}"], other[f"fork.{kind}"]
    wrong = loaders.faults(first)
    if wrong:
        return failed("; ".join(wrong), evidence={"draws": first})
    if first != second:
        return failed("workers draw other numbers in each run", outcome="differs", evidence={"run 1": first, "run 2": second})
    return passed(f"{sum(len(epoch) for epoch in first)} draws, no two alike", outcome="equal")


@lru_cache(maxsize=None)  # noqa: UP033
def _worker_draws() -> tuple[dict[str, Any], dict[str, Any]]:
    """Draws of two fresh processes by `method.kind`. Spawned workers each import torch, so each kind is spawned in one of the two."""
    function = "envlock.selftest.loaders:all_draws"
    wanted = [["fork.map", "fork.iterable", "spawn.map"], ["spawn.iterable", "fork.iterable", "fork.map"]]
    first, second = children.call_each([(function, {"wanted": which}) for which in wanted])
    return first, second


def gpu(size: str, count: int, context: Context) -> Outcome:
    devices = [f"cuda:{gpu['index']}" for gpu in context.facts["gpus"]]
    drawn = [children.call(f"{HERE}:gpu_draws", {"devices": devices, "count": count}) for _ in range(2)]
    wrong = [device for device in devices if drawn[0][device] != drawn[1][device]]
    if wrong:
        return failed(f"other numbers in each process on {', '.join(wrong)}", outcome="differs", evidence={"draws": drawn})
    found = []
    for device in devices:
        depends = context.depends(device)
        if size == "small":
            # Below one wave of blocks the stream is the same on every GPU.
            depends = {key: value for key, value in depends.items() if not key.startswith("gpu.")}
        found.append(Fingerprint(f"seeds.gpu.{size}", drawn[0][device], depends))
    if size == "small" and len({fingerprint.value for fingerprint in found}) > 1:
        return failed("GPUs draw different numbers from one seed", evidence={"draws": drawn[0]}, fault="host")
    return passed(f"{len(devices)} GPUs", outcome="equal", fingerprints=tuple(found))


def gpu_draws(devices: list[str], count: int) -> dict[str, str]:
    """Fingerprints of draws on GPUs after seeding."""
    import torch

    from envlock.runtime.fingerprints import fingerprint
    from envlock.runtime.seeds import seed_everything

    seed_everything(17)
    return {device: fingerprint([torch.rand(count, device=device), torch.randn(count, device=device)]) for device in devices}
