"""One table says which files no image keeps; entries and the Dockerfile's script treat every path alike."""

from __future__ import annotations

import io
import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from envlock.layers.entry import Entry
from envlock.layers.volatile import action_on, clean_up_script, table, without_volatile

FILES = {
    "etc/machine-id": "4f3c",
    "etc/passwd": "root",
    "etc/passwd-": "root",
    "etc/ssh/ssh_host_rsa_key": "secret",
    "etc/ssh/sshd_config": "kept",
    "tmp/.hidden": "left",
    "tmp/a folder/with a file": "left",
    "var/cache/apt/pkgcache.bin": "addresses",
    "var/cache/debconf/config.dat": "kept",
    "var/cache/debconf/config.dat-old": "before",
    "var/lib/apt/lists/partial/x": "index",
    "var/lib/dpkg/status": "kept",
    "var/lib/dpkg/status-old": "before",
    "var/log/apt/history.log": "times",
    "var/log/dpkg.log": "times",
    "var/log/mine.log": "kept",
}
KEPT = {"etc/machine-id": ""} | {path: text for path, text in FILES.items() if text in ("kept", "root") and not path.endswith("-")}


def entry(path: str, text: str) -> Entry:
    return Entry(path, "file", size=len(text), open=partial(io.BytesIO, text.encode()))


def test_entries_lose_what_the_table_names() -> None:
    left = list(without_volatile(entry(path, text) for path, text in FILES.items()))
    assert {found.path: "" if found.size == 0 else FILES[found.path] for found in left} == KEPT


def test_the_script_does_the_same_to_files(tmp_path: Path) -> None:
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    below = f" {tmp_path}/"
    script = "".join(f"{line}\n" for line in clean_up_script().replace(" /", below).replace(" '/", f" '{tmp_path}/").splitlines())
    subprocess.run(["sh", "-eu", "-c", script], check=True, env={"PATH": os.environ["PATH"]})
    assert {path: (tmp_path / path).read_text() for path in FILES if (tmp_path / path).exists()} == KEPT


@pytest.mark.parametrize("path", ["var/lib/apt/lists", "tmp", "var/log/apt", "var/log", "var/cache/apt/archives"])
def test_folders_themselves_stay(path: str) -> None:
    assert action_on(path) is None


def test_every_row_says_why() -> None:
    assert all(row.why for row in table())
    assert len({row.path for row in table()}) == len(table())


def test_the_script_that_images_are_built_with_is_the_tables() -> None:
    script = Path(__file__).parents[2] / "templates/image/steps/clean_up.sh"
    head, body = script.read_text().split("set -eu\n")
    assert body == clean_up_script()
    assert head.startswith("# ")
