"""What must not be shown or written down: credentials in URLs, and the values of variables that are called like secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlunsplit

from envlock.urls import split_url

HIDDEN = "(not recorded)"
_NAME = re.compile(r"(?i)(?:^|_)(?:token|secret|password|passwd|api_?key|access_?key|credentials?)(?:$|_)")
_URL = re.compile(r"(\b[a-z][a-z0-9+.-]{0,20}://)((?:[^\s/@]*@)*)([^\s?#'\"`<>)]*)(\?[^\s#'\"`<>)]*)?", re.IGNORECASE)


def redact(url: str) -> str:
    """A URL as it may be shown: without user, password, query and fragment, which can hold tokens."""
    parts = split_url(url)
    if url and not any(parts):
        return "an address that cannot be read"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def redact_text(text: str) -> str:
    """Any text as it may be shown: credentials and queries taken out of every URL in it."""
    return _URL.sub(r"\1\3", text) if "://" in text else text


def is_secret(name: str) -> bool:
    """Whether a variable is called like one that holds a secret, as HF_TOKEN or AWS_SECRET_ACCESS_KEY."""
    return _NAME.search(name) is not None


def shown_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables as a record may have them: secrets by their name alone."""
    return {name: HIDDEN if is_secret(name) else redact_text(value) for name, value in variables.items()}
