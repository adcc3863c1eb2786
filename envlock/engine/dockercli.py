"""`docker build` by the Docker client, for an engine that takes no context through its API: the client opens the session that such an
engine needs.

A client before 23 drives BuildKit by itself, a newer one with its buildx component.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from envlock.engine.buildcontext import BuildContext
from envlock.engine.endpoint import Endpoint
from envlock.engine.faults import of_answer
from envlock.errors import BuildFailed, EngineRefused, EnvlockError
from envlock.progress import Progress

_TAIL = 20  # lines of a failed step that an error shows
_VERSION = re.compile(r"Docker version (\d+)\.")
_WITHOUT_COMPONENT = 23  # from this release on `docker build` is buildx


def find_client(environ: Mapping[str, str] = os.environ) -> str | None:
    """The first Docker client on PATH that drives BuildKit; None where there is none."""
    found = (shutil.which("docker", path=folder) for folder in os.get_exec_path(dict(environ)))
    return next((client for client in found if client is not None and _drives_buildkit(client)), None)


def _drives_buildkit(client: str) -> bool:
    try:
        version = _VERSION.match(_asked(client, "--version").stdout)
    except OSError:
        return False  # a file that this host cannot run
    if version is None:
        return False  # another tool under this name
    return int(version[1]) < _WITHOUT_COMPONENT or _asked(client, "buildx", "version").returncode == 0


def _asked(client: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([client, *words], capture_output=True, text=True, errors="replace", check=False)


def build(
    client: str,
    endpoint: Endpoint,
    context: BuildContext,
    tag: str,
    arguments: Mapping[str, str],
    progress: Progress,
    log: BinaryIO,
    *,
    from_cache: bool,
) -> None:
    """Build and tag an image, RUN steps without network. Every step is said when it ends, all that the client prints goes to `log`.

    Raises `BuildFailed` with the end of what the failed step printed, `DiskFull`, `EngineRefused` with the client's words.
    """
    with tempfile.TemporaryDirectory(prefix="envlock-dockerfile-") as folder:
        dockerfile = Path(folder, "Dockerfile")
        dockerfile.write_bytes(context.dockerfile)
        Path(folder, "Dockerfile.dockerignore").write_text("".join(f"{name}\n" for name in sorted(context.unread)))
        words = ["build", "--progress", "plain", "--network", "none", "--tag", tag, "--file", str(dockerfile)]
        words += [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
        words += [] if from_cache else ["--no-cache"]
        command = [client, *words, str(context.folder)]
        told = _Told(progress)
        with subprocess.Popen(command, env=_environment(endpoint), stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    log.write(line)
                    told.take(line.decode("utf-8", "replace").rstrip())
            except BaseException:
                process.terminate()
                raise
    if process.returncode != 0:
        raise told.error(endpoint)


def _environment(endpoint: Endpoint) -> dict[str, str]:
    """The client's: this engine, its own BuildKit, and an image alone (an attestation would make an index of it)."""
    settings = {"DOCKER_HOST": endpoint.url, "DOCKER_BUILDKIT": "1", "BUILDX_BUILDER": "default", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
    if endpoint.tls is not None and endpoint.tls.cert:
        settings["DOCKER_CERT_PATH"] = str(Path(endpoint.tls.cert[0]).parent)
        settings |= {"DOCKER_TLS_VERIFY": "1"} if endpoint.tls.verify else {}
    return {**os.environ, **settings}


@dataclass(slots=True)
class _Told:
    """What the client has told so far, in its plain form: `#NUMBER` and a step's name, then what it printed and how it ended."""

    progress: Progress
    names: dict[str, str] = field(default_factory=dict)
    printed: dict[str, deque[str]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    failed: tuple[str, str] | None = None
    last: str = ""

    def take(self, line: str) -> None:
        """Take the next line."""
        self.last = line or self.last
        row = re.fullmatch(r"#(\d+) (.*)", line)
        if row is None:
            return
        number, text = row[1], row[2]
        if number not in self.names:
            self.names[number], self.printed[number] = text, deque(maxlen=_TAIL)
        elif (done := re.fullmatch(r"DONE ([0-9.]+)s|CACHED", text)) and number not in self.ended:
            self.ended.add(number)
            self.progress.say(f"{self.names[number]}  {f'{done[1]} s' if done[1] else 'cached'}")
        elif text.startswith("ERROR: "):
            self.failed = (number, text.removeprefix("ERROR: "))
        elif output := re.fullmatch(r"[0-9.]+ (.*)", text):
            self.printed[number].append(output[1])

    def error(self, endpoint: Endpoint) -> EnvlockError:
        """What went wrong."""
        if self.failed is None:
            return of_answer(self.last, endpoint, "building an image")
        number, why = self.failed
        known, name = of_answer(why, endpoint, "building an image"), self.names[number]
        if not isinstance(known, EngineRefused) or name.startswith("[internal]"):
            return known
        text = "\n".join([why, *self.printed[number]])
        return BuildFailed("a step of the Dockerfile failed", where=name, why=text, hint="the log of the build has all of its output")
