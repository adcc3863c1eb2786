"""What an index or a find-links place offers: its files by name, with addresses.

Project pages as PEP 503 (HTML) and PEP 691 (JSON) describe them; an index may also be a folder laid out like one (`file:`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlunsplit
from urllib.request import url2pathname

from packaging.utils import canonicalize_name

from envlock.errors import FetchError, FileGone, Unreachable
from envlock.secrecy import redact
from envlock.transport import Transport
from envlock.urls import join_url, split_url

_JSON = "application/vnd.pypi.simple.v1+json"
_ACCEPT = f"{_JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01"


@dataclass(frozen=True, slots=True)
class Offer:
    """One file that a page names: its address (credentials of the index in it), and its sha256 in hex where the page gives one."""

    file: str
    url: str
    sha256: str | None


class Pages:
    """Reads pages, each once; safe for several threads."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._read: dict[str, tuple[Offer, ...] | FetchError] = {}

    def project(self, index: str, name: str) -> tuple[Offer, ...]:
        """The files that an index has of a project. Raises `FileGone` when it does not know the project, `FetchError` otherwise."""
        return self._once(f"{index.rstrip('/')}/{canonicalize_name(name)}/")

    def links(self, place: str) -> tuple[Offer, ...]:
        """The files that a find-links place has: the URL of a page, or a folder. A folder that is absent has none."""
        if is_remote(place):
            return self._once(place)
        folder = local_path(place)
        try:
            paths = sorted(path for path in folder.iterdir() if path.name.endswith(".whl"))
        except OSError:
            return ()
        return tuple(Offer(path.name, path.absolute().as_uri(), None) for path in paths)

    def _once(self, url: str) -> tuple[Offer, ...]:
        with self._guard:
            lock = self._locks.setdefault(url, threading.Lock())
        with lock:
            if url not in self._read:
                try:
                    self._read[url] = self._offers(url)
                except FetchError as error:
                    self._read[url] = error
            found = self._read[url]
        if isinstance(found, FetchError):
            raise type(found)(found.what, where=found.where, why=found.why, hint=found.hint)
        return found

    def _offers(self, url: str) -> tuple[Offer, ...]:
        if url.startswith("file:"):
            return _local_page(url)
        text, response = self.transport.text(url, _ACCEPT)
        try:
            if response.headers.get("Content-Type", "").startswith(_JSON):
                links = [_json_link(file) for file in json.loads(text)["files"]]
            else:
                links = _html_links(text)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            hint = "check the index setting: the URL must be that of a simple index"
            raise Unreachable(f"{redact(url)} is not a page of a package index", where=redact(url), hint=hint) from None
        return _offers(links, response.url, url)


def is_remote(place: str) -> bool:
    """Whether an index or a find-links place is asked over the network, and is no folder."""
    return split_url(place).scheme in ("http", "https")


def local_path(place: str) -> Path:
    """The path of a folder that is given as a path or as a `file:` URL."""
    return Path(url2pathname(split_url(place).path)) if place.startswith("file:") else Path(place)


def with_credentials(url: str, index: str) -> str:
    """`url` with the index's user and password, when both are on the same host and it has none of its own (as pip does)."""
    there, here = split_url(index), split_url(url)
    user, _, host = there.netloc.rpartition("@")
    if user and here.netloc == host:
        return urlunsplit(here._replace(netloc=there.netloc))
    return url


def _local_page(url: str) -> tuple[Offer, ...]:
    path = Path(url2pathname(split_url(url).path)) / "index.html"
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise FileGone(f"{path.parent} does not have it", where=str(path), why=error.strerror or "") from None
    return _offers(_html_links(text), url, url)


def _offers(links: Iterable[tuple[str, str | None, str]], base: str, index: str) -> tuple[Offer, ...]:
    placed = ((name, join_url(base, href.partition("#")[0]), sha256) for href, sha256, name in links)
    return tuple(Offer(name, with_credentials(url, index), sha256) for name, url, sha256 in placed if url)


def _json_link(file: dict[str, Any]) -> tuple[str, str | None, str]:
    href, name, sha256 = file["url"], file["filename"], (file.get("hashes") or {}).get("sha256")
    if not isinstance(href, str) or not isinstance(name, str) or not isinstance(sha256, str | None):
        raise TypeError("a link is not text")
    return href, sha256, name


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.base = ""
        self.hrefs: list[str] = []
        actions: dict[str, Callable[[str], None]] = {"base": self._set_base, "a": self.hrefs.append}
        self._actions = actions

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href")
        if href and tag in self._actions:
            self._actions[tag](href)

    def _set_base(self, href: str) -> None:
        self.base = self.base or href


def _html_links(text: str) -> list[tuple[str, str | None, str]]:
    parser = _Links()
    with suppress(AssertionError):  # how the parser refuses a declaration that it does not know; the links before it count
        parser.feed(text)
    found = []
    for href in parser.hrefs:
        whole = join_url(parser.base, href) if parser.base else href
        address, _, fragment = whole.partition("#")
        sha256 = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else None
        found.append((whole, sha256, unquote(split_url(address).path.rpartition("/")[2])))
    return found
