"""The Dockerfile is a function of the lock, and a Dockerfile's reader takes every value as it was meant."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_locks import ARCHIVE, HEAVY, REGISTRY, cpu_lock, cuda_lock, wheel

from envlock.bundle import own_bundle, read_bundle
from envlock.dockerfile import archive_tag, docker_quote, filled, render, wheel_lists
from envlock.lock import CopiedFile, Lock

BUNDLE = read_bundle(own_bundle())


def text(lock: Lock) -> str:
    return render(lock, BUNDLE).decode()


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0\n\r"), min_size=1))
def test_a_quoted_value_is_taken_literally(value: str) -> None:
    quoted = docker_quote(value)
    if quoted[0] == '"':
        assert re.fullmatch(r'"(?:[^"\\$]|\\[\\"$])*"', quoted)
        assert re.sub(r"\\(.)", r"\1", quoted[1:-1]) == value
    else:
        assert quoted == value
        assert not set("\"\\$ \t'#") & set(value)


def test_an_empty_value_is_quoted() -> None:
    assert docker_quote("") == '""'


def test_it_is_a_function_of_lock_and_bundle() -> None:
    assert text(cuda_lock()) == text(cuda_lock())
    assert text(cuda_lock()) != text(cuda_lock(epoch=7))


@pytest.mark.parametrize("lock", [cpu_lock(), cuda_lock(), cuda_lock(base=REGISTRY), cpu_lock(base=ARCHIVE)])
def test_every_wheel_is_in_one_list_in_the_order_of_the_layers(lock: Lock) -> None:
    lists = wheel_lists(lock)
    assert sorted(w.name for item in lists for w in item.group.wheels) == sorted(w.name for w in lock.wheels)
    assert [item.list for item in lists] == sorted(item.list for item in lists)
    steps = [line.split()[-1] for line in text(lock).splitlines() if "steps/wheels.sh" in line]
    assert steps == [item.list for item in lists]
    for item in lists:
        rows = [line.split("  ") for line in item.content.decode().splitlines()]
        assert rows == [[w.sha256, f"wheels/{w.file}"] for w in item.group.wheels]


def test_ten_and_more_lists_stay_in_order() -> None:
    many = cpu_lock(wheels=tuple(wheel(f"heavy{n:03}", size=HEAVY) for n in range(12)))
    names = [item.list for item in wheel_lists(many)]
    assert names == sorted(names)
    assert len(names) == 12


def test_only_what_is_pinned_is_built_on() -> None:
    assert "FROM scratch\nADD base.tar /" in text(cpu_lock())
    assert f"FROM nvidia/cuda@{REGISTRY.manifest_digest}\n" in text(cpu_lock(base=REGISTRY))
    by_port = REGISTRY.model_copy(update={"reference": "localhost:5000/lab/base"})
    assert f"FROM localhost:5000/lab/base@{REGISTRY.manifest_digest}\n" in text(cpu_lock(base=by_port))
    assert f"FROM {archive_tag(ARCHIVE)}\n" in text(cpu_lock(base=ARCHIVE))
    for lock in (cpu_lock(), cuda_lock(), cpu_lock(base=REGISTRY)):
        assert not re.search(r"apt-get|pip |curl|wget|https?://", text(lock))


def test_what_the_base_sets_and_the_image_has_not_is_emptied() -> None:
    assert 'ENV LD_LIBRARY_PATH="" ' in text(cpu_lock(base=REGISTRY))


def test_files_are_mentioned_where_there_are_some() -> None:
    file = CopiedFile(source="a.py", to="/a.py", sha256="0" * 64, size=1)
    assert "the spec's files" not in text(cpu_lock())
    assert "the spec's files" in text(cpu_lock(files=(file,)))


def test_lines_are_filled_up_to_a_width_and_nothing_is_lost() -> None:
    parts = ["a" * 10, "b" * 10, "c" * 30, "d"]
    assert filled(parts, 21) == ["a" * 10 + " " + "b" * 10, "c" * 30, "d"]
    assert filled([], 10) == []
