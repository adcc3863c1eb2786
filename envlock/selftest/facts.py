"""What is here: versions, the processor and what of it is in force, GPUs. Collected in a fresh process."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envlock.runtime import hardware
from envlock.selftest import printed

if TYPE_CHECKING:
    from types import ModuleType


def collect() -> dict[str, Any]:
    """All facts of protocol.py. Where torch cannot be imported or CUDA not started, `error` or `gpu_error` says why."""
    # Read by the libraries when they are first used.
    os.environ.update(MKL_VERBOSE="1", ONEDNN_VERBOSE="1")
    found: dict[str, Any] = {"python": platform.python_version(), "platform": f"linux/{hardware.architecture()}"}
    try:
        import torch
    except Exception as error:
        return {**found, "error": f"{type(error).__name__}: {error}", "cuda": None, "gpus": []}
    found.update(torch=str(torch.__version__), numpy=_numpy(), cuda=torch.version.cuda)
    found["cpu"] = _cpu(torch)
    found["driver"] = hardware.driver()
    found["gpus"] = []
    if torch.version.cuda is not None:
        try:
            found["gpus"] = hardware.gpus(torch)
            if not found["gpus"] and Path("/dev/nvidiactl").exists():
                # There is a GPU and torch counts none: starting CUDA says why.
                torch.cuda.init()
            found["gpu_health"] = hardware.health()
        except Exception as error:
            found["gpu_error"] = f"{type(error).__name__}: {error}"
    return found


def _numpy() -> str | None:
    try:
        import numpy
    except ImportError:
        return None
    return str(numpy.__version__)


def _cpu(torch: ModuleType) -> dict[str, Any]:
    asked = ask_libraries(torch)
    return {
        **hardware.cpu(),
        "isa": isa_in_force(asked, wide="avx512f" in hardware.cpuinfo()),
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)),
        **asked,
    }


def isa_in_force(asked: dict[str, Any], *, wide: bool) -> str:
    """One text for all that decides the CPU's bits. Where MKL chooses by itself, what it can choose from is part of it."""
    branch = asked["mkl"] or "none"
    if branch.startswith("AUTO"):
        branch += "-avx512" if wide else "-avx2"
    return f"aten={asked['aten']} onednn={asked['onednn'] or 'none'} mkl={branch}"


def ask_libraries(torch: ModuleType) -> dict[str, Any]:
    """What torch's own kernels, oneDNN and MKL say they use, by having them compute a little."""
    with printed.captured() as said:
        square = torch.ones(64, 64)
        square @ square
        torch.nn.functional.conv2d(torch.ones(2, 3, 32, 32), torch.ones(8, 3, 3, 3))
    return {
        "aten": hardware.capability(torch),
        "onednn": printed.onednn_isa(said.text),
        "mkl": printed.mkl_branch(said.text),
        "mkl_threads": printed.mkl_threads(said.text),
        "mkl_dynamic": printed.mkl_dynamic(said.text),
        "onednn_threads": printed.onednn_threads(said.text),
    }
