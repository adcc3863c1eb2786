"""Which shared libraries a process has mapped, and whether they come from where they should."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envlock.runtime.openblas import mapped

if TYPE_CHECKING:
    from collections.abc import Iterable

_FAMILIES = {
    "libcuda": r"libcuda\.so",
    "libcudnn": r"libcudnn[a-z_]*\.so",
    "libcublas": r"libcublas(Lt)?\.so",
    "libnccl": r"libnccl\.so",
    "libnvJitLink": r"libnvJitLink\.so",
}
_SHADOWED = {
    "libcudnn": "cudnn-shadowed",
    "libnvJitLink": "nvjitlink-shadowed",
    "libnccl": "nccl-shadowed",
    "libcublas": "cublas-shadowed",
    "libcuda": "libcuda-twice",
}


@dataclass(frozen=True)
class LibraryFault:
    """A library that is loaded from the wrong place; `fault` says whose matter it is."""

    id: str
    what: str
    fault: str
    hint: str


def family(path: str) -> str | None:
    """The CUDA library family that a file belongs to, of those that are looked at."""
    name = path.rsplit("/", 1)[-1]
    return next((family for family, pattern in _FAMILIES.items() if re.match(pattern, name)), None)


def judge(paths: Iterable[str]) -> list[LibraryFault]:
    """What is wrong with a process's mapped files: a family from two folders, a stub, a driver library that the image brought."""
    found: list[LibraryFault] = []
    folders: dict[str, set[str]] = {}
    for path in paths:
        kind = family(path)
        if kind is None:
            continue
        folder = path.rsplit("/", 1)[0]
        folders.setdefault(kind, set()).add(folder)
        if kind == "libcuda" and "/stubs" in folder:
            hint = "take the stubs folder out of LD_LIBRARY_PATH"
            found.append(LibraryFault("libcuda-stub", f"{path} is a stub, not the driver's library", "image", hint))
        elif kind == "libcuda" and "/compat" in folder:
            hint = "remove the cuda-compat package from the base image"
            found.append(LibraryFault("compat-in-image", f"the driver's library comes from the image: {path}", "image", hint))
    for kind, places in folders.items():
        if len(places) > 1:
            what = f"{kind} is loaded from {len(places)} folders: {' and '.join(sorted(places))}"
            hint = "take the other CUDA out of LD_LIBRARY_PATH or out of the base image"
            found.append(LibraryFault(_SHADOWED[kind], what, "image", hint))
    return found


def mapped_after_use() -> list[str]:
    """Mapped files after torch has used each of its CUDA libraries: many are loaded only then."""
    import torch

    if torch.version.cuda is not None and torch.cuda.is_available():
        square = torch.ones(128, 128, device="cuda")
        square @ square
        torch.nn.functional.conv2d(torch.ones(1, 4, 32, 32, device="cuda"), torch.ones(4, 4, 3, 3, device="cuda"))
        torch.linalg.solve(square + 128 * torch.eye(128, device="cuda"), square)
        torch.fft.fft(square)
        torch.cuda.synchronize()
    return mapped()
