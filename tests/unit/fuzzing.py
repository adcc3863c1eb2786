"""How the fuzz tests run: few examples and always the same in the suite, as many as asked for by hand.

`ENVLOCK_FUZZ=20000 pytest tests/unit/test_fuzz_documents.py tests/unit/test_fuzz_answers.py` draws new ones each time.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envlock.console import render_finding
from envlock.errors import EnvlockError

EXAMPLES = int(os.environ.get("ENVLOCK_FUZZ", "0"))
MOST_SECONDS = 5.0

Document = st.SearchStrategy[bytes]
Read = Callable[[bytes, Path], None]


def hold_to_the_promise(document: Document, read: Read, folder: Path, examples: int = 60) -> None:
    """Whatever is read: it works, or it is refused by an error of ours that can be shown, in bounded time."""

    @settings(
        max_examples=EXAMPLES or examples,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(document)
    def check(raw: bytes) -> None:
        began = time.process_time()
        try:
            read(raw, folder)
        except EnvlockError as error:
            for finding in error.findings:
                render_finding(finding, io.StringIO()).encode()
        assert time.process_time() - began < MOST_SECONDS

    check()
