"""The interpreter and system that wheels are chosen for, and which of a package's wheels suits it best."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from envlock.catalogue.rows import MACHINES

# Oldest glibc minor that any manylinux policy names: PEP 513 (2.5, x86 alone), PEP 599 (2.17, the first for aarch64).
_OLDEST_GLIBC = {"x86_64": 5, "aarch64": 17}
# Older names of the same promise: PEP 513, 571, 599.
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
# What `uv pip compile --python-platform` knows (uv 0.11 to 0.13, its reference of settings).
_UV_GLIBC = (17, 28, *range(31, 41))


@dataclass(frozen=True)
class Target:
    """CPython of version `python` ("3.11") on `platform` ("linux/amd64") with glibc `glibc` (2, 36)."""

    python: str
    platform: str
    glibc: tuple[int, int]

    @property
    def machine(self) -> str:
        return MACHINES[self.platform]

    @property
    def uv_platform(self) -> str:
        """The newest of uv's platforms that this target is at least."""
        return f"{self.machine}-manylinux_2_{max((m for m in _UV_GLIBC if m <= self.glibc[1]), default=17)}"

    @cached_property
    def ranks(self) -> dict[Tag, int]:
        """Every tag that this target accepts, with its place in the order of preference: 0 is best."""
        major, minor = (int(part) for part in self.python.split("."))
        interpreter = f"cp{major}{minor}"
        abi = interpreter + ("m" if (major, minor) < (3, 8) else "")
        platforms = list(self._platforms())
        tags = [
            *cpython_tags((major, minor), [abi], platforms),
            *compatible_tags((major, minor), interpreter, platforms),
        ]
        return {tag: rank for rank, tag in reversed(list(enumerate(tags)))}

    def _platforms(self) -> Iterator[str]:
        for minor in range(self.glibc[1], _OLDEST_GLIBC[self.machine] - 1, -1):
            yield f"manylinux_2_{minor}_{self.machine}"
            if minor in _LEGACY and (self.machine == "x86_64" or minor >= 17):
                yield f"{_LEGACY[minor]}_{self.machine}"
        yield f"linux_{self.machine}"

    def rank(self, file: str) -> tuple[int, int, str] | None:
        """How well a wheel file suits, smaller is better; None when it does not suit at all or is no wheel."""
        try:
            _, _, build, tags = parse_wheel_filename(file)
        except InvalidWheelFilename:
            return None
        ranks = [self.ranks[tag] for tag in tags if tag in self.ranks]
        return (min(ranks), -(build[0] if build else -1), file) if ranks else None

    def best(self, files: Iterable[str]) -> str | None:
        """The file that suits best: most specific tag, then highest build number."""
        ranked = [(rank, file) for file in files if (rank := self.rank(file)) is not None]
        return min(ranked)[1] if ranked else None
