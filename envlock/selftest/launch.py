"""Starting ranks under torchrun on this machine, without a network: all addresses are loopback's."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from envlock.selftest import children
from envlock.selftest.children import ChildFailed


def ranks(count: int, backend: str, *, timeout: float = 240.0) -> list[dict[str, Any]]:
    """What each rank wrote, by rank. Raises ChildFailed.

    The rendezvous is c10d's at a free port of loopback; `--standalone` would look up the host's own name, which need not resolve.
    """
    env = children.environment(
        {
            "ENVLOCK_BACKEND": backend,
            "GLOO_SOCKET_IFNAME": "lo",
            "NCCL_SOCKET_IFNAME": "lo",
            "TP_SOCKET_IFNAME": "lo",
            # What torchrun would set itself for several ranks, with a warning; the level decides it, where there is one.
            "OMP_NUM_THREADS": _threads(),
            "PYTHONPATH": _path(),
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", *_options(count), "-m", "envlock.selftest.ranks", folder]
        ended = children.run(command, env=env, timeout=timeout)
        if ended.status != 0 or ended.timed_out:
            raise ChildFailed(f"torchrun: {ended.why}", "timed-out" if ended.timed_out else "crashed", ended.stderr)
        return [json.loads(Path(folder, f"{rank}.json").read_text(encoding="utf-8")) for rank in range(count)]


def _options(count: int) -> list[str]:
    rendezvous = ["--rdzv_backend=c10d", "--rdzv_endpoint=127.0.0.1:0", "--rdzv_id=envlock"]
    return ["--nnodes=1", f"--nproc_per_node={count}", *rendezvous, *_local_address()]


def _local_address() -> list[str]:
    """Newer torchrun can be told this machine's address, where it would look up the host's name."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return []
    source = Path(spec.origin).with_name("distributed") / "run.py"
    return ["--local_addr=127.0.0.1"] if source.is_file() and "local_addr" in source.read_text(encoding="utf-8") else []


def _threads() -> str:
    return os.environ.get("OMP_NUM_THREADS", "1")


def _path() -> str:
    """PYTHONPATH with this package's folder, at its end."""
    return os.pathsep.join(part for part in (os.environ.get("PYTHONPATH", ""), children.LIB) if part)
