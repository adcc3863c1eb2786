"""The image's ENV: what the base leaves, what Python and CUDA need, the determinism settings, what the spec adds."""

from __future__ import annotations

from collections.abc import Mapping

from envlock.lock import Stack
from envlock.runtime import settings
from envlock.spec import Spec

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
VENV = "/opt/venv"


def image_environment(spec: Spec, stack: Stack, numpy: str | None, inherited: Mapping[str, str]) -> dict[str, str]:
    """Every variable of the image's config, sorted by name.

    `numpy` is NumPy's version, where it is locked; `inherited` is the base image's ENV. What would break the promise of a level, or
    let the base's CUDA libraries shadow the wheels', is dropped from it; the spec's own variables come last and were checked by
    `stack.solve`.
    """
    unsafe = {override.name for override in settings.overrides()} | {"LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME"}
    variables = {name: value for name, value in inherited.items() if name not in unsafe}
    variables["PATH"] = f"{VENV}/bin:{inherited.get('PATH') or SYSTEM_PATH}"
    variables["VIRTUAL_ENV"] = VENV
    variables["LANG"] = "C.UTF-8"
    variables["PYTHONNOUSERSITE"] = "1"
    if stack.variant != "cpu":
        # What NVIDIA's container runtime looks for when it decides whether to bring the driver in.
        variables["NVIDIA_VISIBLE_DEVICES"] = "all"
        variables["NVIDIA_DRIVER_CAPABILITIES"] = "compute,utility"
    wish = spec.determinism
    variables |= settings.environment(
        level=wish.level,
        seed=wish.seed,
        threads=wish.threads,
        tf32=wish.tf32,
        torch_version=stack.torch,
        platform=stack.platform,
        numpy_version=numpy,
    )
    variables |= spec.env
    return dict(sorted(variables.items()))
