"""Small locks of the shapes that real ones have, for tests that need no files behind them."""

from __future__ import annotations

from typing import Any

from envlock.lock import Apt, Blob, Built, Deb, DebianBase, ImageBase, Lock, Run, Settings, Shipped, Stack, Wheel

HEAVY = 300_000_000
EPOCH = 1_790_000_000


def wheel(name: str, version: str = "1.0", size: int = 1000, tag: str = "py3-none-any", index: str = "default") -> Wheel:
    """A wheel whose sha256 is as good as any."""
    file = f"{name.replace('-', '_')}-{version}-{tag}.whl"
    return Wheel(name=name, version=version, file=file, sha256=hex_of(file), size=size, index=index)


def deb(name: str, version: str = "1") -> Deb:
    """A package in Debian's pool."""
    file = f"{name}_{version}_amd64.deb"
    path = f"pool/main/{name[0]}/{name}/{file}"
    return Deb(name=name, version=version, architecture="amd64", archive="debian", path=path, sha256=hex_of(file), size=2000)


def hex_of(text: str) -> str:
    """64 hex digits that tell one text from another, and a reader which."""
    return (text.encode().hex() + "0" * 64)[:64]


DEBIAN = DebianBase(suite="bookworm", snapshot="20261128T201100Z", date=EPOCH, debs=(deb("base-files"), deb("python3")))
ARCHIVE = ImageBase(
    kind="archive",
    reference="bases/lab.tar",
    manifest_digest=f"sha256:{hex_of('manifest')}",
    config_digest=f"sha256:{hex_of('config')}",
    config_size=10,
    layers=(Blob(digest=f"sha256:{hex_of('b')}", size=1, media_type="tar", diff_id=f"sha256:{hex_of('b')}"),),
    environment={"PATH": "/usr/local/bin:/usr/bin", "LD_LIBRARY_PATH": "/usr/local/cuda/lib64"},
)
REGISTRY = ARCHIVE.model_copy(update={"kind": "image", "reference": "nvidia/cuda:12.4.1-base-ubuntu22.04"})
LASTING = REGISTRY.model_copy(update={"reference": "lab/notebook:3", "facts": {"lasting": "ONBUILD, VOLUME"}})


def cpu_lock(**changes: Any) -> Lock:
    """The shape of the lock of an image without CUDA: one heavy wheel, and small ones."""
    inputs: dict[str, Any] = {
        "name": "cpu-sample",
        "spec": f"sha256:{hex_of('spec')}",
        "tools": {"uv": "0.13.9"},
        "epoch": EPOCH,
        "stack": Stack(torch="2.13.0", variant="cpu", python="3.11", platform="linux/amd64"),
        "base": DEBIAN,
        "shipped": Shipped(envlock="0.1.0", sha256=hex_of("bundle"), size=10),
        "wheels": (
            wheel("numpy", "2.2.6"),
            wheel("sympy", "1.14.0"),
            wheel("torch", "2.13.0+cpu", HEAVY, "cp311-cp311-linux_x86_64", "pytorch"),
        ),
        "installer": wheel("installer", "1.0.1"),
        "determinism": Settings(level="strict", seed=7, tf32=False, threads=2),
        "environment": {"GREETING": 'say "hi" to $USER \\ all', "PATH": "/opt/venv/bin:/usr/bin:/bin", "PYTHONHASHSEED": "7"},
    }
    return Lock(**{**inputs, **changes})


def cuda_lock(**changes: Any) -> Lock:
    """The shape of the lock of an image with CUDA: many heavy wheels in their order, a user, files, and packages on top."""
    inputs: dict[str, Any] = {
        "name": "cuda-sample",
        "stack": Stack(
            torch="2.5.1",
            variant="cu124",
            python="3.11",
            platform="linux/amd64",
            cuda="12.4",
            cudnn="9.1.0.70",
            nccl="2.21.5",
            triton="3.1.0",
            driver_floor="525.60.13",
            architectures=("sm_80", "sm_90"),
            gpus=("sm_80", "sm_90"),
        ),
        "wheels": (
            wheel("filelock"),
            wheel("numpy", "2.2.6"),
            wheel("nvidia-cublas-cu12", "12.4.5.8", HEAVY),
            wheel("nvidia-nvtx-cu12", "12.4.127"),
            wheel("torch", "2.5.1+cu124", 2 * HEAVY, "cp311-cp311-linux_x86_64", "pytorch"),
            wheel("triton", "3.1.0", HEAVY),
        ),
        "apt": Apt(asked=("git", "libgl1"), date=EPOCH, debs=(deb("git"), deb("libgl1"))),
        "run": Run(shm_size="8g", user="1000:1000", workdir="/workspace/my code"),
    }
    return cpu_lock(**{**inputs, **changes})


def built_of(lock: Lock, *diff_ids: str) -> Built:
    """What a build of a lock may have come out as."""
    digests = tuple(f"sha256:{hex_of(name)}" for name in diff_ids)
    return Built(
        lock=lock.digest, image_digest=f"sha256:{hex_of('image')}", manifest_digest=f"sha256:{hex_of('manifest')}", diff_ids=digests
    )
