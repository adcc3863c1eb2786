"""Whatever a registry, an index, an engine, a container or an archive answers: it is understood, or refused by an error of ours."""

from __future__ import annotations

import gzip
import io
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from fuzzing import Document, Read, hold_to_the_promise
from hypothesis import strategies as st
from image_helpers import FakeImage, blob_path, digest, index_of, raw_tar
from layer_helpers import file, folder, hardlink, symlink, written
from loopback import Answer, Server, serving
from mutations import as_json, broken, broken_json, damaged
from stand_in_engine import StandInEngine, lines, sample_image, sample_lock
from test_doctor import HOST
from test_transcript import CHECK, REPORT, START
from wheel_helpers import make_wheel

from envlock import report as reports
from envlock.artifact.imagefile import read_image as read_archive
from envlock.debfile import date_of
from envlock.engine import buildkit
from envlock.engine.exported import config_digest
from envlock.engine.images import read_image
from envlock.layers.wheelfile import open_wheel
from envlock.outputs import compare_files, describe
from envlock.progress import Silent
from envlock.report_forms import to_html, to_text
from envlock.resolve.baseimage import moved_base, resolve_archive, resolve_image
from envlock.resolve.pages import Pages
from envlock.rootfs import read_rootfs
from envlock.secrecy import redact
from envlock.selftest_run import Options
from envlock.store import Store
from envlock.transport import Patience, Transport
from envlock.verify import verify_on

IMPATIENT = Transport(Patience(attempts=1, pause=0.0, connect=2.0, read=2.0))
IMAGE = FakeImage()
OVER_A_NETWORK = 20  # examples; each takes a tenth of a second


# registries -----------------------------------------------------------------------------------------------------------------


@dataclass
class Stage:
    """A registry whose every answer a test can change; documents that name a changed one name it rightly."""

    server: Server
    answers: dict[str, Answer] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{urlsplit(self.server.url).netloc}/team/base:1"

    def show(self, index: bytes | None, manifest: bytes, blobs: Mapping[str, bytes]) -> None:
        self.server.routes.clear()
        self.server.routes["/v2/"] = b"{}"
        for names, raw in (((digest(manifest), *(() if index else ("1",))), manifest), (("1",) if index else (), index or b"")):
            for name in names:
                self.server.routes[f"/v2/team/base/manifests/{name}"] = raw
        for name, raw in blobs.items():
            self.server.routes[f"/v2/team/base/blobs/{name}"] = raw


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with serving({}) as server:
        yield Stage(server)


def manifest_of(config: bytes, layers: Any = None) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(IMAGE.manifest)
    document["config"] |= {"digest": digest(config), "size": len(config)}
    if layers is not None:
        document["layers"] = layers
    return document


def reads_registry(stage: Stage, what: str) -> Read:
    def read(raw: bytes, folder: Path) -> None:
        index: bytes | None = None
        config, manifest, blobs = IMAGE.config, IMAGE.manifest, dict(IMAGE.blobs)
        if what == "index":
            index = raw
        elif what == "manifest":
            manifest = raw
        elif what == "config":
            config = raw
            manifest = json.dumps(manifest_of(raw)).encode()
        else:
            blob = gzip.compress(raw) if what == "layer" else raw
            document = json.loads(IMAGE.config)
            document["rootfs"]["diff_ids"] = [digest(raw)]
            config = json.dumps(document).encode()
            rows = [{"mediaType": "x", "digest": digest(blob), "size": len(blob)}]
            manifest = json.dumps(manifest_of(config, rows)).encode()
            blobs = {digest(blob): blob}
        stage.show(index, manifest, {**blobs, digest(config): config})
        store = Store(folder / "store")
        try:
            base = resolve_image(stage.name, "linux/amd64", store, Silent(), IMPATIENT)
            moved_base(base, "linux/amd64", store, Silent(), IMPATIENT)
        finally:
            assert store.verify() == ()
            assert list((store.root / "work").glob("*/*")) == []

    return read


LAYER = written(file("usr/lib/os-release", b"ID=debian\n"), folder("bin"), symlink("bin/sh", "dash"), hardlink("x", "usr/lib/os-release"))


@pytest.mark.parametrize(
    ("what", "document"),
    [
        ("index", broken_json(json.loads(index_of(IMAGE)))),
        ("manifest", broken_json(json.loads(IMAGE.manifest))),
        ("config", broken_json(json.loads(IMAGE.config))),
        ("layer", damaged(LAYER)),
        ("packed layer", damaged(gzip.compress(LAYER, mtime=0))),
    ],
)
def test_registry(what: str, document: Document, stage: Stage, tmp_path: Path) -> None:
    hold_to_the_promise(document, reads_registry(stage, what), tmp_path, OVER_A_NETWORK)


headers = st.one_of(
    st.text(st.characters(codec="latin-1", exclude_characters="\r\n"), max_size=60),
    st.sampled_from(
        [
            'Bearer realm="{}/token",service="s"',
            "Bearer",
            'Basic realm="',
            'Bearer realm="http://["',
            "Negotiate x",
            "Bearer " + "a=b," * 3000,
        ]
    ),
)


def test_login(stage: Stage, tmp_path: Path) -> None:
    def read(raw: bytes, folder: Path) -> None:
        challenge, _, token = raw.partition(b"\n")
        header = challenge.decode("latin-1").replace("{}", stage.server.url).replace("\n", "").replace("\r", "").replace("\0", "")
        stage.server.routes.clear()
        refusal = Answer(b"", 401, {"WWW-Authenticate": header})
        stage.server.routes["/v2/"] = refusal
        stage.server.routes["/v2/team/base/manifests/1"] = lambda request: Answer(b"{}") if "authorization" in request.headers else refusal
        stage.server.routes["/token"] = Answer(token)
        resolve_image(stage.name, "linux/amd64", Store(folder / "store"), Silent(), IMPATIENT)

    answers = st.builds(
        lambda header, token: header.encode("latin-1") + b"\n" + token, headers, broken_json({"token": "t", "access_token": "u"})
    )
    hold_to_the_promise(answers, read, tmp_path, OVER_A_NETWORK)


# package indexes ------------------------------------------------------------------------------------------------------------

PAGE = {
    "meta": {"api-version": "1.0"},
    "name": "x",
    "files": [
        {"filename": "x-1-py3-none-any.whl", "url": "../../x-1.whl", "hashes": {"sha256": "0" * 64}},
        {"filename": "y", "url": "https://h/y"},
    ],
}
HTML = (
    b'<!DOCTYPE html><html><base href="https://h.invalid/"><body>'
    b'<a href="../x-1.whl#sha256=00">x-1.whl</a><a href="//h:1/y">y</a></body></html>'
)


class Telling:
    """A transport that gives one page."""

    def __init__(self, raw: bytes, kind: str) -> None:
        self.raw, self.kind = raw, kind

    def text(self, url: str, accept: str) -> tuple[str, Any]:
        return self.raw.decode("utf-8", "replace"), SimpleNamespace(headers={"Content-Type": self.kind}, url=url)


@pytest.mark.parametrize(
    ("kind", "document"),
    [("application/vnd.pypi.simple.v1+json", broken_json(PAGE)), ("text/html", damaged(HTML)), ("text/html", broken_json(PAGE))],
)
def test_index(kind: str, document: Document, tmp_path: Path) -> None:
    def read(raw: bytes, folder: Path) -> None:
        for offer in Pages(Telling(raw, kind)).project("https://me:secret@h.invalid/simple", "x"):  # type: ignore[arg-type]
            assert "secret" not in redact(offer.url)
            assert isinstance(offer.file, str)
            assert isinstance(offer.sha256, str | None)

    hold_to_the_promise(document, read, tmp_path)


# archives -------------------------------------------------------------------------------------------------------------------


def saved(config: bytes = IMAGE.config, manifest: bytes | None = None, index: bytes | None = None, docker: bytes | None = None) -> bytes:
    """An OCI layout whose documents can be replaced, or the older form of `docker save` with a replaced list."""
    if docker is not None:
        return raw_tar({"manifest.json": docker, "c.json": config, "l0": IMAGE.layers[0], "l1": IMAGE.layers[1]})
    manifest = manifest if manifest is not None else json.dumps(manifest_of(config)).encode()
    index = index or json.dumps({"manifests": [{"digest": digest(manifest), "size": len(manifest)}]}).encode()
    blobs = {**IMAGE.blobs, digest(config): config, digest(manifest): manifest}
    return raw_tar({"index.json": index, **{blob_path(name): raw for name, raw in blobs.items()}})


ARCHIVES: dict[str, tuple[Document, Callable[[bytes], bytes]]] = {
    "index": (
        broken_json({"manifests": [{"digest": digest(IMAGE.manifest), "platform": {"os": "linux"}, "annotations": {"a": "b"}}]}),
        lambda raw: saved(index=raw),
    ),
    "manifest": (broken_json(json.loads(IMAGE.manifest)), lambda raw: saved(manifest=raw)),
    "config": (broken_json(json.loads(IMAGE.config)), lambda raw: saved(config=raw)),
    "saved config": (
        broken_json(json.loads(IMAGE.config)),
        lambda raw: saved(config=raw, docker=as_json([{"Config": "c.json", "Layers": ["l0", "l1"]}])),
    ),
    "saved list": (broken_json([{"Config": "c.json", "RepoTags": ["x:1"], "Layers": ["l0", "l1"]}]), lambda raw: saved(docker=raw)),
    "tar": (damaged(saved()), lambda raw: raw),
}


@pytest.mark.parametrize("what", ARCHIVES)
def test_image_archive(what: str, tmp_path: Path) -> None:
    document, packed = ARCHIVES[what]

    def read(raw: bytes, folder: Path) -> None:
        (folder / "base.tar").write_bytes(packed(raw))
        store = Store(folder / "store")
        try:
            resolve_archive(folder / "base.tar", "base.tar", "linux/amd64", store, Silent())
        finally:
            assert store.verify() == ()
            assert list((store.root / "work").glob("*/*")) == []

    hold_to_the_promise(document, read, tmp_path)


def test_layer_tar(tmp_path: Path) -> None:
    def read(raw: bytes, folder: Path) -> None:
        assert read_rootfs(io.BytesIO(raw), "a layer").digest

    hold_to_the_promise(damaged(LAYER, most=8), read, tmp_path)


def test_artifact_archive_is_never_trusted(tmp_path: Path) -> None:
    def read(raw: bytes, folder: Path) -> None:
        read_archive(io.BytesIO(raw), "the archive", {digest(layer): "a layer" for layer in IMAGE.layers}, lambda count: None)

    hold_to_the_promise(damaged(saved()), read, tmp_path)


def test_wheel(tmp_path: Path) -> None:
    files = {"pkg/__init__.py": "x = 1\n", "pkg-1.data/scripts/run": "#!python\n", "pkg/data.bin": bytes(range(256)) * 20}
    whole = make_wheel(tmp_path, "pkg", files, entry_points="[console_scripts]\nrun = pkg:main\n")
    path = tmp_path / whole.file

    def read(raw: bytes, folder: Path) -> None:
        path.write_bytes(raw)
        for installed in open_wheel(whole, path, "3.11").files:
            with installed.entry.open() as stream:  # type: ignore[misc]
                while stream.read(65536):
                    pass

    hold_to_the_promise(damaged(path.read_bytes(), most=8), read, tmp_path)


DEB = (
    b"!<arch>\n"
    + b"debian-binary   1700000000  0     0     100644  4         `\n2.0\n"
    + b"control.tar.xz  1700000000  0     0     100644  8         `\n"
    + b"x" * 8
)


def test_deb(tmp_path: Path) -> None:
    def read(raw: bytes, folder: Path) -> None:
        (folder / "x.deb").write_bytes(raw)
        assert date_of(folder / "x.deb") >= 0

    hold_to_the_promise(damaged(DEB), read, tmp_path)


# engines and containers -----------------------------------------------------------------------------------------------------

INSPECTED = {
    "Id": "sha256:" + "a" * 64, "Os": "linux", "Architecture": "amd64", "Variant": "",
    "Created": "2026-11-29T18:00:00.123456789Z", "Size": 5,
    "RepoTags": ["x:1"], "RepoDigests": [], "RootFS": {"Type": "layers", "Layers": ["sha256:" + "b" * 64]},
    "Config": {
        "Env": ["A=1", "B"], "User": "", "WorkingDir": "/", "Cmd": ["python"], "Entrypoint": None,
        "Labels": {"dev.envlock.layers": '[{"holds":"a","size":5}]', "x": "y"},
    },
}  # fmt: skip


def test_engine_s_word_on_an_image(tmp_path: Path) -> None:
    def read(raw: bytes, folder: Path) -> None:
        with suppress(ValueError):
            told = json.loads(raw)
            if isinstance(told, dict):
                read_image(told, named_by_config=True)
                read_image(told, named_by_config=False)

    hold_to_the_promise(broken_json(INSPECTED), read, tmp_path)


def test_labels_of_a_stranger(tmp_path: Path) -> None:
    def read(raw: bytes, folder: Path) -> None:
        config = {**INSPECTED["Config"], "Labels": {"dev.envlock.layers": raw.decode("utf-8", "replace")}}  # type: ignore[dict-item]
        assert read_image({**INSPECTED, "Config": config}, named_by_config=True).made is None

    hold_to_the_promise(broken_json([{"holds": "a", "size": 5}]), read, tmp_path)


def test_saved_image(tmp_path: Path) -> None:
    whole = saved()

    def read(raw: bytes, folder: Path) -> None:
        config_digest([raw], digest(json.dumps(manifest_of(IMAGE.config)).encode()), "linux/amd64")

    hold_to_the_promise(damaged(whole), read, tmp_path)


def test_build_progress(tmp_path: Path) -> None:
    inner = b"\x0a\x03abc\x1a\x04name\x2a\x02\x08\x01\x32\x02\x08\x03"

    def read(raw: bytes, folder: Path) -> None:
        buildkit._tell(raw, {}, buildkit.deque(maxlen=3), Silent(), io.BytesIO())

    hold_to_the_promise(damaged(b"\x0a" + bytes([len(inner)]) + inner + b"\x1a\x05\x22\x03out"), read, tmp_path)


EVENTS = [START, {"event": "begin", "id": "a"}, CHECK, REPORT]


@pytest.mark.parametrize(
    "document",
    [broken(EVENTS).map(lambda events: lines(*events) if isinstance(events, list) else as_json(events)), damaged(lines(*EVENTS))],
    ids=["meaning", "bytes"],
)
def test_self_test(document: Document, tmp_path: Path) -> None:
    lock = sample_lock()

    def read(raw: bytes, folder: Path) -> None:
        engine = StandInEngine(sample_image(lock), lock, prints=[raw])
        found = verify_on(HOST, engine, "sample:latest", Options(), Silent())  # type: ignore[arg-type]
        assert reports.parse(reports.to_json(found).encode(), "again").verdict == found.verdict
        to_text(found)
        to_html(found)

    hold_to_the_promise(document, read, tmp_path)


TENSORS = {"__metadata__": {"a": "b"}, "w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("x.safetensors", broken_json(TENSORS).map(lambda raw: struct.pack("<Q", len(raw)) + raw + bytes(16))),
        ("x.npy", damaged(b"\x93NUMPY\x01\x00\x36\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }  \n" + bytes(16))),
        ("x.json", broken_json({"a": [1, 2.5, None]})),
        ("x.jsonl", damaged(b'{"a": 1}\n{"a": 2}\n')),
        ("x.csv", damaged(b'a,b\n1,2\n"x""y",3\n')),
    ],
)
def test_outputs_of_a_command(name: str, document: Document, tmp_path: Path) -> None:
    whole = {"x.safetensors": struct.pack("<Q", len(as_json(TENSORS))) + as_json(TENSORS) + bytes(16)}.get(name, b"{}")
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / name).write_bytes(whole)

    def read(raw: bytes, folder: Path) -> None:
        (folder / name).write_bytes(raw)
        describe(folder / name, name)
        compare_files(folder / name, folder / "whole" / name, name)
        compare_files(folder / name, folder / name, name)

    hold_to_the_promise(document, read, tmp_path)
