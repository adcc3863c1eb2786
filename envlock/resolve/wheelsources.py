"""Where a locked wheel may be had on this machine: its index alias turned back into addresses, when they are needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from urllib.parse import quote, urlunsplit

from envlock.errors import FetchError, FileGone
from envlock.fetch import Source
from envlock.lock import Wheel
from envlock.resolve.indexes import Indexes
from envlock.resolve.pages import Offer, Pages, is_remote
from envlock.urls import split_url

# Where the default index keeps a file: by the BLAKE2b-256 of its bytes, so a path that holds on every machine.
_BY_CONTENT = re.compile(r"packages/[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{60}/[^/]+$")
# A project that every index of Python packages has; its page tells the host of the files.
_EVERYWHERE = "pip"


class WheelSources:
    """Lists the places of wheels. The bytes are verified by their sha256, so any place will do."""

    def __init__(self, indexes: Indexes, pages: Pages) -> None:
        self._indexes = indexes
        self._pages = pages

    def of(self, wheel: Wheel) -> Iterator[Source]:
        """Sources of one wheel, best first, each looked up when the one before has failed: find-links folders, the index of its
        alias by file name, the same host by path, then the user's other indexes and find-links pages.

        Raises `FetchError` at the end when a place could not be asked.
        """
        for folder in self._indexes.folders:
            if (folder / wheel.file).is_file():
                yield folder / wheel.file
        faults: list[FetchError] = []
        seen: set[Source] = set()
        for look in self._looks(wheel):
            try:
                for source in look():
                    if source not in seen:
                        seen.add(source)
                        yield source
            except FetchError as error:
                faults.append(error)
        told = [fault for fault in faults if not isinstance(fault, FileGone)] or faults
        if told:
            raise told[0]

    def _looks(self, wheel: Wheel) -> Iterator[Callable[[], Iterator[Source]]]:
        indexes = self._indexes
        if wheel.index == "default":
            yield partial(self._in_default, wheel)
        elif wheel.index == "pytorch":
            yield partial(self._in_pytorch, wheel)
        elif wheel.index in indexes.named:
            yield partial(self._in_index, indexes.named[wheel.index], wheel)
        elif wheel.index != "local":
            yield partial(self._unknown_alias, wheel)
        for place in indexes.find_links:
            if is_remote(place):
                yield partial(self._in_links, place, wheel)
        for index in (*indexes.unnamed, *indexes.named.values()):
            yield partial(self._in_index, index, wheel)

    def _in_index(self, index: str, wheel: Wheel) -> Iterator[Source]:
        return _named(self._pages.project(index, wheel.name), wheel)

    def _in_links(self, place: str, wheel: Wheel) -> Iterator[Source]:
        return _named(self._pages.links(place), wheel)

    def _in_default(self, wheel: Wheel) -> Iterator[Source]:
        index = self._indexes.default
        if index is None:
            hint = "put the wheel into a find-links folder"
            raise FileGone(f"{wheel.file} is in the default index, and this machine's settings allow no index", hint=hint)
        try:
            offers = self._pages.project(index, wheel.name)
        except FileGone:
            offers = ()
        yield from _named(offers, wheel)
        if wheel.path is not None:
            offers = offers or self._pages.project(index, _EVERYWHERE)
            for offer in offers[:1]:
                parts = split_url(offer.url)
                prefix = _BY_CONTENT.sub("", parts.path) if _BY_CONTENT.search(parts.path) else "/"
                yield urlunsplit(parts._replace(path=prefix + quote(wheel.path), query="", fragment=""))

    def _in_pytorch(self, wheel: Wheel) -> Iterator[Source]:
        path = wheel.path or f"whl/{wheel.file}"
        index = f"{self._indexes.pytorch}/{path.rpartition('/')[0]}"
        with suppress(FileGone):
            yield from self._in_index(index, wheel)
        yield f"{self._indexes.pytorch}/{quote(path)}"

    def _unknown_alias(self, wheel: Wheel) -> Iterator[Source]:
        what = f"the lock takes {wheel.file} from an index called {wheel.index}, which is not known here"
        hint = f'add an index of that name to uv.toml ([[index]] name = "{wheel.index}"), or put the wheel into a find-links folder'
        raise FileGone(what, hint=hint)


def _named(offers: tuple[Offer, ...], wheel: Wheel) -> Iterator[Source]:
    return (offer.url for offer in offers if offer.file == wheel.file)


def path_by_content(url: str) -> str | None:
    """The path below the file host that names a file by its content, when `url` ends in one."""
    match = _BY_CONTENT.search(split_url(url).path)
    return match[0] if match else None
