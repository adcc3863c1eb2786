"""The OpenBLAS libraries that packages bring: asked, and told, how many threads to use.

OpenBLAS starts no more threads than the host has cores, whatever OPENBLAS_NUM_THREADS says; told afterwards, it does.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any


def mapped() -> list[str]:
    """Files that this process has mapped, each once, in order of address."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    fields = (line.split(None, 5) for line in lines)
    return list(dict.fromkeys(field[5] for field in fields if len(field) == 6 and field[5].startswith("/")))


def loaded() -> dict[str, ctypes.CDLL]:
    """Every OpenBLAS of this process, by the package that brought it."""
    paths = (path for path in mapped() if "openblas" in path.rsplit("/", 1)[-1])
    return {path.rsplit("/", 2)[-2].replace(".libs", ""): ctypes.CDLL(path) for path in paths}


def threads() -> dict[str, int]:
    """Threads in use, by package."""
    found = {name: _function(library, "get_num_threads") for name, library in loaded().items()}
    return {name: int(function()) for name, function in found.items() if function is not None}


def set_threads(count: int) -> None:
    """Have every OpenBLAS of this process use a number of threads, more than the host's cores too."""
    for library in loaded().values():
        function = _function(library, "set_num_threads")
        if function is not None:
            function(ctypes.c_int(count))


def core_names() -> dict[str, str]:
    """The kernels in use, by package: `Haswell`, `SkylakeX`."""
    found = {}
    for name, library in loaded().items():
        function = _function(library, "get_corename")
        if function is not None:
            function.restype = ctypes.c_char_p
            found[name] = function().decode()
    return found


def _function(library: ctypes.CDLL, name: str) -> Any:
    """A function under any of the names that wheels give it: `scipy_openblas_get_num_threads64_`."""
    for prefix in ("scipy_openblas_", "openblas_"):
        for suffix in ("64_", "_64", ""):
            function = getattr(library, f"{prefix}{name}{suffix}", None)
            if function is not None:
                return function
    return None
