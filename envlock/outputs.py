"""What an experiment wrote, compared: arrays and values before bytes, and what differs first named with its amount.

A `.pt` file holds its own name, a `.npz` the time; so two runs can give the same tensors in other containers. That is a verdict of
its own, `same-values`.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import math
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from envlock.tensors import SIZES, Array, Contents, NotReadable, read_arrays

Same = Literal["identical", "same-values", "different", "missing", "extra"]

MOST_TEXT_FILE = 64 * 2**20
"""Bytes of a JSON or CSV file that is compared by value; a larger one is compared by its bytes."""
MOST_PIECES_MEASURED = 4
"""Pieces of 1 MiB, of those that differ, in which the amount is measured; more would take long and tell little."""

_CODES = {"int8": ("b", 1), "uint8": ("B", 1), "bool": ("B", 1), "int16": ("h", 2), "uint16": ("H", 2), "int32": ("i", 4)}
_CODES |= {"uint32": ("I", 4), "int64": ("q", 8), "uint64": ("Q", 8), "float16": ("e", 2), "bfloat16": ("bfloat16", 2)}
_CODES |= {"float32": ("f", 4), "float64": ("d", 8), "complex64": ("f", 4), "complex128": ("d", 8)}
_WORDS: dict[int, Literal["B", "H", "I", "Q"]] = {1: "B", 2: "H", 4: "I", 8: "Q"}


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One file that a run wrote. `values` is the digest of what it means, None where it is only bytes to us."""

    path: str
    size: int
    sha256: str
    values: str | None


@dataclass(frozen=True, slots=True)
class FileComparison:
    """One path in two runs. `first` names what differs first, `amount` by how much."""

    path: str
    same: Same
    first: str = ""
    amount: str = ""


def list_outputs(folder: Path) -> tuple[OutputFile, ...]:
    """Every regular file below a folder, by path."""
    return tuple(describe(path, path.relative_to(folder).as_posix()) for path in regular_files(folder))


def regular_files(folder: Path) -> list[Path]:
    """The regular files below a folder, sorted; symbolic links are not followed."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def describe(path: Path, name: str) -> OutputFile:
    """A file by its bytes and by its meaning."""
    return OutputFile(name, path.stat().st_size, sha256_of(path), values_digest(path))


def sha256_of(path: Path) -> str:
    """sha256 of a file's bytes, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def values_digest(path: Path) -> str | None:
    """sha256 over what a file means: its arrays' names, types, shapes and bytes, or its JSON or CSV values."""
    hasher = hashlib.sha256()
    try:
        contents = read_arrays(path)
        if contents is not None:
            for array in contents.arrays:
                hasher.update(f"{array.name}\0{array.dtype}\0{array.shape}\0".encode("utf-8", "surrogatepass"))
                for piece in array.pieces():
                    hasher.update(piece)
            hasher.update(json.dumps(contents.plain, sort_keys=True).encode())
            return hasher.hexdigest()
        leaves = read_values(path)
    except NotReadable:
        return None
    if leaves is None:
        return None
    for place, value in leaves:
        hasher.update(f"{place}\0{_canonical(value)}\0".encode("utf-8", "surrogatepass"))
    return hasher.hexdigest()


def compare_folders(first: Path, second: Path) -> tuple[FileComparison, ...]:
    """Every path of two runs."""
    ours, theirs = ({path.relative_to(f).as_posix() for path in regular_files(f)} for f in (first, second))
    found = [FileComparison(path, "missing", "only the first run wrote it") for path in ours - theirs]
    found += [FileComparison(path, "extra", "only the second run wrote it") for path in theirs - ours]
    found += [compare_files(first / path, second / path, path) for path in ours & theirs]
    return tuple(sorted(found, key=lambda item: item.path))


def compare_files(first: Path, second: Path, name: str) -> FileComparison:
    """One file of two runs."""
    if _same_bytes(first, second):
        return FileComparison(name, "identical")
    try:
        ours, theirs = read_arrays(first), read_arrays(second)
        if ours is not None and theirs is not None:
            return _compare_contents(name, ours, theirs)
        values, other_values = read_values(first), read_values(second)
        if values is not None and other_values is not None:
            return _compare_leaves(name, values, other_values)
    except NotReadable as error:
        return FileComparison(name, "different", f"its bytes ({error})", _sizes(first, second))
    return FileComparison(name, "different", _first_byte(first, second), _sizes(first, second))


def _compare_contents(name: str, ours: Contents, theirs: Contents) -> FileComparison:
    first = {array.name: array for array in ours.arrays}
    second = {array.name: array for array in theirs.arrays}
    if first.keys() != second.keys():
        odd = sorted(first.keys() ^ second.keys())[0]
        return FileComparison(name, "different", f"array {odd!r} is in one only")
    for key, array in first.items():
        other = second[key]
        if (array.dtype, array.shape) != (other.dtype, other.shape):
            amount = f"{array.dtype} {list(array.shape)} against {other.dtype} {list(other.shape)}"
            return FileComparison(name, "different", f"array {key!r}: type or shape", amount)
        difference = compare_arrays(array, other)
        if difference is not None:
            return FileComparison(name, "different", f"array {key!r}: {difference[0]}", difference[1])
    for key in sorted(ours.plain.keys() | theirs.plain.keys()):
        if ours.plain.get(key) != theirs.plain.get(key):
            return FileComparison(name, "different", f"value {key!r}", f"{ours.plain.get(key)} against {theirs.plain.get(key)}")
    return FileComparison(name, "same-values", "the container only")


def compare_arrays(ours: Array, theirs: Array) -> tuple[str, str] | None:
    """Where two arrays of one type and shape differ first, and by how much; None where they are equal bit for bit."""
    measure = _Measure(ours.dtype)
    for piece, other in itertools.zip_longest(_even(ours.pieces()), _even(theirs.pieces()), fillvalue=b""):
        measure.take(piece, other)
    return measure.result(ours.shape)


class _Measure:
    """Counts differing numbers (a complex element holds two) and keeps the largest difference."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        self._code, self._width = _CODES.get(dtype, ("B", 1))
        self._parts = SIZES.get(dtype, 1) // self._width
        self._position = 0
        self._first: int | None = None
        self._count = 0
        self._largest = 0.0
        self._relative = 0.0
        self._measured = 0
        self._only_bits = True

    def take(self, ours: bytes, theirs: bytes) -> None:
        if ours != theirs and self._measured < MOST_PIECES_MEASURED:
            self._measured += 1
            length = min(len(ours), len(theirs)) // self._width * self._width
            words = (memoryview(data[:length]).cast(_WORDS[self._width]) for data in (ours, theirs))
            odd = [number for number, (one, other) in enumerate(zip(*words, strict=True)) if one != other]
            if self._first is None:
                self._first = (self._position + (odd[0] * self._width if odd else length)) // (self._width * self._parts)
            self._count += len({number // self._parts for number in odd})
            if self._dtype in SIZES:
                self._weigh(_numbers(self._code, ours[:length]), _numbers(self._code, theirs[:length]), odd)
        self._position += len(ours)

    def _weigh(self, ours: Sequence[float], theirs: Sequence[float], odd: Sequence[int]) -> None:
        for number in odd:
            one, other = ours[number], theirs[number]
            if one == other or (one != one and other != other):
                continue
            self._only_bits = False
            difference = abs(one - other)
            scale = max(abs(one), abs(other))
            self._largest = max(self._largest, difference) if difference == difference else math.inf
            self._relative = max(self._relative, difference / scale if scale and difference == difference else math.inf)

    def result(self, shape: tuple[int, ...]) -> tuple[str, str] | None:
        if self._first is None:
            return None
        where = f"element {_index(self._first, shape)}"
        if self._dtype not in SIZES:
            return where, "other bytes"
        share = f"{'at least ' if self._measured == MOST_PIECES_MEASURED else ''}{self._count} of {math.prod(shape)} elements"
        if self._only_bits:
            return where, f"{share}, equal by value: other signs of zero or other NaNs"
        return where, f"{share}, by {self._largest:.3g} at most, relative {self._relative:.3g}"


def _numbers(code: str, data: bytes) -> Sequence[float]:
    """Little-endian numbers; bfloat16 is the upper half of a float32."""
    if code == "bfloat16":
        wide = bytearray(len(data) * 2)
        wide[2::4], wide[3::4] = data[::2], data[1::2]
        code, data = "f", bytes(wide)
    return struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data)


def _index(number: int, shape: tuple[int, ...]) -> str:
    place = []
    for size in reversed(shape):
        place.append(number % size if size else 0)
        number //= size or 1
    return str(list(reversed(place)))


def _even(pieces: Iterator[bytes], size: int = 2**20) -> Iterator[bytes]:
    """The same bytes in pieces of one size, so that two arrays that were stored otherwise come in step."""
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        while len(buffer) >= size:
            yield bytes(buffer[:size])
            del buffer[:size]
    if buffer:
        yield bytes(buffer)


# JSON and CSV ----------------------------------------------------------------------------------------------------------

Leaf = tuple[str, Any]


def read_values(path: Path) -> list[Leaf] | None:
    """The values of a JSON, JSON lines, CSV or TSV file by their place; None for other names, and for files too large for it.

    Raises `NotReadable` for a file that is not what its name says.
    """
    reader: Callable[[str], list[Leaf]] | None = _READERS.get(path.suffix.lower())
    if reader is None or path.stat().st_size > MOST_TEXT_FILE:
        return None
    try:
        return reader(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, csv.Error) as error:
        raise NotReadable(f"it is no {path.suffix[1:]}: {error}") from None


def _json(text: str) -> list[Leaf]:
    return list(_leaves(json.loads(text), ""))


def _json_lines(text: str) -> list[Leaf]:
    lines = (line for line in text.splitlines() if line.strip())
    return [leaf for number, line in enumerate(lines, 1) for leaf in _leaves(json.loads(line), f"line {number}")]


def _table(delimiter: str) -> Callable[[str], list[Leaf]]:
    def read(text: str) -> list[Leaf]:
        rows = list(csv.reader(text.splitlines(keepends=True), delimiter=delimiter))
        names = rows[0] if rows else []
        return [
            (f"row {number}, column {names[column] if number > 1 and column < len(names) else column + 1}", _cell(cell))
            for number, row in enumerate(rows, 1)
            for column, cell in enumerate(row)
        ]

    return read


_READERS: dict[str, Callable[[str], list[Leaf]]] = {".json": _json, ".jsonl": _json_lines, ".csv": _table(","), ".tsv": _table("\t")}


def _leaves(value: Any, place: str) -> Iterator[Leaf]:
    if isinstance(value, dict) and value:
        for key in sorted(value):
            yield from _leaves(value[key], f"{place}.{key}" if place else key)
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{place}[{index}]")
    else:
        yield place, value


def _cell(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text.strip()


def _compare_leaves(name: str, ours: list[Leaf], theirs: list[Leaf]) -> FileComparison:
    first, second = _numbered(ours), _numbered(theirs)
    places = list(dict.fromkeys([*first, *second]))
    differing = [place for place in places if _canonical(first.get(place, ...)) != _canonical(second.get(place, ...))]
    if not differing:
        return FileComparison(name, "same-values", "the way it is written only")
    place = differing[0][0]
    share = f"{len(differing)} of {len(places)} values"
    if differing[0] not in first or differing[0] not in second:
        return FileComparison(name, "different", f"{place} is in one only", share)
    one, other = first[differing[0]], second[differing[0]]
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (one, other))
    return FileComparison(
        name, "different", place, f"{one!r} against {other!r}{f', by {abs(one - other):.3g}' if numeric else ''}; {share}"
    )


def _numbered(leaves: list[Leaf]) -> dict[tuple[str, int], Any]:
    """Values by place, counted from 0 where several have the same one, as the cells of two columns of one name."""
    found: dict[tuple[str, int], Any] = {}
    seen: Counter[str] = Counter()
    for place, value in leaves:
        found[place, seen[place]] = value
        seen[place] += 1
    return found


def _canonical(value: Any) -> str:
    """A text that is equal for equal values: 1, 1.0 and 1.00 are one number, NaN is equal to itself, true is not 1."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return f"{'bool' if isinstance(value, bool) else ''}{value!r}"


# bytes -----------------------------------------------------------------------------------------------------------------


def _same_bytes(first: Path, second: Path) -> bool:
    if first.stat().st_size != second.stat().st_size:
        return False
    with first.open("rb") as one, second.open("rb") as other:
        while piece := one.read(2**20):
            if piece != other.read(2**20):
                return False
    return True


def _first_byte(first: Path, second: Path) -> str:
    position = 0
    with first.open("rb") as one, second.open("rb") as other:
        while True:
            piece, counterpart = one.read(2**20), other.read(2**20)
            if piece != counterpart:
                pairs = enumerate(zip(piece, counterpart, strict=False))
                return f"byte {position + next((i for i, (a, b) in pairs if a != b), min(len(piece), len(counterpart)))}"
            position += len(piece)


def _sizes(first: Path, second: Path) -> str:
    one, other = first.stat().st_size, second.stat().st_size
    return f"{one} bytes both" if one == other else f"{one} against {other} bytes"
