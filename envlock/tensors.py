"""Arrays in result files (.npy, .npz, .pt, .pth, .safetensors), read without NumPy or torch and without running anything in them.

A file from an experiment is not trusted: pickles are read by an unpickler that knows inert stand-ins only, headers are bounded,
and data is given out in pieces, so that a checkpoint of any size takes little memory.

Formats: numpy.lib.format (.npy 1.0 to 3.0), safetensors' README, torch/serialization.py (the zip form, since torch 1.6).
"""

from __future__ import annotations

import ast
import json
import math
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from envlock.zips import BROKEN_ZIP

PIECE = 2**20
MOST_HEADER = 100 * 2**20
MOST_PICKLE = 64 * 2**20
MOST_GATHERED = 2**31
MOST_DEPTH = 200

_NPY = {"f2": "float16", "f4": "float32", "f8": "float64", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64"}
_NPY |= {"u1": "uint8", "u2": "uint16", "u4": "uint32", "u8": "uint64", "b1": "bool", "c8": "complex64", "c16": "complex128"}
_SAFETENSORS = {"F16": "float16", "F32": "float32", "F64": "float64", "BF16": "bfloat16", "BOOL": "bool"}
_SAFETENSORS |= {f"{kind}{bits}": f"{name}{bits}" for kind, name in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)}
_STORAGES = {"FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16"}
_STORAGES |= {"LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8"}
_STORAGES |= {"BoolStorage": "bool", "ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128", "UntypedStorage": "uint8"}

SIZES = {"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2, "int32": 4, "uint32": 4, "float32": 4}
SIZES |= {"int64": 8, "uint64": 8, "float64": 8, "complex64": 8, "complex128": 16}
"""Bytes of one element by type; other types are compared too, but only as bytes."""


_MALFORMED: tuple[type[Exception], ...] = (
    *(LookupError, TypeError, AttributeError, SyntaxError, ArithmeticError, MemoryError, pickle.UnpicklingError),
    *BROKEN_ZIP,
)


class NotReadable(Exception):
    """A file is not of the kind that its name says, or holds what is not opened here; it is then compared by its bytes."""


@dataclass(frozen=True, slots=True)
class Array:
    """One array: its name in the file, element type, shape, and a function that gives its bytes in C order, in pieces."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[bytes]]


@dataclass(frozen=True, slots=True)
class Contents:
    """What a file holds: arrays, and everything else as plain values by their path in it."""

    arrays: tuple[Array, ...]
    plain: dict[str, str]


def read_arrays(path: Path) -> Contents | None:
    """The contents of a file whose name says that it holds arrays; None for other names. Raises `NotReadable`."""
    reader = {".npy": _npy_file, ".npz": _npz, ".pt": _torch, ".pth": _torch, ".safetensors": _safetensors}.get(path.suffix.lower())
    if reader is None:
        return None
    with _understood():
        contents = reader(path)
    return replace(contents, arrays=tuple(replace(array, pieces=_guarded(array.pieces)) for array in contents.arrays))


@contextmanager
def _understood() -> Iterator[None]:
    """Whatever a malformed file makes the libraries raise means that it cannot be read."""
    try:
        yield
    except NotReadable:
        raise
    except _MALFORMED as error:
        raise NotReadable(f"{type(error).__name__}: {error}") from None


def _guarded(pieces: Callable[[], Iterator[bytes]]) -> Callable[[], Iterator[bytes]]:
    def guarded() -> Iterator[bytes]:
        with _understood():
            yield from pieces()

    return guarded


# .npy and .npz ---------------------------------------------------------------------------------------------------------


def _npy_file(path: Path) -> Contents:
    @contextmanager
    def opened() -> Iterator[IO[bytes]]:
        with path.open("rb") as stream:
            yield stream

    return Contents((_npy("", opened),), {})


def _npz(path: Path) -> Contents:
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".npy"))
        others = {name: f"{info.CRC:08x} {info.file_size}" for info in archive.infolist() if not (name := info.filename).endswith(".npy")}
    return Contents(tuple(_npy(name.removesuffix(".npy"), _member(path, name)) for name in names), others)


def _member(path: Path, name: str) -> Callable[[], Any]:
    @contextmanager
    def opened() -> Iterator[IO[bytes]]:
        with zipfile.ZipFile(path) as archive, archive.open(name) as stream:
            yield stream

    return opened


def _npy(name: str, opened: Callable[[], Any]) -> Array:
    with opened() as stream:
        header, start = _npy_header(stream)
    descr, shape = header["descr"], tuple(int(size) for size in header["shape"])
    if "|O" in str(descr):
        raise NotReadable("it holds pickled objects, which are not opened")
    kind = str(descr).lstrip("<|=")
    dtype = _NPY.get(kind, str(descr))
    fortran = bool(header["fortran_order"]) and len(shape) > 1

    def pieces() -> Iterator[bytes]:
        with opened() as stream:
            stream.read(start)
            if fortran and dtype in SIZES:
                strides = tuple(math.prod(shape[:axis]) for axis in range(len(shape)))
                yield from _gather(stream.read(), SIZES[dtype], 0, shape, strides)
            else:
                yield from _stream(stream, math.prod(shape) * SIZES[dtype] if dtype in SIZES else None)

    return Array(name, dtype, shape, pieces)


def _npy_header(stream: IO[bytes]) -> tuple[dict[str, Any], int]:
    magic = stream.read(8)
    if magic[:6] != b"\x93NUMPY" or magic[6] not in (1, 2, 3):
        raise NotReadable("it is no .npy file")
    wide = magic[6] > 1
    (length,) = struct.unpack("<I" if wide else "<H", stream.read(4 if wide else 2))
    if length > 2**20:
        raise NotReadable("its header is too long")
    header = ast.literal_eval(stream.read(length).decode("utf-8" if magic[6] == 3 else "latin-1"))
    return header, 8 + (4 if wide else 2) + length


# .safetensors ----------------------------------------------------------------------------------------------------------


def _safetensors(path: Path) -> Contents:
    with path.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > MOST_HEADER:
            raise NotReadable("its header is too long")
        header = json.loads(stream.read(length))
    plain = {f"__metadata__.{key}": str(value) for key, value in (header.pop("__metadata__", None) or {}).items()}
    return Contents(tuple(_safe(path, name, row, 8 + length) for name, row in sorted(header.items())), plain)


def _safe(path: Path, name: str, row: dict[str, Any], base: int) -> Array:
    first, last = row["data_offsets"]

    def pieces() -> Iterator[bytes]:
        with path.open("rb") as stream:
            stream.seek(base + first)
            yield from _stream(stream, last - first)

    return Array(name, _SAFETENSORS.get(row["dtype"], row["dtype"]), tuple(row["shape"]), pieces)


# .pt -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Storage:
    key: str
    dtype: str


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A view of a storage, in elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Inert:
    """Stands for an object of any class: keeps what it was made of, does nothing."""

    def __new__(cls, *arguments: Any, **named: Any) -> _Inert:
        self = super().__new__(cls)
        self.arguments, self.named, self.state, self.items = arguments, named, None, []
        return self

    arguments: tuple[Any, ...]
    named: dict[str, Any]
    state: Any
    items: list[Any]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))

    def append(self, item: Any) -> None:
        self.items.append(item)

    def extend(self, items: Any) -> None:
        self.items.extend(items)

    add = append


def _rebuild_tensor(storage: _Storage, offset: int, shape: Any, strides: Any, *_: Any) -> _Tensor:
    return _Tensor(storage, int(offset), tuple(int(size) for size in shape), tuple(int(stride) for stride in strides))


def _rebuild_typed_tensor(
    storage: _Storage, offset: int, shape: Any, strides: Any, _grad: Any, _hooks: Any, dtype: Any, *_: Any
) -> _Tensor:
    """The form for types without a storage class of their own: the type stands beside."""
    name = dtype.__name__.rpartition(".")[2] if isinstance(dtype, type) else str(dtype)
    return _rebuild_tensor(_Storage(storage.key, name), offset, shape, strides)


def _rebuild_parameter(data: Any, *_: Any) -> Any:
    return data


class _Reader(pickle.Unpickler):
    """Finds inert stand-ins for every name; the few that are real build containers only."""

    _real = {  # noqa: RUF012
        ("collections", "OrderedDict"): OrderedDict,
        ("builtins", "set"): set,
        ("builtins", "frozenset"): frozenset,
        ("builtins", "complex"): complex,
        ("torch", "Size"): tuple,
        ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
        ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
        ("torch._utils", "_rebuild_tensor_v3"): _rebuild_typed_tensor,
        ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    }

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(stream)
        self._inert: dict[tuple[str, str], type] = {}

    def find_class(self, module: str, name: str) -> Any:
        module = "builtins" if module == "__builtin__" else module
        if (module, name) in self._real:
            return self._real[module, name]
        return self._inert.setdefault((module, name), type(f"{module}.{name}", (_Inert,), {}))

    def persistent_load(self, pid: Any) -> _Storage:
        """`("storage", type, key, device, count)`, as torch writes it."""
        kind = pid[1].__name__.rpartition(".")[2]
        return _Storage(str(pid[2]), _STORAGES.get(kind, kind))


@dataclass(slots=True)
class _Found:
    tensors: dict[str, _Tensor] = field(default_factory=dict)
    plain: dict[str, str] = field(default_factory=dict)


def _torch(path: Path) -> Contents:
    if not zipfile.is_zipfile(path):
        raise NotReadable("it is a .pt file of a torch before 1.6, which is a bare pickle")
    with zipfile.ZipFile(path) as archive:
        pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(pickles) != 1 or archive.getinfo(pickles[0]).file_size > MOST_PICKLE:
            raise NotReadable("it has no data.pkl as torch writes it")
        prefix = pickles[0].removesuffix("data.pkl")
        if f"{prefix}byteorder" in archive.namelist() and archive.read(f"{prefix}byteorder") != b"little":
            raise NotReadable("its byte order is not this machine's")
        with archive.open(pickles[0]) as stream:
            top = _Reader(stream).load()
    found = _Found()
    _walk(top, "", found, 0)
    return Contents(tuple(_view(path, prefix, name, tensor) for name, tensor in sorted(found.tensors.items())), found.plain)


def _walk(value: Any, name: str, found: _Found, depth: int) -> None:
    """Collect tensors and plain values by their path in what was pickled."""
    if depth > MOST_DEPTH:
        raise NotReadable(f"it is nested more than {MOST_DEPTH} levels deep")
    if isinstance(value, _Tensor):
        found.tensors[name] = value
    elif isinstance(value, dict):
        for key, inner in value.items():
            _walk(inner, _join(name, key), found, depth + 1)
        if metadata := getattr(value, "__dict__", None):
            _walk(metadata, _join(name, "__dict__"), found, depth + 1)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _walk(inner, _join(name, index), found, depth + 1)
    elif isinstance(value, set | frozenset):
        found.plain[name] = repr(sorted(map(repr, value)))
    elif isinstance(value, _Inert):
        found.plain[name] = type(value).__name__
        _walk([value.arguments, value.named, value.state, value.items], _join(name, "of"), found, depth + 1)
    else:
        found.plain[name] = value.__name__ if isinstance(value, type) else repr(value)


def _join(name: str, key: Any) -> str:
    return f"{name}.{key}" if name else str(key)


def _view(path: Path, prefix: str, name: str, tensor: _Tensor) -> Array:
    dtype = tensor.storage.dtype
    member = f"{prefix}data/{tensor.storage.key}"
    size = SIZES.get(dtype)
    if size is None:
        raise NotReadable(f"{name} has elements of a type that is not known here: {dtype}")
    if math.prod(tensor.shape) > MOST_GATHERED and not _is_contiguous(tensor.shape, tensor.strides):
        raise NotReadable(f"{name} is a view with too many elements")

    def pieces() -> Iterator[bytes]:
        with zipfile.ZipFile(path) as archive, archive.open(member) as stream:
            if _is_contiguous(tensor.shape, tensor.strides):
                stream.seek(tensor.offset * size)
                yield from _stream(stream, math.prod(tensor.shape) * size)
            else:
                yield from _gather(stream.read(), size, tensor.offset, tensor.shape, tensor.strides)

    return Array(name, dtype, tensor.shape, pieces)


# bytes -----------------------------------------------------------------------------------------------------------------


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _stream(stream: IO[bytes], length: int | None) -> Iterator[bytes]:
    left = length
    while left is None or left > 0:
        piece = stream.read(PIECE if left is None else min(PIECE, left))
        if not piece:
            if left:
                raise NotReadable("it is shorter than its header says")
            return
        left = None if left is None else left - len(piece)
        yield piece


def _gather(data: bytes, size: int, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Iterator[bytes]:
    """The bytes of a strided view in C order; `offset` and `strides` in elements."""
    if not shape:
        yield data[offset * size : (offset + 1) * size]
        return
    length, stride = shape[0], strides[0]
    if len(shape) == 1:
        view = memoryview(data)
        if stride == 1:
            yield data[offset * size : (offset + length) * size]
        else:
            yield b"".join(view[(offset + i * stride) * size : (offset + i * stride + 1) * size] for i in range(length))
        return
    for index in range(length):
        yield from _gather(data, size, offset + index * stride, shape[1:], strides[1:])
