"""The refresh of the catalogue: rows measured from wheels that a small index on loopback, or the real one, serves by ranges."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
import requests
from loopback import Answer, Request, Server, serving

from envlock.catalogue import load, published
from envlock.catalogue.loader import DATA
from envlock.catalogue.rows import MACHINES
from envlock.errors import FetchError, NoSolution, Unreachable

CUDA = "Requires-Dist: nvidia-{0}; platform_system == 'Linux' and platform_machine == 'x86_64'\n"


def torch_wheel(version: str, cuda: str | None, *, python_library: bytes, requires: str = "") -> bytes:
    """A wheel with the few members that are read, and one large one that must not be."""
    buffer = io.BytesIO()
    info = f"torch-{version}.dist-info"
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("torch/lib/libtorch_cuda.so", bytes(6 * 2**20))
        archive.writestr("torch/lib/libtorch_python.so", python_library)
        archive.writestr(
            "torch/version.py", f"__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = {cuda!r}\ngit_version = 'x'\n"
        )
        archive.writestr("torch/lib/after.so", bytes(6 * 2**20))
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\nRequires-Python: >=3.9\n{requires}\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\n")
        archive.writestr(f"{info}/RECORD", "")
    return buffer.getvalue()


def by_ranges(body: bytes) -> Callable[[Request], Answer]:
    def answer(request: Request) -> Answer:
        asked = request.headers.get("range")
        if asked is None:
            return Answer(body)
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start, end = (int(first), int(last or len(body) - 1)) if first else (len(body) - int(last), len(body) - 1)
        end = min(end, len(body) - 1)
        return Answer(body[start : end + 1], 206, {"Content-Range": f"bytes {start}-{end}/{len(body)}"})

    return answer


def index_page(files: dict[str, bytes]) -> bytes:
    links = "".join(f'<a href="/files/{name}#sha256={sha256(body).hexdigest()}">{name}</a>' for name, body in files.items())
    return f"<!DOCTYPE html><html><body>{links}</body></html>".encode()


def index_of(files: dict[str, bytes], variant: str) -> dict[str, bytes | Answer | Callable[[Request], Answer]]:
    page = Answer(index_page(files), headers={"Content-Type": "text/html"})
    return {f"/whl/{variant}/torch/": page, **{f"/files/{name}": by_ranges(body) for name, body in files.items()}}


WHEEL = torch_wheel(
    "2.5.1+cu121",
    "12.1",
    python_library=b"\x7fELF GLIBC_2.14 numpy._core._multiarray_umath \0sm_50 sm_90 compute_90\0" + bytes(2**20),
    requires=CUDA.format("cudnn-cu12==9.1.0.70")
    + CUDA.format("nccl-cu12==2.21.5")
    + "Requires-Dist: triton==3.1.0; platform_system == 'Linux' and platform_machine == 'x86_64' and python_version < '3.13'\n"
    + "Requires-Dist: sympy==1.13.1; python_version >= '3.9'\n",
)


def read_variant(server: Server, platform: str = "linux/amd64") -> dict[str, object] | None:
    with requests.Session() as session:
        return published.variant_row("2.5.1", "cu121", platform, server.url, session)


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_NO_CACHE", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def test_a_build_of_pytorchs_index_is_measured_by_ranges() -> None:
    names = {f"torch-2.5.1%2Bcu121-cp{tag}-cp{tag}-linux_x86_64.whl": WHEEL for tag in ("310", "311")}
    with serving(index_of(names, "cu121")) as server:
        row = read_variant(server)
        sent = sum(len(by_ranges(WHEEL)(r).body) for r in server.requests if r.path.startswith("/files/") and "range" in r.headers)
    assert row is not None
    assert row == {
        "torch": "2.5.1",
        "platform": "linux/amd64",
        "index": "pytorch",
        "variant": "cu121",
        "cuda": "12.1",
        "python": ["3.10", "3.11"],
        "glibc": "2.14",
        "cudnn": "9.1.0.70",
        "nccl": "2.21.5",
        "triton": "3.1.0",
        "numpy_abi": 2,
        "architectures": ["sm_50", "sm_90", "compute_90"],
        "requires": ["nvidia-cudnn-cu12==9.1.0.70", "nvidia-nccl-cu12==2.21.5", 'triton==3.1.0; python_version < "3.13"'],
        "source": "torch-2.5.1+cu121-cp311-cp311-linux_x86_64.whl",
        "date": row["date"],
        "how": row["how"],
    }
    assert sent < len(WHEEL)


def test_no_wheel_for_a_platform_is_no_row() -> None:
    with serving(index_of({"torch-2.5.1%2Bcu121-cp311-cp311-linux_x86_64.whl": WHEEL}, "cu121")) as server:
        assert read_variant(server, "linux/arm64") is None


def test_a_build_that_the_index_lacks() -> None:
    with serving(index_of({"torch-2.4.0%2Bcu121-cp311-cp311-linux_x86_64.whl": WHEEL}, "cu121")) as server, pytest.raises(NoSolution):
        read_variant(server)


def test_an_index_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with serving({}) as server:
        pass
    with pytest.raises(Unreachable):
        read_variant(server)


def test_a_server_without_ranges_is_refused() -> None:
    with serving({"/torch.whl": WHEEL}) as server, requests.Session() as session, pytest.raises(FetchError, match="by ranges"):
        published.RangedWheel(published.PublishedWheel(f"{server.url}/torch.whl", len(WHEEL), ""), session)


@pytest.mark.network
@pytest.mark.parametrize("platform", list(MACHINES))
def test_a_published_release_gives_the_row_that_the_catalogue_has(platform: str) -> None:
    stored = [
        row for row in json.loads((DATA / "torch.json").read_text())["rows"] if (row["torch"], row["platform"]) == ("2.0.1", platform)
    ]
    with requests.Session() as session:
        assert [published.torch_row("2.0.1", platform, published.published_wheels("torch==2.0.1"), session)] == stored


def test_measured_rows_stand_in_order() -> None:
    releases = [(row["torch"], row["platform"]) for row in json.loads((DATA / "torch.json").read_text())["rows"]]
    newest_first = list(reversed(load().releases()))
    assert [torch for torch, platform in releases if platform == "linux/amd64"] == newest_first


def test_the_script_refuses_variants_without_their_index() -> None:
    script = Path(__file__).parents[2] / "scripts" / "refresh-catalogue"
    done = subprocess.run([sys.executable, script, "--only", "variants"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--pytorch-index" in done.stderr.splitlines()[-1]
