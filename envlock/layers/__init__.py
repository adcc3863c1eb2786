"""Layers: canonical tars whose digests depend on their inputs alone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of an image, as a tar file that lies somewhere.

    `diff_id` is the sha256 of the uncompressed tar with its prefix, `size` the tar's length in bytes, `holds` a few words that
    tell people what is in it.
    """

    diff_id: str
    size: int
    holds: str
