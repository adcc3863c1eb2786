"""`--verbose`: what runs besides Python, on stderr: programs with their arguments, and requests to engines, indexes and registries."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from envlock.secrecy import redact_text


def show_what_runs(stream: TextIO | None = None) -> None:
    """Print each program that is started and each request that is answered from now on, without secrets of URLs."""
    out = stream or sys.stderr

    def heard(event: str, values: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and not out.closed:
            print(f"  runs: {redact_text(_words(values[1]))}", file=out)

    sys.addaudithook(heard)
    handler = logging.StreamHandler(out)
    handler.setFormatter(_Redacted("  asks: %(message)s"))
    requests = logging.getLogger("urllib3.connectionpool")
    requests.addHandler(handler)
    requests.setLevel(logging.DEBUG)


def _words(arguments: str | bytes | Sequence[Any]) -> str:
    if isinstance(arguments, str | bytes):
        return str(arguments)
    return shlex.join(str(word) for word in arguments)


class _Redacted(logging.Formatter):
    """Requests are logged as `host "GET path HTTP/1.1" status`; a query may hold a token."""

    def format(self, record: logging.LogRecord) -> str:
        text = redact_text(super().format(record))
        head, mark, rest = text.partition("?")
        return head + rest[rest.find(" ") :] if mark and '"' in head else text
