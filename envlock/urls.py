"""URLs that others wrote: taken apart and joined without an exception, whatever stands in them."""

from __future__ import annotations

from urllib.parse import SplitResult, urljoin, urlsplit


def split_url(url: str) -> SplitResult:
    """The parts of a URL; all empty where it is none, as `http://[` (urllib raises ValueError, on reading the port too)."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return SplitResult("", "", "", "", "")
    return parts


def join_url(base: str, link: str) -> str:
    """The address that a link on a page stands for; empty where it is none."""
    try:
        return urljoin(base, link)
    except ValueError:
        return ""
