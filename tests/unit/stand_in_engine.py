"""A stand-in for an engine: one image, and containers that print what a test recorded. It stands for the engine, not for results."""

import io
import json
import tarfile
from contextlib import contextmanager
from types import SimpleNamespace

from envlock.config import LOCK_LABEL
from envlock.engine import EngineImage, Output
from envlock.lock import DebianBase, Lock, Settings, Shipped, Stack, Wheel

ENVIRONMENT = {"PATH": "/opt/venv/bin:/usr/bin:/bin", "PYTHONHASHSEED": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def sample_lock(**changes):
    """A small lock of a CUDA stack."""
    wheel = Wheel(name="installer", version="1.0", file="installer-1.0-py3-none-any.whl", sha256="0" * 64, size=1, index="default")
    stack = Stack(
        torch="2.5.1", variant="cu124", python="3.11", platform="linux/amd64", cuda="12.4", driver_floor="525.60.13",
        architectures=("sm_80", "sm_90"), gpus=("sm_90",),
    )  # fmt: skip
    facts = {
        "name": "sample",
        "spec": "sha256:" + "1" * 64,
        "epoch": 0,
        "stack": stack,
        "base": DebianBase(suite="bookworm", snapshot="20261128T201100Z", date=0, debs=()),
        "shipped": Shipped(envlock="0.1.0", sha256="2" * 64, size=1),
        "wheels": (),
        "installer": wheel,
        "determinism": Settings(level="strict", seed=0, tf32=False, threads=4),
        "environment": ENVIRONMENT,
    }
    return Lock(**{**facts, **changes})


def sample_image(lock=None, **changes):
    """How an engine describes the image of a lock, or an image of somebody else."""
    environment = dict(lock.environment) if lock else {"PATH": "/usr/bin:/bin"}
    facts = {
        **dict.fromkeys(("diff_ids", "registry_digests", "command", "entrypoint"), ()),
        "id": "sha256:" + "a" * 64,
        "digest": "sha256:" + "a" * 64,
        "manifest_digest": None,
        "made": None,
        "tags": ("sample:latest",),
        "labels": {LOCK_LABEL: lock.digest} if lock else {},
        "environment": environment,
        "user": "",
        "workdir": "",
        "platform": "linux/amd64",
        "created": 0,
        "size": 1,
    }
    return EngineImage(**{**facts, **changes})


def lines(*events):
    """Events as the self-test prints them."""
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


class StandInContainer:
    """Prints pieces of output and ends with a status."""

    def __init__(self, engine, how):
        self._engine = engine
        self.how = how
        self.copied = b""
        self.timed_out = engine.late

    def put(self, folder, tar):
        self.copied += b"".join(tar)

    def get(self, path):
        content = self._engine.files.get(path)
        if content is None:
            raise FileNotFoundError(path)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            header = tarfile.TarInfo(path.rpartition("/")[2])
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
        yield buffer.getvalue()

    def start(self):
        if self._engine.refuses is not None:
            raise self._engine.refuses

    def output(self, timeout=None):
        yield from self._engine.prints

    def wait(self):
        return self._engine.status


class StandInEngine:
    """One image; every container prints the same."""

    def __init__(self, image, lock=None, *, prints=(), status=0, late=False, refuses=None, files=None):
        self.endpoint = SimpleNamespace(url="unix:///stand-in.sock", socket="/stand-in.sock")
        self._image = image
        self.files = {"/opt/envlock/lock.json": lock.json_bytes} if lock else {}
        self.files |= files or {}
        self.prints = [piece if isinstance(piece, Output) else Output("stdout", piece) for piece in prints]
        self.status = status
        self.late = late
        self.refuses = refuses
        self.started = []

    def image(self, reference):
        return self._image if reference in (*self._image.tags, self._image.id) else None

    @contextmanager
    def container(self, image, command, **how):
        container = StandInContainer(self, {"command": tuple(command), **how})
        if "entrypoint" in how:
            self.started.append(container)
        yield container
