"""Debian's docker-registry on a loopback port, for the time of a `with` block."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def why_not() -> str | None:
    """Why this host cannot start one; None where it can."""
    absent = [tool for tool in ("docker-registry", "skopeo") if shutil.which(tool) is None]
    return f"a registry needs {', '.join(absent)}" if absent else None


@contextmanager
def running_registry(htpasswd: str = "") -> Iterator[str]:
    """`127.0.0.1:PORT` of an empty registry; with a `user:hash` line as htpasswd writes it, only that user may read and write."""
    with tempfile.TemporaryDirectory(prefix="envlock-registry-") as folder:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            host = f"127.0.0.1:{probe.getsockname()[1]}"
        config: dict[str, object] = {
            "version": 0.1,
            "log": {"level": "error", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": f"{folder}/data"}, "delete": {"enabled": True}},
            "http": {"addr": host},
        }
        if htpasswd:
            Path(folder, "users").write_text(htpasswd + "\n")
            config["auth"] = {"htpasswd": {"realm": "test", "path": f"{folder}/users"}}
        Path(folder, "config.yml").write_text(json.dumps(config))  # every JSON document is YAML, too
        with Path(folder, "log").open("wb") as log:
            process = subprocess.Popen(["docker-registry", "serve", f"{folder}/config.yml"], stdout=log, stderr=log)
        try:
            _wait_for(host, process, Path(folder, "log"))
            yield host
        finally:
            process.terminate()
            process.wait()


def push(target: str, tars: Sequence[Path], settings: Mapping[str, Any], platform: str) -> None:
    """Put an image of these layers into a registry at `HOST/NAME:TAG`, with these settings (`config` of its config) as they are."""
    with tempfile.TemporaryDirectory(prefix="envlock-push-") as folder:
        blobs = Path(folder, "blobs/sha256")
        blobs.mkdir(parents=True)

        def described(content: Path | dict[str, Any], media_type: str) -> dict[str, Any]:
            raw = json.dumps(content).encode() if isinstance(content, dict) else content.read_bytes()
            digest = hashlib.sha256(raw).hexdigest()
            (blobs / digest).write_bytes(raw)
            return {"mediaType": f"application/vnd.oci.image.{media_type}", "digest": f"sha256:{digest}", "size": len(raw)}

        layers = [described(tar, "layer.v1.tar") for tar in tars]
        system, _, architecture = platform.partition("/")
        rootfs = {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]}
        config = described({"os": system, "architecture": architecture, "config": settings, "rootfs": rootfs}, "config.v1+json")
        manifest = described({"schemaVersion": 2, "config": config, "layers": layers}, "manifest.v1+json")
        Path(folder, "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        Path(folder, "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [manifest]}))
        subprocess.run(["skopeo", "copy", "--quiet", "--dest-tls-verify=false", f"oci:{folder}", f"docker://{target}"], check=True)


def _wait_for(host: str, process: subprocess.Popen[bytes], log: Path) -> None:
    name, _, port = host.rpartition(":")
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection((name, int(port)), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"the registry did not start:\n{log.read_text(errors='replace')[-2000:]}")
