"""What may be shown of URLs and variables, whoever wrote them."""

from __future__ import annotations

import time

import pytest

from envlock.errors import Finding, UsageError
from envlock.experiment import Experiment, repeat_command
from envlock.secrecy import is_secret, redact, redact_text, shown_variables
from envlock.spec import parse_spec
from envlock.stack.solve import environment_findings


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see https://me:pass@host/simple?token=x for it", "see https://host/simple for it"),
        ("https://me:p@ss@host/x", "https://host/x"),
        ("HTTPS://me:pass@host", "HTTPS://host"),
        ("git+ssh://tok@host/x.git", "git+ssh://host/x.git"),
        ("a http://t:u@h/1 b http://v:w@h/2?q", "a http://h/1 b http://h/2"),
        ("http://[me:pass@/simple", "http:///simple"),
        ("no address, a?b", "no address, a?b"),
    ],
)
def test_credentials_and_queries_are_taken_out_of_any_text(text: str, shown: str) -> None:
    assert redact_text(text) == shown


@pytest.mark.parametrize("url", ["http://[me:pass@/simple", "https://me:pass@host:99999999/"])
def test_what_is_no_address_is_not_shown_at_all(url: str) -> None:
    assert redact(url) == "an address that cannot be read"


@pytest.mark.parametrize("text", ["a." * 100_000 + "://", "://" * 50_000, "http://" + "@" * 100_000, "http://" + "a@" * 50_000])
def test_redaction_takes_no_time(text: str) -> None:
    began = time.process_time()
    redact_text(text)
    assert time.process_time() - began < 5


def test_no_error_and_no_finding_shows_them() -> None:
    secret = "https://me:pass@host/x?t=pass"
    error = UsageError(secret, where=secret, why=secret, hint=secret)
    assert "pass" not in str(error) + repr(error.finding) + repr(Finding("usage", "error", secret, secret, secret, secret))


@pytest.mark.parametrize(
    ("name", "secret"), [("HF_TOKEN", True), ("AWS_SECRET_ACCESS_KEY", True), ("apikey", True), ("TOKENIZERS_PARALLELISM", False)]
)
def test_names_tell_secrets(name: str, secret: bool) -> None:
    assert is_secret(name) is secret


def test_a_record_has_secrets_by_name_alone() -> None:
    assert shown_variables({"HF_TOKEN": "x", "PLACE": "http://a:b@h/"}) == {"HF_TOKEN": "(not recorded)", "PLACE": "http://h/"}
    command = repeat_command("image:1", Experiment(("train",), environment={"HF_TOKEN": "hidden", "SEED": "1"}))
    assert "hidden" not in command
    assert "SEED=1" in command


def test_a_secret_in_a_spec_is_warned_of() -> None:
    spec = parse_spec(b"name: x\nstack: {torch: 2.5.1}\nenv: {HF_TOKEN: hf_x, TOKENIZERS_PARALLELISM: 'false'}\n", "s.yaml")
    assert [(finding.id, finding.severity, finding.where) for finding in environment_findings(spec)] == [
        ("env-secret", "warning", "env.HF_TOKEN")
    ]
