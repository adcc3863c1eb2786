"""Specs in, values or complaints out."""

from __future__ import annotations

import pytest

from envlock.errors import EnvlockError, Problems
from envlock.spec import Spec, parse_spec


def complaints(text: str) -> list[tuple[str, str, str]]:
    """(id, place, what and hint) of every complaint about a spec."""
    with pytest.raises(EnvlockError) as caught:
        parse_spec(text.encode(), "s.yaml")
    return [(f.id, f.where, f"{f.what} {f.why} {f.hint}") for f in caught.value.findings]


def spec(text: str) -> Spec:
    return parse_spec(text.encode(), "s.yaml")


def test_smallest_spec() -> None:
    found = spec("name: x\nstack: {torch: 2.5.1}\n")
    assert (found.stack.torch, found.determinism.level, found.target.platform) == ("2.5.1", "strict", "linux/amd64")


def test_scalars_are_text() -> None:
    found = spec("name: 'no'\npython: 3.10\nstack: {torch: 2.10}\nenv: {A: yes, B: 1e3, C: null}\n")
    assert (found.name, found.python, found.stack.torch) == ("no", "3.10", "2.10")
    assert found.env == {"A": "yes", "B": "1e3", "C": "null"}


def test_all_faults_at_once_each_with_its_line() -> None:
    found = complaints("name: x\npython: '2.7'\nstack: {torch: 2.5.1, cuda: twelve}\napt: git\n")
    assert [place.split(":")[1] for _, place, _ in found] == ["2", "3", "4"]


@pytest.mark.parametrize(
    ("text", "id_", "place", "says"),
    [
        ("name: x\nstack: {tourch: 2.5.1}\n", "spec-unknown-key", "s.yaml:2:9", "torch"),
        ("name: x\nstack: {torch: 2.5.1}\nstack: {torch: 2.4.0}\n", "spec-duplicate-key", "s.yaml:3:1", "stack"),
        ("name: x\nstack: {torch: 2.5.1}\napt: ['git; rm -rf /']\n", "apt-name", "s.yaml:3:7", "git; rm"),
        ("name: x\nstack: {torch: 2.5.1}\nfiles: [{from: ../../etc/shadow, to: /x}]\n", "file-outside", "s.yaml:3:16", "shadow"),
        ("name: x\nstack: {torch: 2.5.1}\nfiles: [{from: a, to: /opt/venv/x}]\n", "spec-value", "s.yaml:3:23", "/opt/venv"),
        ("name: x\npackages: ['jax[cuda12]==0.5.3']\n", "torch-missing", "s.yaml:1:1", "torch"),
        ("name: X y\nstack: {torch: 2.5.1}\n", "spec-value", "s.yaml:1:7", "lower-case"),
        ("name: x\nstack: {torch: 2.5.1}\npackages: ['a @ git+https://h/x']\n", "needs-compiling", "s.yaml:3:12", "wheel"),
        ("name: x\nstack: {torch: 2.5.1}\ndeterminism: {seed: 4294967296}\n", "spec-value", "s.yaml:3:21", "4294967296"),
        ("name: x\nstack: {torch: 2.5.1}\nbase: {debain: bookworm}\n", "spec-unknown-key", "s.yaml:3:8", "debian"),
        ("name: x\nstack: {torch: 2.5.1}\nbase: {debian: bookworm, image: 'a:b'}\n", "spec-value", "s.yaml:3:7", "one of"),
        ("name: x\nstack: &a {torch: 2.5.1}\nenv: *a\n", "spec-syntax", "s.yaml:2:8", "anchors"),
        ("name: x\nstack: [\n", "spec-syntax", "s.yaml:3:1", "YAML"),
        ("", "spec-syntax", "s.yaml:1:1", "mapping"),
        ("- a\n", "spec-syntax", "s.yaml:1:1", "mapping"),
        ("a: " + "[" * 100, "spec-syntax", "s.yaml:1:43", "nested"),
    ],
)
def test_complaint(text: str, id_: str, place: str, says: str) -> None:
    found = complaints(text)
    assert (id_, place) in [(i, p) for i, p, _ in found], found
    assert any(says in message for _, _, message in found)


def test_not_text() -> None:
    with pytest.raises(Problems) as caught:
        parse_spec(b"name: \xff\n", "s.yaml")
    assert caught.value.findings[0].id == "spec-syntax"


def test_digest_ignores_order_comments_and_defaults() -> None:
    plain = spec("name: x\nstack: {torch: 2.5.1}\n")
    same = spec("# hello\nstack:\n  torch: '2.5.1'\ndeterminism: {level: strict}\nname: x\n")
    other = spec("name: x\nstack: {torch: 2.5.1}\ndeterminism: {seed: 1}\n")
    assert plain.digest == same.digest != other.digest


def test_digest_is_the_written_down_one() -> None:
    """The canonical form is a promise: a spec locked today is not stale after an upgrade."""
    assert spec("name: x\npython: 3.10\nstack: {torch: 2.5.1}\n").digest == (
        "sha256:4205a224bf22f831acc5d11382ed02c5c80e615e18ea271dd50bf5e044b458e5"
    )
