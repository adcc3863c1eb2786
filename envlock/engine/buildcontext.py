"""Build context: what `docker build` is given, as a tar for the engine's API and as a folder for the Docker client."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from envlock.layers.sandbox import pieces_of
from envlock.layers.tarfiles import END, padding


@dataclass(frozen=True, slots=True)
class BuildContext:
    """A folder, the text of the Dockerfile that is built from it (one that lies in the folder is not read), and the names in the folder
    that no step reads."""

    folder: Path
    dockerfile: bytes
    unread: frozenset[str] = frozenset()

    def tar(self) -> Iterator[bytes]:
        """All of it as a tar, in pieces: what the steps read, sorted, and the Dockerfile. The same bytes each time."""
        yield from (_header("Dockerfile", len(self.dockerfile)), self.dockerfile, padding(len(self.dockerfile)))
        for path in sorted(self.folder.rglob("*")):
            name = path.relative_to(self.folder).as_posix()
            if path.is_file() and name not in self.unread | {"Dockerfile"}:
                size = path.stat().st_size
                yield _header(name, size)
                with path.open("rb") as stream:
                    yield from pieces_of(stream)
                yield padding(size)
        yield END


def _header(name: str, size: int) -> bytes:
    """GNU form, since BuildKit takes a context with PAX headers for a Dockerfile."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    return entry.tobuf(tarfile.GNU_FORMAT)
