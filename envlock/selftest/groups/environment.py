"""What is here is what was locked: versions, variables, libraries, and the settings that can only be asked for before a start."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from functools import lru_cache
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envlock.runtime import openblas
from envlock.runtime import settings as table
from envlock.selftest import children, libraries
from envlock.selftest.checks import Check, Context
from envlock.selftest.protocol import Outcome, failed, passed

if TYPE_CHECKING:
    from collections.abc import Mapping

SMALL_SHM = 64 * 2**20
"""Bytes that Docker gives /dev/shm when nothing else is asked for."""


def checks(context: Context) -> tuple[Check, ...]:
    """The group's checks."""
    del context
    return (
        Check("environment.versions", "Versions", "Python, torch and its libraries are those of the lock", versions, needs=("lock",)),
        Check(
            "environment.packages",
            "Packages",
            "every locked wheel is installed in its version, and nothing else is",
            packages,
            needs=("lock",),
        ),
        Check(
            "environment.cudnn",
            "cuDNN",
            "the cuDNN that is loaded is the one torch was built with, and the one installed",
            cudnn,
            needs=("gpu",),
        ),
        Check("environment.imports", "Imports", "torch comes from this environment, not from a mounted home folder", imports),
        Check("environment.variables", "Variables", "a fresh process gets exactly the locked variables", variables),
        Check("environment.overrides", "Overrides", "nothing is set that silently undoes the level", overrides),
        Check("environment.hook", "Start-up hook", "the level is in force in a fresh process", hook, level="seeded"),
        Check(
            "environment.hash-seed",
            "Hash seed",
            "PYTHONHASHSEED is in force: hashes of texts are those of the seed",
            hash_seed,
            level="seeded",
        ),
        Check("environment.threads", "Threads", "torch, MKL and NumPy use the locked number of threads", threads, level="deterministic"),
        Check(
            "environment.cpu",
            "Instruction set",
            "kernels on the CPU are capped at the locked instruction set",
            instruction_set,
            level="deterministic",
        ),
        Check("environment.libraries", "Loaded libraries", "each CUDA library is loaded from one place", loaded),
        Check("environment.shared-memory", "Shared memory", "/dev/shm is as large as the lock asks for", shared_memory),
    )


@lru_cache(maxsize=None)  # noqa: UP033
def _probe() -> dict[str, Any]:
    found: dict[str, Any] = children.call("envlock.selftest.groups.environment:probe")
    return found


def probe() -> dict[str, Any]:
    """What a fresh process with torch says about itself, libraries last: using them maps more files."""
    found: dict[str, Any] = {"imports": imports_here(), "versions": versions_here(), "cudnn": cudnn_here()}
    found.update(openblas_threads=openblas.threads(), openblas_cores=openblas.core_names())
    return {**found, "mapped": libraries.mapped_after_use()}


def versions(context: Context) -> Outcome:
    assert context.lock is not None
    stack = context.lock["stack"]
    found = _probe()["versions"]
    wrong = differences(expected_versions(stack), found)
    evidence = {"locked": expected_versions(stack), "found": found}
    if wrong:
        return failed(f"not as locked: {'; '.join(wrong)}", fault="image", evidence=evidence, hint="build the image again from its lock")
    return passed(f"torch {found['torch']}, Python {found['python']}", evidence=evidence)


def expected_versions(stack: Mapping[str, Any]) -> dict[str, str]:
    """What a lock's stack says, by the names of `versions_here`."""
    names = ("python", "torch", "cuda", "cudnn", "nccl", "triton")
    return {name: stack[name] for name in names if stack.get(name) is not None and not (name == "cuda" and stack[name] == "cpu")}


def versions_here() -> dict[str, str | None]:
    """Versions as the libraries themselves tell them."""
    import platform

    import torch

    cudnn_number = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cudnn": None if cudnn_number is None else cudnn_version(cudnn_number),
        "nccl": None,
        "triton": None,
    }
    if torch.version.cuda is not None:
        try:
            found["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
        except (AttributeError, RuntimeError):
            found["nccl"] = None
    for distribution in ("triton", "pytorch-triton"):
        try:
            found["triton"] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return found


def cudnn_version(number: int) -> str:
    """cuDNN's number as a version: 90100 is 9.1.0, 8902 is 8.9.2."""
    major, rest = divmod(number, 10000) if number >= 90000 else divmod(number, 1000)
    minor, patch = divmod(rest, 100)
    return f"{major}.{minor}.{patch}"


def differences(wanted: Mapping[str, str], found: Mapping[str, str | None]) -> list[str]:
    """Where a found version is not the locked one, or a more exact form of it (`3.11` locked, 3.11.2 found; local parts do not count)."""
    wrong = []
    for name, version in wanted.items():
        have = found.get(name)
        if have is None:
            wrong.append(f"{name} {version} is locked, none is found")
            continue
        short = min(len(table.release(version)), len(table.release(have)))
        if table.release(version)[:short] != table.release(have)[:short]:
            wrong.append(f"{name} {version} is locked, {have} is found")
    return wrong


def packages(context: Context) -> Outcome:
    assert context.lock is not None
    locked = {wheel["name"]: wheel["version"] for wheel in context.lock["wheels"]}
    found = {normal_name(entry.metadata["Name"]): entry.version for entry in metadata.distributions() if entry.metadata["Name"]}
    wrong = [
        f"{name} {version} is locked, {found.get(name, 'none')} is found" for name, version in locked.items() if found.get(name) != version
    ]
    extra = sorted(set(found) - set(locked))
    evidence = {"locked": len(locked), "found": len(found), "not_locked": extra}
    if wrong or extra:
        said = [*wrong, *(f"{name} {found[name]} is installed and not locked" for name in extra)]
        return failed("; ".join(said[:10]), fault="image", evidence={**evidence, "wrong": said}, hint="build the image again from its lock")
    return passed(f"{len(locked)} packages", evidence=evidence)


def normal_name(name: str) -> str:
    """A project name as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def cudnn(context: Context) -> Outcome:
    del context
    found = _probe()["cudnn"]
    named = {name: number for name, number in found.items() if number is not None}
    if len({".".join(number.split(".")[:3]) for number in named.values()}) > 1:
        said = ", ".join(f"{name} {number}" for name, number in named.items())
        return failed(f"several versions of cuDNN: {said}", finding="cudnn-shadowed", fault="image", evidence=found)
    return passed(f"cuDNN {named.get('loaded')}", evidence=found)


def cudnn_here() -> dict[str, str | None]:
    """cuDNN's version as loaded, as compiled against, and as the installed package has it."""
    import torch

    loaded_number = torch.backends.cudnn.version()
    compiled = getattr(getattr(torch._C, "_cudnn", None), "getCompileVersion", None)
    distribution = next(
        (entry.version for entry in metadata.distributions() if (entry.metadata["Name"] or "").startswith("nvidia-cudnn")), None
    )
    return {
        "loaded": None if loaded_number is None else cudnn_version(loaded_number),
        "compiled": None if compiled is None else ".".join(str(part) for part in compiled()),
        "package": distribution,
    }


def imports(context: Context) -> Outcome:
    del context
    found = _probe()["imports"]
    outside = {name: path for name, path in found["files"].items() if Path(found["prefix"]) not in Path(path).parents}
    if found["user_site"]:
        why = "the user's own site-packages folder is searched: a mounted home folder can replace locked packages"
        return failed(
            why, finding="user-site-leaks-in", fault="image", evidence=found, hint="set PYTHONNOUSERSITE=1, or use a virtual environment"
        )
    if outside:
        why = f"imported from outside {found['prefix']}: {', '.join(sorted(outside.values()))}"
        return failed(why, fault="image", evidence=found, hint="take the folder out of PYTHONPATH and of sys.path")
    return passed(found["files"]["torch"], evidence=found)


def imports_here() -> dict[str, Any]:
    """Where torch and NumPy come from."""
    import site

    import torch

    files = {"torch": str(torch.__file__)}
    with contextlib.suppress(ImportError):
        files["numpy"] = str(import_module("numpy").__file__)
    return {"files": files, "prefix": sys.prefix, "user_site": bool(site.ENABLE_USER_SITE) and not sys.flags.no_user_site}


def variables(context: Context) -> Outcome:
    found = children.call("envlock.selftest.groups.environment:environment_here")
    settings = context.settings
    wanted = dict(context.lock["environment"]) if context.lock is not None else _wanted(context)
    # The one variable that is meant to be chosen at run time.
    wanted["ENVLOCK_DETERMINISM"] = settings.level
    wrong = [f"{name}={value!r} is locked, {_shown(found, name)}" for name, value in wanted.items() if found.get(name, "") != value]
    ours = {row.name for row in table.table().variables}
    unasked = sorted(name for name in ours - set(wanted) if found.get(name))
    evidence = {"wanted": wanted, "found": {name: found[name] for name in sorted(ours | set(wanted)) if name in found}}
    if wrong or unasked:
        said = [*wrong, *(f"{name}={found[name]!r} is set and not locked" for name in unasked)]
        return failed("; ".join(said), evidence=evidence, hint="start the container without these changes, or build the image again")
    return passed(f"{len(wanted)} variables", evidence=evidence)


def _wanted(context: Context) -> dict[str, str]:
    settings, facts = context.settings, context.facts
    return table.environment(
        settings.level,
        seed=settings.seed,
        threads=settings.threads or 4,
        tf32=settings.tf32,
        torch_version=facts["torch"],
        platform=facts["platform"],
        numpy_version=facts["numpy"],
    )


def _shown(found: Mapping[str, str], name: str) -> str:
    return f"{found[name]!r} is set" if name in found else "it is not set"


def environment_here() -> dict[str, str]:
    """The environment that this process was started with, as the kernel keeps it: later changes in the process do not show."""
    raw = Path("/proc/self/environ").read_bytes().decode(errors="surrogateescape")
    return dict(part.split("=", 1) for part in raw.split("\0") if "=" in part)


def overrides(context: Context) -> Outcome:
    found = children.call("envlock.selftest.groups.environment:environment_here")
    settings = context.settings
    faults = table.faults(found, level=settings.level, tf32=settings.tf32)
    files = table.settings_files(settings.level)
    if not faults and not files:
        return passed()
    said = [fault.what + ": " + fault.why for fault in faults] + [f"{path}: {table.table().files.reason}" for path in files]
    hint = faults[0].hint if faults else table.table().files.hint
    finding = faults[0].id if faults else "env-override"
    return failed(
        "; ".join(said), finding=finding, evidence={"variables": {f.name: f.value for f in faults}, "files": list(files)}, hint=hint
    )


def hook(context: Context) -> Outcome:
    code = "import sys; f=[x for x in sys.meta_path if type(x).__module__=='envlock.runtime.hook']; print(f[0].choice.level if f else '')"
    ended = children.run([sys.executable, "-c", code], env=children.environment({"ENVLOCK_DETERMINISM": context.settings.level}))
    level = ended.stdout.strip()
    if level != context.settings.level:
        why = f"a fresh process has the level {level or 'off'}, not {context.settings.level}"
        printed = {"printed": ended.stderr}
        return failed(why, fault="image", evidence=printed, hint="envlock.pth is missing in the environment's site-packages folder")
    return passed(f"level {level}")


def hash_seed(context: Context) -> Outcome:
    code = "print(hash('envlock'), end='')"
    asked: Mapping[str, str | None] = {"PYTHONHASHSEED": str(context.settings.seed)}
    here = children.run([sys.executable, "-c", code], env=children.environment())
    expected = children.run([sys.executable, "-c", code], env=children.environment(asked))
    other = children.run([sys.executable, "-c", code], env=children.environment({"PYTHONHASHSEED": str(context.settings.seed + 1)}))
    evidence = {"found": here.stdout, "expected": expected.stdout, "under another seed": other.stdout}
    if expected.stdout == other.stdout:
        return failed("hashes do not depend on the seed: this check is blind here", evidence=evidence)
    if here.stdout != expected.stdout:
        return failed(
            f"hashes are not those of PYTHONHASHSEED={context.settings.seed}", evidence=evidence, hint="set it before Python starts"
        )
    return passed(evidence=evidence)


def threads(context: Context) -> Outcome:
    wanted = context.settings.threads
    cpu = context.facts["cpu"]
    found = {
        "torch": cpu["threads"],
        "MKL": cpu["mkl_threads"],
        "oneDNN": cpu["onednn_threads"],
        **{f"OpenBLAS in {name}": count for name, count in _probe()["openblas_threads"].items()},
    }
    named = {name: count for name, count in found.items() if count is not None}
    wrong = [f"{name} uses {count}" for name, count in named.items() if count != wanted]
    if cpu["mkl_dynamic"]:
        wrong.append("MKL may use fewer (MKL_DYNAMIC)")
    evidence = {"wanted": wanted, **named}
    if wrong:
        hint = "set OMP_NUM_THREADS, MKL_NUM_THREADS and OPENBLAS_NUM_THREADS, with OMP_DYNAMIC and MKL_DYNAMIC false, before the start"
        return failed(f"{wanted} threads are locked; {', '.join(wrong)}", evidence=evidence, hint=hint)
    return passed(f"{wanted} threads", evidence=evidence)


def instruction_set(context: Context) -> Outcome:
    wanted = (context.lock or {}).get("environment") or _wanted(context)
    cpu = context.facts["cpu"]
    cores = _probe()["openblas_cores"]
    found = {"torch": cpu["aten"], "oneDNN": cpu["onednn"], "MKL": cpu["mkl"], **{f"OpenBLAS in {n}": c for n, c in cores.items()}}
    found["NumPy above the cap"] = numpy_above(wanted.get("NPY_DISABLE_CPU_FEATURES", ""))
    wrong = []
    asked = wanted.get("ATEN_CPU_CAPABILITY")
    if asked is not None and cpu["aten"].lower() != asked:
        wrong.append(f"torch uses {cpu['aten']}, {asked} is locked")
    asked = wanted.get("ONEDNN_MAX_CPU_ISA")
    if asked is not None and cpu["onednn"] is not None and not cpu["onednn"].upper().endswith(asked):
        wrong.append(f"oneDNN uses {cpu['onednn']}, {asked} is locked")
    asked = wanted.get("OPENBLAS_CORETYPE")
    wrong += [
        f"OpenBLAS in {name} uses {core}, {asked} is locked" for name, core in cores.items() if asked and core.lower() != asked.lower()
    ]
    if found["NumPy above the cap"]:
        wrong.append(f"NumPy still uses {', '.join(found['NumPy above the cap'])}")
    if wrong:
        hint = "this host may lack the locked instruction set, or the variable was changed at the start"
        return failed("; ".join(wrong), fault="host", evidence=found, hint=hint)
    note = "MKL chooses by itself on this processor (MKL_CBWR is for Intel's)" if str(cpu["mkl"]).startswith("AUTO") else ""
    return passed(note, evidence=found)


def numpy_above(disabled: str) -> list[str]:
    """Those of NumPy's dispatched features that should be off and are on."""
    try:
        import numpy
    except ImportError:
        return []
    core = getattr(numpy, "_core", None) or numpy.core
    umath = core._multiarray_umath
    features, dispatched = umath.__cpu_features__, set(umath.__cpu_dispatch__)
    return [name for name in disabled.split() if name in dispatched and features.get(name)]


def loaded(context: Context) -> Outcome:
    paths = _probe()["mapped"]
    findings = libraries.judge(paths)
    evidence = {"paths": [path for path in paths if libraries.family(path)]}
    if findings:
        first = findings[0]
        return failed("; ".join(f.what for f in findings), finding=first.id, fault=first.fault, hint=first.hint, evidence=evidence)
    if context.facts.get("cuda") is None:
        return passed("this torch loads no CUDA library", evidence=evidence)
    return passed(f"{len(evidence['paths'])} files", evidence=evidence)


def shared_memory(context: Context) -> Outcome:
    asked = ((context.lock or {}).get("run") or {}).get("shm_size")
    wanted = size_in_bytes(asked) if asked else SMALL_SHM
    try:
        have = shutil.disk_usage("/dev/shm").total
    except OSError:
        return failed("/dev/shm is missing: DataLoader workers cannot hand over data", finding="shm-too-small", fault="host")
    evidence = {"wanted": wanted, "found": have, "writable": os.access("/dev/shm", os.W_OK)}
    if not evidence["writable"]:
        return failed("/dev/shm cannot be written: DataLoader workers cannot hand over data", finding="shm-too-small", fault="host")
    if have < wanted:
        why = f"/dev/shm has {have} bytes, {wanted} are wanted"
        hint = f"start the container with --shm-size {asked or '1g'}"
        return failed(why, finding="shm-too-small", fault="host", evidence=evidence, hint=hint)
    return passed(f"{have} bytes", evidence=evidence)


def size_in_bytes(text: str) -> int:
    """`8g` as Docker reads it."""
    factor = {"k": 2**10, "m": 2**20, "g": 2**30}.get(text[-1:], 1)
    return int(text.rstrip("kmg")) * factor
