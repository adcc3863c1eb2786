"""Operations on this hardware are right, every number format of every CUDA library, on every GPU, and in native code."""

from __future__ import annotations

import tempfile
from functools import partial
from typing import Any

from envlock.runtime import hardware
from envlock.selftest import architectures, children, kernels
from envlock.selftest.checks import Check, Context
from envlock.selftest.kernels import KERNELS, Kernel, Lacking
from envlock.selftest.protocol import Outcome, failed, not_run, passed, unsupported

HERE = "envlock.selftest.groups.kernels"
JIT_DISABLED = 223
"""CUDA_ERROR_JIT_COMPILATION_DISABLED of the driver's interface."""


def checks(context: Context) -> tuple[Check, ...]:
    """The group's checks."""
    del context
    code = "the wheel has native code for every GPU"
    native = "everything runs with PTX compilation disabled and an empty cache, where PTX itself is refused"
    found = [
        Check("kernels.gpu.driver", "CUDA starts", "CUDA starts on this host's driver", starts, needs=("cuda",)),
        Check("kernels.gpu.architecture", "Architecture", code, architecture, needs=("gpu",)),
    ]
    for kernel in KERNELS:
        for dtype in kernel.dtypes:
            name, proves = f"{kernel.name}.{dtype}", f"{kernel.name} in {dtype} is right ({kernel.library})"
            if not kernel.gpu_only and dtype != "tf32":
                found.append(Check(f"kernels.cpu.{name}", f"{name}, cpu", proves, partial(right, kernel, dtype, "cpu")))
            found.append(Check(f"kernels.gpu.{name}", f"{name}, gpu", proves, partial(right, kernel, dtype, "cuda"), needs=("gpu",)))
    found.append(Check("kernels.gpu.native", "Native code", native, native_only, needs=("gpu",), limit=600))
    found.append(Check("kernels.gpu.health", "GPU health", "no memory error has come up since the start", health, needs=("gpu",)))
    return tuple(found)


def starts(context: Context) -> Outcome:
    error = context.facts.get("gpu_error")
    if error is not None:
        from envlock.selftest.worker import crashed

        return crashed(error, "crashed", error)
    if not context.facts["gpus"]:
        return not_run("no GPU is visible here", fault="host", hint="run it on a GPU host, with the container given its GPUs")
    return passed(f"driver {context.facts['driver']}", evidence={"gpus": context.facts["gpus"]})


def architecture(context: Context) -> Outcome:
    import torch

    codes = torch.cuda.get_arch_list()
    found = {
        f"GPU {gpu['index']}, {gpu['model']} ({gpu['capability']})": architectures.native_code(
            codes, gpu["capability"], context.facts["cuda"]
        )
        for gpu in context.facts["gpus"]
    }
    lacking = [gpu for gpu, code in found.items() if code is None]
    evidence = {"wheel": codes, "gpus": found}
    if lacking:
        targets = ((context.lock or {}).get("stack") or {}).get("gpus") or []
        why = f"the wheel has no native code for {', '.join(lacking)}; it has {', '.join(codes)}"
        fault = "host" if targets else "image"
        hint = "lock a torch whose wheel has it (`envlock stacks --gpu`)"
        return failed(why, finding="no-kernel-image", fault=fault, hint=hint, evidence=evidence)
    return passed(", ".join(str(code) for code in found.values()), evidence=evidence)


def right(kernel: Kernel, dtype: str, device: str, context: Context) -> Outcome:
    places = ["cpu"] if device == "cpu" else [f"cuda:{gpu['index']}" for gpu in context.facts["gpus"]]
    found = {}
    for place in places:
        try:
            found[place] = kernels.measure(kernel, dtype, place)
        except Lacking as error:
            return unsupported(str(error))
    wrong = [f"{place}: error {m.error:.1e}" for place, m in found.items() if not m.error <= m.bound]
    evidence = {place: vars(m) for place, m in found.items()}
    if wrong:
        why = f"{'; '.join(wrong)}, the bound is {found[places[0]].bound:.1e}"
        return failed(why, fault="host" if len(wrong) < len(places) else "image", evidence=evidence)
    return passed(f"error {max(m.error for m in found.values()):.1e}", evidence=evidence)


def native_only(context: Context) -> Outcome:
    devices = [f"cuda:{gpu['index']}" for gpu in context.facts["gpus"]]
    with tempfile.TemporaryDirectory() as empty:
        env = {"CUDA_DISABLE_PTX_JIT": "1", "CUDA_CACHE_PATH": empty, "CUDA_CACHE_DISABLE": "1"}
        ptx = children.call(f"{HERE}:load_ptx", env=env)
        usual = children.call(f"{HERE}:load_ptx", env={"CUDA_DISABLE_PTX_JIT": None, "CUDA_CACHE_PATH": empty})
        ran = children.call(f"{HERE}:run_all", {"devices": devices}, env=env, timeout=600)
    evidence = {"PTX with compilation disabled": ptx, "PTX otherwise": usual, "ran": ran}
    if usual != 0 or ptx != JIT_DISABLED:
        why = f"loading PTX gave {ptx} with compilation disabled and {usual} without, so that nothing is shown here"
        return unsupported(f"not discriminating: {why}", outcome="not-discriminating", evidence=evidence)
    wrong = {name: answer for name, answer in ran.items() if answer.startswith("failed")}
    if wrong:
        return failed(f"only by PTX: {', '.join(wrong)}", finding="no-kernel-image", fault="image", evidence=evidence)
    return passed(f"{len(ran)} kernels", evidence=evidence)


def load_ptx() -> int:
    """The driver's answer to a module that is PTX alone: 0 when it compiled it."""
    import ctypes

    import torch

    torch.ones(1, device="cuda")
    capability = torch.cuda.get_device_capability()
    target = "sm_75" if capability >= (7, 5) else "sm_50"
    text = f".version 6.4\n.target {target}\n.address_size 64\n.visible .entry nothing() {{ ret; }}\n"
    module = ctypes.c_void_p()
    return int(ctypes.CDLL("libcuda.so.1").cuModuleLoadData(ctypes.byref(module), text.encode()))


def run_all(devices: list[str]) -> dict[str, str]:
    """Every kernel that has no compilation at run time as its purpose: `ran`, `lacking`, or `failed: …`."""
    found = {}
    for kernel in KERNELS:
        for dtype in kernel.dtypes if kernel.library != "NVRTC" else ():
            for device in devices:
                try:
                    kernels.measure(kernel, dtype, device)
                    answer = "ran"
                except Lacking:
                    answer = "lacking"
                except Exception as error:
                    answer = f"failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                found[f"{kernel.name}.{dtype} on {device}"] = answer
    return found


def health(context: Context) -> Outcome:
    return judge_health(context.facts.get("gpu_health"), hardware.health())


def judge_health(before: dict[str, Any] | None, after: dict[str, Any] | None) -> Outcome:
    """Whether counts of uncorrected memory errors, or the kernel's Xid lines, have grown."""
    if not before or not after:
        return unsupported("nvidia-smi does not answer here")
    grown = [f"{name}: {before[name]} before, {after[name]} now" for name in before if name in after and after[name] != before[name]]
    evidence = {"before": before, "after": after}
    if grown:
        hint = "test the GPU with its vendor's diagnostics before trusting what it computed"
        return failed("; ".join(grown), finding="gpu-unhealthy", fault="host", hint=hint, evidence=evidence)
    return passed(evidence=evidence)
