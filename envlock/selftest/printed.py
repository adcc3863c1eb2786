"""What C libraries print on stdout: the only way to ask MKL and oneDNN what they use."""

from __future__ import annotations

import ctypes
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Capture:
    """Filled with what was printed once its block has ended."""

    text = ""


@contextmanager
def captured() -> Iterator[Capture]:
    """Catch what C code writes to stdout in a block: up to a pipe's 64 KiB, so for a handful of lines only."""
    caught = Capture()
    libc = ctypes.CDLL(None)
    libc.fflush(None)
    kept = os.dup(1)
    reader, writer = os.pipe()
    os.dup2(writer, 1)
    os.close(writer)
    try:
        yield caught
    finally:
        libc.fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        with os.fdopen(reader, encoding="utf-8", errors="replace") as stream:
            caught.text = stream.read()


def mkl_branch(text: str) -> str | None:
    """MKL's code branch in force, from MKL_VERBOSE's lines: `AVX2`, `COMPATIBLE`, `AUTO`."""
    return _first(r"\bCNR:([A-Z0-9_,]+)", text)


def mkl_threads(text: str) -> int | None:
    """The threads that MKL used."""
    found = _first(r"\bNThr:(\d+)", text)
    return None if found is None else int(found)


def mkl_dynamic(text: str) -> bool | None:
    """Whether MKL may use fewer threads than asked for."""
    found = _first(r"\bDyn:(\d)", text)
    return None if found is None else found == "1"


def onednn_isa(text: str) -> str | None:
    """The instruction set that oneDNN compiles for: `Intel AVX2`."""
    return _first(r"onednn_verbose.*?cpu,isa:(.+)", text)


def onednn_threads(text: str) -> int | None:
    """The threads that oneDNN counts on."""
    found = _first(r"onednn_verbose.*?cpu,runtime:\w+,nthr:(\d+)", text)
    return None if found is None else int(found)


def _first(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text)
    return match.group(1).strip() if match else None
