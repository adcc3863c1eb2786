"""The Docker client as the builder: which one is taken, what it is given, and what is made of what it prints."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from docker.tls import TLSConfig

from envlock.engine import BuildContext, Endpoint, dockercli
from envlock.errors import BuildFailed, DiskFull, EngineRefused
from envlock.progress import Silent

HERE = Endpoint("unix:///run/docker.sock", "--host")


class Steps(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, message: str) -> None:
        self.lines.append(message)


def client(folder: Path, script: str) -> str:
    """A stand-in for the client."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "docker"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


VERSION = '[ "$1" = --version ] && echo "Docker version {}, build 1" && exit'


@pytest.mark.parametrize(
    ("script", "counts"),
    [
        (VERSION.format("20.10.24+dfsg1") + "; exit 1", True),
        (VERSION.format("26.1.5") + '; echo "unknown command: buildx"; exit 1', False),
        (VERSION.format("26.1.5") + '; [ "$1 $2" = "buildx version" ]', True),
        ("echo podman version 4.3.1", False),
    ],
    ids=["old", "newer-without-its-component", "newer-with-its-component", "another-tool"],
)
def test_the_first_client_that_drives_buildkit_is_taken(tmp_path: Path, script: str, counts: bool) -> None:
    first = client(tmp_path / "first", script)
    second = client(tmp_path / "second", VERSION.format("23.0.1") + "; exit 0")
    found = dockercli.find_client({"PATH": f"{tmp_path}/none:{tmp_path}/first:{tmp_path}/second"})
    assert found == (first if counts else second)


def test_a_client_that_this_host_cannot_run_is_passed_over(tmp_path: Path) -> None:
    Path(client(tmp_path / "first", "")).write_bytes(b"\x7fELF of another machine")
    second = client(tmp_path / "second", VERSION.format("23.0.1") + "; exit 0")
    assert dockercli.find_client({"PATH": f"{tmp_path}/first:{tmp_path}/second"}) == second


def test_no_client(tmp_path: Path) -> None:
    assert dockercli.find_client({"PATH": str(tmp_path)}) is None


def built(tmp_path: Path, prints: str, status: int = 0, endpoint: Endpoint = HERE) -> tuple[list[str], str]:
    (tmp_path / "printed").write_text(prints)
    program = client(tmp_path, f'echo "$@" > {tmp_path}/words; env > {tmp_path}/env; cat {tmp_path}/printed; exit {status}')
    steps, log = Steps(), io.BytesIO()
    context = BuildContext(tmp_path / "context", b"FROM scratch\n", frozenset({"base-image.tar"}))
    dockercli.build(program, endpoint, context, "a:b", {"WORD": "x"}, steps, log, from_cache=False)
    return steps.lines, log.getvalue().decode()


GOES_WELL = """\
#1 [internal] load build definition from Dockerfile
#1 sha256:76a22a78
#1 DONE 0.0s
#1 DONE 0.0s

#4 [stage-0 1/2] RUN one
#4 0.110 gift

#5 [stage-0 2/2] RUN two
#5 CACHED

#4 DONE 12.3s
"""


def test_steps_are_said_when_they_end(tmp_path: Path) -> None:
    lines, log = built(tmp_path, GOES_WELL)
    assert lines == [
        "[internal] load build definition from Dockerfile  0.0 s",
        "[stage-0 2/2] RUN two  cached",
        "[stage-0 1/2] RUN one  12.3 s",
    ]
    assert log == GOES_WELL


def test_what_the_client_is_given(tmp_path: Path) -> None:
    tls = TLSConfig(client_cert=(str(client(tmp_path / "tls", "")), str(client(tmp_path / "tls", ""))), verify=True)
    built(tmp_path, "", endpoint=Endpoint("tcp://far:2376", "context far", tls))
    words = (tmp_path / "words").read_text().split()
    assert words[-1] == str(tmp_path / "context")
    assert {"--no-cache", "none", "a:b", "WORD=x"} <= set(words)
    environment = dict(line.partition("=")[::2] for line in (tmp_path / "env").read_text().splitlines())
    assert environment["DOCKER_HOST"] == "tcp://far:2376"
    assert environment["DOCKER_CERT_PATH"] == str(tmp_path / "tls")
    assert environment["DOCKER_TLS_VERIFY"] == environment["DOCKER_BUILDKIT"] == environment["BUILDX_NO_DEFAULT_ATTESTATIONS"] == "1"
    assert environment["PATH"] == os.environ["PATH"]


def failing(error: str, name: str = "[stage-0 1/2] RUN bad") -> str:
    printed = "".join(f"#4 0.1 line {number}\n" for number in range(300))
    return f"#4 {name}\n{printed}#4 ERROR: {error}\n------\n > {name}:\n------\nERROR: failed to solve: {error}\n"


def test_a_step_that_fails(tmp_path: Path) -> None:
    with pytest.raises(BuildFailed) as caught:
        built(tmp_path, failing("exit code: 9"), 1)
    assert caught.value.where == "[stage-0 1/2] RUN bad"
    assert caught.value.why.splitlines() == ["exit code: 9", *(f"line {number}" for number in range(280, 300))]


def test_a_full_disk_is_the_hosts_fault(tmp_path: Path) -> None:
    with pytest.raises(DiskFull):
        built(tmp_path, failing("write /data: no space left on device"), 1)


@pytest.mark.parametrize("prints", [failing("unknown instruction: RAN", "[internal] load"), "unknown instruction: RAN\n\n"])
def test_a_client_that_refuses_is_quoted(tmp_path: Path, prints: str) -> None:
    with pytest.raises(EngineRefused) as caught:
        built(tmp_path, prints, 1)
    assert "RAN" in caught.value.why
