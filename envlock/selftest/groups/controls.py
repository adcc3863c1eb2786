"""Each detector sees a difference where there is one: a blind detector would pass everything.

A control passes when its detector has seen the difference. A real difference that could not be provoked on this hardware leaves the control
`not-discriminating`: `unsupported`, never a pass.
"""

from __future__ import annotations

import time
from functools import lru_cache, partial
from typing import Any

from envlock.selftest import children, libraries, loaders, precision
from envlock.selftest.checks import Check, Context
from envlock.selftest.operations import named
from envlock.selftest.protocol import Outcome, failed, passed, unsupported
from envlock.selftest.repeats import odd_ones, runs_of
from envlock.selftest.trainings import first_difference

HERE = "envlock.selftest.groups.controls"
TRIES = 400
SECONDS = 10.0
"""How often, and how long, a race is given the chance to show."""
RACES = ("index-backward", "index_put-accumulate", "put-accumulate", "scatter_add")
"""Operations whose additions race with determinism off: all but the last on CPUs with two threads or more, all on GPUs."""


def checks(context: Context) -> tuple[Check, ...]:
    """The group's checks."""
    del context
    found = [
        Check(
            "controls.fingerprint",
            "Fingerprints",
            "a fingerprint sees one bit, the sign of zero, the kind of NaN, a name, a shape",
            fingerprints,
        ),
        Check("controls.processes", "Processes", "comparing processes sees draws that were not seeded", unseeded),
        Check("controls.training", "Training", "comparing trainings sees another seed, and one step's weights", training),
        Check("controls.workers", "Workers", "workers that were seeded alike are seen", workers_alike),
        Check("controls.precision", "Precision", "products with TF32's mantissas are seen", low_precision),
        Check("controls.libraries", "Libraries", "a library from two folders is seen", shadowed),
    ]
    for device, label, needs in (("cpu", "cpu", ()), ("cuda:0", "gpu", ("gpu",))):
        for name in RACES:
            if device == "cpu" and name == "scatter_add":
                continue
            proves = f"repeating sees that {name} differs with determinism off"
            run = partial(race, name, device)
            found.append(Check(f"controls.races.{label}.{name}", f"{name} off, {label}", proves, run, needs=needs))
    found.append(Check("controls.tf32.gpu", "TF32 on", "measuring precision sees TF32 when it is on", tf32_on, needs=("gpu",)))
    return tuple(found)


def race(name: str, device: str, context: Context) -> Outcome:
    del context
    found = _races(device)[name]
    if found["seen"]:
        return passed(f"seen after {found['tries']} runs", outcome="seen", evidence=found)
    why = f"{found['tries']} runs with determinism off came out alike here, so the check of {name} cannot be shown to see a difference"
    return unsupported(f"not discriminating: {why}", outcome="not-discriminating", evidence=found)


@lru_cache(maxsize=None)  # noqa: UP033
def _races(device: str) -> dict[str, Any]:
    # Threads that spin start together, and so meet; sleeping ones often find the other's work done.
    found: dict[str, Any] = children.call(f"{HERE}:races_here", {"device": device}, env={"OMP_WAIT_POLICY": "ACTIVE"})
    return found


def races_here(device: str) -> dict[str, dict[str, Any]]:
    """All races on a device, by the operation's name."""
    return {name: race_here(name, device) for name in RACES if device != "cpu" or name != "scatter_add"}


def race_here(name: str, device: str) -> dict[str, Any]:
    """How many runs it took to see a difference with determinism off, and how many there were."""
    import torch

    from envlock.runtime.flags import deterministic

    found = {"threads": torch.get_num_threads(), "seen": False}
    runs: list[Any] = []
    end = time.monotonic() + SECONDS
    with deterministic("off"):
        step = named(name).step(device)
        while len(runs) < TRIES and time.monotonic() < end and not found["seen"]:
            runs += runs_of(step, f"repeat {len(runs) + 1}", 1)
            found["seen"] = bool(odd_ones(runs))
    return {**found, "tries": len(runs)}


def fingerprints(context: Context) -> Outcome:
    del context
    blind = [what for what, seen in fingerprint_sees().items() if not seen]
    return failed(f"fingerprints do not see: {', '.join(blind)}") if blind else passed()


def fingerprint_sees() -> dict[str, bool]:
    """Small differences, and whether fingerprints see them."""
    import torch

    from envlock.runtime.fingerprints import fingerprint

    values = torch.arange(1000, dtype=torch.float32)
    bit = values.clone()
    bit.view(torch.int32)[500] ^= 1
    nan, other_nan = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    return {
        "one bit": fingerprint(values) != fingerprint(bit),
        "the sign of zero": fingerprint(torch.tensor(0.0)) != fingerprint(torch.tensor(-0.0)),
        "the bits of NaN": fingerprint(nan) != fingerprint(other_nan),
        "a shape": fingerprint(values) != fingerprint(values.view(10, 100)),
        "a type": fingerprint(values.int()) != fingerprint(values),
        "a name": fingerprint({"a": values}) != fingerprint({"b": values}),
    }


def unseeded(context: Context) -> Outcome:
    del context
    first, second = children.call_each([("envlock.selftest.groups.seeds:untouched_draws", {})] * 2, env={"ENVLOCK_DETERMINISM": "off"})
    blind = [library for library in first if first[library] == second[library]]
    if blind:
        return failed(f"two processes without seeds look alike in {', '.join(blind)}", evidence={"first": first, "second": second})
    return passed(outcome="seen")


def training(context: Context) -> Outcome:
    del context
    found = children.call(f"{HERE}:trainings_here")
    if not found["seed"] or not found["weights"]:
        return failed("two different trainings look alike", evidence=found)
    return passed(f"another seed: {found['seed']}; one weight: {found['weights']}", outcome="seen", evidence=found)


def trainings_here() -> dict[str, str]:
    """Where a training parts from one with other dropout, and from one with a weight's last bit changed."""
    import torch

    from envlock.selftest import trainings

    usual = [vars(step) for step in trainings.Training("conv", "cpu").run(3)]
    other = trainings.Training("conv", "cpu")
    torch.default_generator.manual_seed(trainings.SEED + 1)
    seed = first_difference(usual, [vars(step) for step in other.run(3)])
    changed = trainings.Training("conv", "cpu")
    with torch.no_grad():
        next(iter(changed.model.parameters())).view(torch.int32).view(-1)[0] ^= 1
    return {"seed": seed, "weights": first_difference(usual, [vars(step) for step in changed.run(3)])}


def workers_alike(context: Context) -> Outcome:
    del context
    drawn = children.call("envlock.selftest.loaders:draws", {"kind": "map", "method": "fork", "seeding": "alike"})
    seen = loaders.faults(drawn)
    if not seen:
        return failed("workers that were seeded alike are not seen", evidence={"draws": drawn})
    return passed(seen[0], outcome="seen")


def low_precision(context: Context) -> Outcome:
    del context
    found = children.call("envlock.selftest.precision:tf32_products")
    if found["tf32"] <= precision.FULL:
        return failed("products with TF32's mantissas pass for float32", evidence=found)
    return passed(f"error {found['tf32']:.1e}, the limit is {precision.FULL:.1e}", outcome="seen", evidence=found)


def shadowed(context: Context) -> Outcome:
    del context
    paths = ["/opt/venv/lib/python3.11/site-packages/nvidia/cudnn/lib/libcudnn.so.9", "/usr/lib/libcudnn_ops.so.9"]
    found = [fault.id for fault in libraries.judge(paths)]
    return passed(outcome="seen") if found == ["cudnn-shadowed"] else failed("a second cuDNN is not seen", evidence={"found": found})


def tf32_on(context: Context) -> Outcome:
    env = {"ENVLOCK_DETERMINISM": "off", "NVIDIA_TF32_OVERRIDE": None}
    found = children.call("envlock.selftest.precision:with_tf32", {"device": "cuda:0"}, env=env)
    if any(error > precision.FULL for error in found.values()):
        return passed(f"largest error {max(found.values()):.1e}", outcome="seen", evidence=found)
    model = context.facts["gpus"][0]["model"]
    return unsupported(f"not discriminating: {model} computes no TF32", outcome="not-discriminating", evidence=found)
