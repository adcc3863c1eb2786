"""Where the engine is, and what is said when it does not answer."""

from __future__ import annotations

import errno
import hashlib
import json
import socket
import time
from pathlib import Path

import pytest
import requests
import urllib3
from docker.errors import APIError, DockerException, ImageNotFound, InvalidVersion

from envlock.engine import Endpoint, connect
from envlock.engine.endpoint import find_endpoint
from envlock.engine.faults import Body, explain, told
from envlock.engine.owner import FORGOTTEN, is_forgotten, stamp
from envlock.errors import BuildFailed, DiskFull, EngineApi, EngineRefused, ImageMissing, NoEngine, NoGpuRuntime, SdkTooOld

HERE = Endpoint("unix:///var/run/docker.sock", "default socket")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Docker configuration folder of the test's own."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def make_context(config: Path, name: str, host: str) -> None:
    folder = config / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest()
    folder.mkdir(parents=True)
    meta = {"Name": name, "Metadata": {}, "Endpoints": {"docker": {"Host": host, "SkipTLSVerify": False}}}
    (folder / "meta.json").write_text(json.dumps(meta))


def test_the_order_of_places(config: Path) -> None:
    make_context(config, "lab", "unix:///run/lab.sock")
    (config / "config.json").write_text(json.dumps({"currentContext": "lab"}))
    both = {"DOCKER_HOST": "tcp://10.0.0.1:2375"}
    assert str(find_endpoint("ssh://gpu1", both)) == "ssh://gpu1 (--host)"
    assert str(find_endpoint(None, both)) == "tcp://10.0.0.1:2375 (DOCKER_HOST)"
    assert str(find_endpoint(None, {})) == "unix:///run/lab.sock (context lab)"


def test_a_context_by_its_variable(config: Path) -> None:
    make_context(config, "lab", "unix:///run/lab.sock")
    make_context(config, "other", "unix:///run/other.sock")
    (config / "config.json").write_text(json.dumps({"currentContext": "lab"}))
    assert find_endpoint(None, {"DOCKER_CONTEXT": "other"}).url == "unix:///run/other.sock"


def test_the_usual_sockets(config: Path, tmp_path: Path) -> None:
    default, runtime = tmp_path / "default.sock", tmp_path / "runtime"
    runtime.mkdir()
    environ = {"XDG_RUNTIME_DIR": str(runtime)}
    assert find_endpoint(None, environ, default).origin == "default socket"
    (runtime / "docker.sock").touch()
    assert find_endpoint(None, environ, default) == Endpoint(f"unix://{runtime}/docker.sock", "rootless socket")
    default.touch()
    assert find_endpoint(None, environ, default) == Endpoint(f"unix://{default}", "default socket")


@pytest.mark.parametrize(("host", "url"), [("/run/d.sock", "unix:///run/d.sock"), ("gpu1:2375", "tcp://gpu1:2375")])
def test_short_forms(config: Path, host: str, url: str) -> None:
    assert find_endpoint(host, {}).url == url


def test_a_context_that_does_not_exist(config: Path) -> None:
    with pytest.raises(NoEngine, match="context gone does not exist") as caught:
        find_endpoint(None, {"DOCKER_CONTEXT": "gone"})
    assert "docker context ls" in caught.value.hint


def test_certificates_that_are_missing(config: Path) -> None:
    with pytest.raises(NoEngine, match=r"ca\.pem, cert\.pem, key\.pem cannot be found"):
        find_endpoint("tcp://10.0.0.1:2376", {"DOCKER_TLS_VERIFY": "1"})


def test_three_ways_not_to_answer(config: Path, tmp_path: Path) -> None:
    """No socket, nobody behind it, not allowed: three hints."""
    with pytest.raises(NoEngine) as missing:
        connect(f"unix://{tmp_path}/none.sock")
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(str(tmp_path / "closed.sock"))
    with pytest.raises(NoEngine) as refused:
        connect(f"unix://{tmp_path}/closed.sock")
    denied = explain(PermissionError(errno.EACCES, "Permission denied"), HERE, "asking for its version")
    assert missing.value.why == f"there is no socket {tmp_path}/none.sock"
    assert "nothing listens" in refused.value.why
    assert "permission denied" in denied.why
    hints = {missing.value.hint, refused.value.hint, denied.hint}
    assert len(hints) == 3
    assert "systemctl start" in refused.value.hint
    assert "usermod -aG docker" in denied.hint
    assert str(tmp_path) in missing.value.where


def test_a_port_where_nobody_listens(config: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(NoEngine, match="no Docker engine answers") as caught:
        connect(f"tcp://127.0.0.1:{port}")
    assert "check address and port" in caught.value.hint


def test_a_host_that_is_not_known(config: Path) -> None:
    fault = requests.ConnectionError(urllib3.exceptions.ProtocolError("aborted", socket.gaierror(-2, "Name or service not known")))
    assert "is not known" in explain(fault, Endpoint("tcp://nowhere:2375", "--host"), "asking").why


def api_error(text: str) -> APIError:
    return APIError("500 Server Error", explanation=text)


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (api_error("write /var/lib/docker/tmp/x: no space left on device"), DiskFull),
        (api_error("client version 1.35 is too old. Minimum supported API version is 1.44"), EngineApi),
        (api_error('could not select device driver "" with capabilities: [[gpu]]'), NoGpuRuntime),
        (api_error("open /var/lib/docker/tmp/docker-import-1/blobs/sha256/00: no such file or directory"), EngineRefused),
        (ImageNotFound("404", explanation="No such image: x:1"), ImageMissing),
        (InvalidVersion("API versions below 1.24 are no longer supported by this library."), EngineApi),
        (DockerException("Error while fetching server API version: Not supported URL scheme http+docker"), SdkTooOld),
        (DockerException("Install paramiko package to enable ssh:// support"), NoEngine),
        (requests.ReadTimeout("read timed out"), NoEngine),
        (requests.ConnectionError(urllib3.exceptions.ProtocolError("Connection aborted.", ConnectionResetError(104, "reset"))), NoEngine),
    ],
)
def test_what_the_sdk_raises(raised: Exception, error: type[Exception]) -> None:
    found = explain(raised, HERE, "loading an image")
    assert type(found) is error
    assert found.why
    assert found.hint
    assert "\n" not in found.why


def test_a_source_that_fails_is_not_blamed_on_the_engine() -> None:
    def failing() -> object:
        raise FileNotFoundError(errno.ENOENT, "the layer is gone")

    body = Body(iter(failing, None))  # type: ignore[arg-type]

    def send() -> None:
        with told(HERE, "loading", body):
            try:
                list(body)
            except OSError as error:
                raise requests.ConnectionError(urllib3.exceptions.ProtocolError("Connection aborted.", error)) from error

    with pytest.raises(FileNotFoundError, match="the layer is gone"):
        send()


def test_our_own_errors_pass() -> None:
    with pytest.raises(BuildFailed, match="as it was"), told(HERE, "loading"):
        raise BuildFailed("as it was")


def test_what_a_living_process_made_is_kept() -> None:
    assert not is_forgotten(stamp())
    assert not is_forgotten(stamp() + "-0badcafe-1")


def test_what_a_dead_process_made_is_forgotten() -> None:
    boot, namespace, pid, started, now = stamp().split("-")
    assert is_forgotten("-".join((boot, namespace, pid, f"{int(started, 16) + 1:x}", now)))
    assert is_forgotten("-".join((boot, namespace, "7fffffff", started, now)))
    assert is_forgotten("anything else")


def test_what_another_host_made_is_forgotten_after_a_day() -> None:
    now = int(time.time())
    assert not is_forgotten(f"0123456789ab-f0000000-1-1-{now - FORGOTTEN + 60:x}")
    assert is_forgotten(f"0123456789ab-f0000000-1-1-{now - FORGOTTEN - 60:x}")
