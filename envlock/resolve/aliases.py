"""Which index a locked file belongs to, by rule and not by where this machine happened to find it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import unquote

from packaging.version import Version

from envlock.errors import FileGone
from envlock.lock import Wheel
from envlock.resolve.choice import Choice
from envlock.resolve.indexes import Indexes
from envlock.resolve.pages import Pages, is_remote
from envlock.resolve.wheelsources import path_by_content
from envlock.resolve.wish import PythonWish
from envlock.urls import split_url


@dataclass(frozen=True, slots=True)
class Alias:
    """Name of an index, and the file's path below the index's file host where that is the same on every machine."""

    index: str
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Aliases:
    """The rules, applied with one machine's indexes at hand."""

    wish: PythonWish
    indexes: Indexes
    pages: Pages

    def of_all(self, choices: Sequence[Choice], kept: Mapping[str, Wheel]) -> dict[str, Alias]:
        """The alias of each chosen file, by project; a file that an older lock has keeps the alias that it has there."""
        with ThreadPoolExecutor(8, thread_name_prefix="alias") as pool:
            found = pool.map(lambda choice: self.of(choice, kept.get(choice.name)), choices)
            return dict(zip((choice.name for choice in choices), found, strict=True))

    def of(self, choice: Choice, kept: Wheel | None) -> Alias:
        """In this order: as in the older lock; PyTorch's builds; what PyTorch's index, the default one, the user's named ones serve;
        `local`. Raises `FetchError` when an index that has to be asked cannot be."""
        if kept is not None and (kept.file, kept.sha256) == (choice.file, choice.sha256):
            return Alias(kept.index, kept.path)
        label = Version(choice.version).local
        if choice.name in self.wish.family and label:
            return Alias("pytorch", f"whl/{label}/{choice.file}")
        if self._is_pytorchs(choice):
            return Alias("pytorch", unquote(split_url(choice.source).path).lstrip("/"))
        default = self.indexes.default
        if default is not None and self._only_default_can_serve(choice):
            return Alias("default", path_by_content(choice.source))
        if default is not None and (url := self._served(default, choice)):
            return Alias("default", path_by_content(url))
        return next((Alias(name) for name, index in self.indexes.named.items() if self._served(index, choice)), Alias("local"))

    def _is_pytorchs(self, choice: Choice) -> bool:
        if self.wish.torch_index != "pytorch" or choice.name not in self.wish.family:
            return False
        index = f"{self.indexes.pytorch}/{self.wish.torch_index_path}"
        return choice.source.startswith(f"{self.indexes.pytorch}/") or self._served(index, choice) is not None

    def _only_default_can_serve(self, choice: Choice) -> bool:
        places = (*self.indexes.named.values(), *self.indexes.unnamed, *self.indexes.find_links)
        return is_remote(choice.source) and not any(is_remote(place) for place in places)

    def _served(self, index: str, choice: Choice) -> str | None:
        """The address under which an index serves the chosen file, if it does."""
        try:
            offers = self.pages.project(index, choice.name)
        except FileGone:
            return None
        same = (o for o in offers if o.file == choice.file and (o.sha256 is None or choice.sha256 in (None, o.sha256)))
        return next((offer.url for offer in same), None)
