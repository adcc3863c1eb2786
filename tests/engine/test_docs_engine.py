"""What the pages show with an engine is what happens: the tutorial from the empty folder to the artifact, offline machines, CI."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envlock.engine import Engine

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from pages import PAGES, play, steps_of

pytestmark = pytest.mark.network


@pytest.fixture
def names(engine: Engine) -> Iterator[dict[str, str]]:
    """Names of images that nobody else has; the images are removed."""
    token = secrets.token_hex(4)
    found = {name: f"docs-{token}-{name}" for name in ("trial", "cpu-classifier")}
    yield found
    for image in engine.images():
        for tag in image.tags:
            if tag.partition(":")[0] in found.values():
                engine.remove(tag)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(step.mark == "engine" for step in steps_of(page))], ids=lambda page: page.name
)
def test_commands_print_what_the_page_says(page: Path, names: dict[str, str], tmp_path: Path) -> None:
    environment = {**os.environ, "ENVLOCK_STORE": os.environ.get("ENVLOCK_STORE") or str(tmp_path / ".store")}
    faults = [
        f"{step.page}:{step.line}: {'; '.join(found)}\n{text}"
        for step, found, text in play(page, frozenset({"run", "engine"}), tmp_path, environment, names)
        if found
    ]
    assert not faults, "\n".join(faults)
