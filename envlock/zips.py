"""Zip files: what reading a broken one raises."""

from __future__ import annotations

import struct
import zipfile
import zlib

BROKEN_ZIP: tuple[type[Exception], ...] = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    RuntimeError,  # encrypted members, and as NotImplementedError unknown compressions and versions
    ValueError,
    OSError,
)
"""What Python's zipfile was seen to raise of files with one flipped bit; it promises `BadZipFile` alone."""
