"""Tiny wheels, and a package index made of them on the loopback interface."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from loopback import Answer, Server, ranged, serving
from packaging.utils import canonicalize_name, parse_wheel_filename

NEW_YEAR_2024 = (2024, 1, 1, 0, 0, 0)


def make_wheel(
    file: str,
    requires: Iterable[str] = (),
    content: Mapping[str, str] | None = None,
    entry_points: str = "",
    date: tuple[int, int, int, int, int, int] = NEW_YEAR_2024,
) -> bytes:
    """The bytes of a wheel of this name, which fixes project, version and tags."""
    project, version, *_ = file.split("-")
    info = f"{project}-{version}.dist-info"
    tags = "".join(f"Tag: {tag}\n" for tag in parse_wheel_filename(file)[3])
    files = dict(content if content is not None else {f"{project}/__init__.py": f"version = {version!r}\n"})
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n" + "".join(
        f"Requires-Dist: {text}\n" for text in requires
    )
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n{tags}"
    if entry_points:
        files[f"{info}/entry_points.txt"] = entry_points
    rows = [f"{path},sha256={_digest(text)},{len(text)}\n" for path, text in files.items()]
    files[f"{info}/RECORD"] = "".join(rows) + f"{info}/RECORD,,\n"
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path, date), text)
    return raw.getvalue()


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def content_path(body: bytes, file: str) -> str:
    """Where a public index keeps a file: below the BLAKE2b-256 of its bytes."""
    digest = hashlib.blake2b(body, digest_size=32).hexdigest()
    return f"packages/{digest[:2]}/{digest[2:4]}/{digest[4:]}/{file}"


def write_wheels(folder: Path, wheels: Mapping[str, bytes]) -> Path:
    """Put wheels into a folder, as for find-links."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, body in wheels.items():
        (folder / file).write_bytes(body)
    return folder


@contextmanager
def package_index(
    wheels: Mapping[str, bytes],
    others: Mapping[str, bytes] | None = None,
    *,
    json_pages: bool = True,
    place: Callable[[bytes, str], str] = content_path,
) -> Iterator[Server]:
    """Serve wheels (and other files, such as source archives) where `place` puts them, with full addresses on the JSON or HTML pages
    of projects below /simple/."""
    with serving({}) as server:
        pages: dict[str, list[tuple[str, str, str]]] = {}
        for file, body in {**wheels, **(others or {})}.items():
            path = quote("/" + place(body, file))
            add_file(server, path, body)
            project = canonicalize_name(file.rpartition(".tar.gz")[0].rpartition("-")[0] if file.endswith(".gz") else file.split("-")[0])
            pages.setdefault(project, []).append((file, server.url + path, hashlib.sha256(body).hexdigest()))
        for project, files in pages.items():
            server.routes[f"/simple/{project}/"] = _json(project, files) if json_pages else html_page(files)
        yield server


def add_file(server: Server, path: str, body: bytes) -> None:
    server.routes[path] = lambda request: ranged(body, request)


def _json(project: str, files: list[tuple[str, str, str]]) -> Answer:
    listed = [{"filename": file, "url": url, "hashes": {"sha256": sha256}} for file, url, sha256 in files]
    page = {"meta": {"api-version": "1.0"}, "name": project, "files": listed}
    return Answer(json.dumps(page).encode(), headers={"Content-Type": "application/vnd.pypi.simple.v1+json"})


def html_page(files: list[tuple[str, str, str]]) -> Answer:
    """A page as PEP 503 has it; without the fragment where a sha256 is empty."""
    links = "".join(f'<a href="{url}{"#sha256=" + sha256 if sha256 else ""}">{file}</a><br/>' for file, url, sha256 in files)
    return Answer(f"<!DOCTYPE html><html><body>{links}</body></html>".encode(), headers={"Content-Type": "text/html"})


def add_pytorch(server: Server, path: str, wheels: Mapping[str, bytes], *, hashes: bool) -> None:
    """An index as PyTorch's: files beside the pages, links from the root, and hashes only for some."""
    projects: dict[str, list[tuple[str, str, str]]] = {}
    for file, body in wheels.items():
        url = f"/{path}/{quote(file)}"
        add_file(server, url, body)
        sha256 = hashlib.sha256(body).hexdigest() if hashes else ""
        projects.setdefault(file.split("-")[0], []).append((file, url, sha256))
    for project, files in projects.items():
        server.routes[f"/{path}/{project}/"] = html_page(files)
