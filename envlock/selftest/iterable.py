"""The iterable-style data set of loaders.py: its base class is torch's, so importing this module imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from envlock.selftest.loaders import draw_share

if TYPE_CHECKING:
    from collections.abc import Iterator


class IterableDraws(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Each worker draws its share."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return draw_share()
