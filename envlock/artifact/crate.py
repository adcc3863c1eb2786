"""RO-Crate metadata (1.1, with the terms of Workflow Run Crate 0.5): what the artifact's files are, for machines."""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from envlock.artifact import layout
from envlock.artifact.citation import is_single, title_of
from envlock.artifact.record import Record
from envlock.lock import Lock
from envlock.paper import Author, Paper
from envlock.report import Report

CONTEXT = ["https://w3id.org/ro/crate/1.1/context", "https://w3id.org/ro/terms/workflow-run/context"]
SPEC = "https://w3id.org/ro/crate/1.1"
_KNOWN = {"": "text/plain", ".md": "text/markdown", ".yaml": "application/yaml", ".tex": "text/x-tex", ".toml": "application/toml"}


def crate(lock: Lock, record: Record, paper: Paper | None, files: Mapping[str, int], reports: Mapping[str, Report]) -> bytes:
    """The metadata file; `files` maps every other file of the artifact to its size in bytes, `reports` those that are reports."""
    when = datetime.fromtimestamp(lock.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    people = [_person(author) for author in paper.authors] if paper else []
    licence = _licence(paper)
    root: dict[str, Any] = {
        "@id": "./",
        "@type": "Dataset",
        "name": title_of(paper),
        "description": f"The container image {record.tag}, its lock, and what rebuilds and checks it.",
        "datePublished": when,
        "license": {"@id": licence["@id"]},
        "author": [{"@id": person["@id"]} for person in people],
        "hasPart": [{"@id": name} for name in sorted(files)],
        "mainEntity": {"@id": "#image"},
        "mentions": [{"@id": f"#{name}"} for name in sorted(reports)],
        "identifier": lock.digest,
    }
    if paper and paper.doi:
        root["citation"] = {"@id": f"https://doi.org/{paper.doi}"}
    graph: list[dict[str, Any]] = [
        {"@id": layout.CRATE, "@type": "CreativeWork", "about": {"@id": "./"}, "conformsTo": {"@id": SPEC}},
        {key: value for key, value in root.items() if value not in ([], None)},
        _image(record),
        *_software(lock),
        *(_file(name, size) for name, size in sorted(files.items())),
        *people,
        licence,
        *(_run(name, report) for name, report in sorted(reports.items())),
    ]
    if paper and paper.doi:
        graph.append({"@id": f"https://doi.org/{paper.doi}", "@type": "ScholarlyArticle", "name": paper.title})
    return (json.dumps({"@context": CONTEXT, "@graph": graph}, indent=1, ensure_ascii=False) + "\n").encode()


def _image(record: Record) -> dict[str, Any]:
    """Workflow Run Crate's ContainerImage, which names an image by its manifest."""
    name, _, tag = record.tag.rpartition(":")
    return {
        "@id": "#image",
        "@type": "ContainerImage",
        "additionalType": {"@id": "https://w3id.org/ro/terms/workflow-run#DockerImage"},
        "name": name,
        "tag": tag,
        "sha256": record.manifest_digest.removeprefix("sha256:"),
        "softwareRequirements": [{"@id": "#torch"}, {"@id": "#python"}],
        "hasPart": [{"@id": file.name} for file in record.archive.files],
    }


def _software(lock: Lock) -> Iterable[dict[str, Any]]:
    yield {"@id": "#python", "@type": "SoftwareApplication", "name": "Python", "softwareVersion": lock.stack.python}
    yield {"@id": "#torch", "@type": "SoftwareApplication", "name": "PyTorch", "softwareVersion": lock.stack.torch}
    yield {"@id": "#envlock", "@type": "SoftwareApplication", "name": "envlock", "softwareVersion": lock.shipped.envlock}


def _file(name: str, size: int) -> dict[str, Any]:
    suffix = "." + name.rpartition(".")[2] if "." in name.rpartition("/")[2] else ""
    kind = _KNOWN.get(suffix) or mimetypes.types_map.get(suffix) or "application/octet-stream"
    return {"@id": name, "@type": "File", "name": name.rpartition("/")[2], "encodingFormat": kind, "contentSize": str(size)}


def _person(author: Author) -> dict[str, Any]:
    name = f"{author.given} {author.family}"
    row = {"@id": f"https://orcid.org/{author.orcid}" if author.orcid else f"#{name.replace(' ', '-')}", "@type": "Person", "name": name}
    return (
        row | {"givenName": author.given, "familyName": author.family} | ({"affiliation": author.affiliation} if author.affiliation else {})
    )


def _licence(paper: Paper | None) -> dict[str, Any]:
    if paper is None or paper.licence is None:
        about = "The authors have not stated a licence for their own files; LICENSES.md lists those of what is in the image."
        return {"@id": "#licence", "@type": "CreativeWork", "name": "not stated", "description": about}
    about = "For the authors' own files; LICENSES.md lists the licences of what is in the image."
    identity = f"https://spdx.org/licenses/{paper.licence}" if is_single(paper.licence) else "#licence"
    return {"@id": identity, "@type": "CreativeWork", "name": paper.licence, "description": about}


def _run(name: str, report: Report) -> dict[str, Any]:
    """A verification as the action that made its report."""
    done = "CompletedActionStatus" if report.verdict == "pass" else "FailedActionStatus"
    return {
        "@id": f"#{name}",
        "@type": "CreateAction",
        "name": f"Verification: {report.summary}",
        "startTime": report.run.started,
        "instrument": {"@id": "#envlock"},
        "object": {"@id": "#image"},
        "result": {"@id": name},
        "actionStatus": {"@id": f"http://schema.org/{done}"},
    }
