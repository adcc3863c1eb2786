"""Running a computation again and again, and judging what came out: equal bits, a refusal, or a silent difference."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envlock.selftest.protocol import Fingerprint, Outcome, failed, passed, unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from envlock.selftest.checks import Context


@dataclass(frozen=True)
class Run:
    """One run of a computation: what it is called, and its fingerprint, or the error by which torch refused."""

    name: str
    value: str
    refused: bool = False


def runs_of(step: Callable[[], Any], name: str, count: int) -> list[Run]:
    """Run a step `count` times. A refusal of torch ends them: the others would be refused too."""
    from envlock.runtime.fingerprints import fingerprint

    found = []
    for number in range(1, count + 1):
        try:
            found.append(Run(f"{name} {number}", fingerprint(step())))
        except RuntimeError as error:
            if not is_refusal(error):
                raise
            return [Run(f"{name} {number}", str(error).splitlines()[0], refused=True)]
    return found


def is_refusal(error: Exception) -> bool:
    """Whether torch refuses for want of a deterministic kernel. Its complaint about a missing cuBLAS workspace is no such thing."""
    text = str(error)
    return "deterministic" in text and "CUBLAS_WORKSPACE_CONFIG" not in text


@contextmanager
def noise(device: str) -> Iterator[None]:
    """Have other work going on in a block: a second stream of a GPU, or a second thread on the CPU. It draws no random numbers."""
    import torch

    stop = threading.Event()

    def work() -> None:
        square = torch.ones(192, 192, device=device)
        if device == "cpu":
            while not stop.wait(0.0005):
                square @ square
            return
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device=device)):
            while not stop.wait(0.0005):
                for _ in range(20):
                    square @ square
            torch.cuda.synchronize()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def odd_ones(runs: Sequence[Run]) -> list[str]:
    """Names of the runs that differ from what most came out as; on a tie, from what came first."""
    counts = Counter(run.value for run in runs)
    most = max(counts.values())
    usual = next(run.value for run in runs if counts[run.value] == most)
    return [run.name for run in runs if run.value != usual]


def judge(runs: Sequence[Run], context: Context, name: str, device: str, **depends: Any) -> Outcome:
    """The outcome over all runs of one computation, by what the level promises."""
    evidence: dict[str, Any] = {"runs": len(runs), "distinct": len({run.value for run in runs})}
    refused = [run for run in runs if run.refused]
    if refused and len(refused) == len(runs):
        return unsupported(f"torch refuses: {refused[0].value}", outcome="raises", evidence=evidence)
    odd = odd_ones(runs)
    if not odd:
        found = (Fingerprint(name, runs[0].value, context.depends(device, **depends)),)
        return passed(f"{len(runs)} runs, one result", outcome="equal", evidence=evidence, fingerprints=found)
    why = f"{evidence['distinct']} results in {len(runs)} runs; different in: {', '.join(odd[:6])}"
    evidence["odd"] = odd
    if context.settings.level == "strict":
        hint = "use another operation, or report it: torch does not refuse what it should"
        return failed(f"silently different: {why}", outcome="differs", fault="image", hint=hint, evidence=evidence)
    if context.settings.level == "deterministic":
        return passed(f"known to be nondeterministic, and this level only warns: {why}", outcome="differs", evidence=evidence)
    return passed(f"the level {context.settings.level} promises nothing here: {why}", outcome="differs", evidence=evidence)
