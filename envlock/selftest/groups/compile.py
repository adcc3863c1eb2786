"""."""

from __future__ import annotations

from envlock.selftest.checks import Check, Context


def checks(context: Context) -> tuple[Check, ...]:
    return ()
