"""How the artifact is cited and deposited: CITATION.cff 1.2.0 and Zenodo's .zenodo.json, filled from the spec's `paper`."""

from __future__ import annotations

import json
from typing import Any

import yaml

from envlock.lock import Lock
from envlock.paper import Author, Paper

OPEN = "FILL IN"
"""What stands where the author must still say something; CHECKLIST.md names each place."""


def citation(lock: Lock, paper: Paper | None) -> bytes:
    """CITATION.cff (citation-file-format, schema-guide.md)."""
    authors = [_cff_author(author) for author in paper.authors] if paper else [{"name": f"{OPEN}: the authors"}]
    data: dict[str, Any] = {
        "cff-version": "1.2.0",
        "message": "If you use this artifact, please cite it and the paper.",
        "type": "software",
        "title": title_of(paper),
        "authors": authors,
        "version": lock.short_digest,
        "identifiers": [{"type": "other", "value": lock.digest, "description": "digest of the lock"}],
    }
    if paper:
        licence = paper.licence if paper.licence and is_single(paper.licence) else None
        data |= {key: value for key, value in (("license", licence), ("doi", paper.artifact_doi)) if value}
        data |= {"keywords": list(paper.keywords)} if paper.keywords else {}
        preferred: dict[str, Any] = {"type": "article", "title": paper.title, "authors": authors}
        preferred |= {key: value for key, value in (("doi", paper.doi), ("journal", paper.venue)) if value}
        preferred |= {"year": int(paper.year)} if paper.year else {}
        data["preferred-citation"] = preferred
    head = "" if paper else "# The spec has no `paper:` block; give it one and pin again, or fill this in.\n"
    return (head + yaml.dump(data, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=120)).encode()


class _Plain(yaml.SafeDumper):
    """Writes what stands twice twice: readers of CFF need not know YAML's aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def title_of(paper: Paper | None) -> str:
    """What the artifact is called."""
    return f"Artifact of “{paper.title}”" if paper else f"{OPEN}: title of the paper"


def is_single(licence: str) -> bool:
    """Whether an SPDX expression is one licence by its name, which is all that CFF and Zenodo take."""
    return " " not in licence and not licence.startswith("LicenseRef-")


def _cff_author(author: Author) -> dict[str, str]:
    row = {"family-names": author.family, "given-names": author.given}
    row |= {"orcid": f"https://orcid.org/{author.orcid}"} if author.orcid else {}
    return row | ({"affiliation": author.affiliation} if author.affiliation else {})


def zenodo(lock: Lock, paper: Paper | None) -> bytes:
    """Metadata of a deposit (developers.zenodo.org, "Deposit metadata")."""
    described = f"Container image {lock.name} (lock {lock.digest}) with all that rebuilds and checks it; see README.md."
    data: dict[str, Any] = {
        "title": title_of(paper),
        "upload_type": "software",
        "description": f"{paper.abstract} {described}" if paper and paper.abstract else described,
        "creators": [_creator(author) for author in paper.authors] if paper else [{"name": f"{OPEN}: Family, Given"}],
        "version": lock.short_digest,
        "access_right": "open",
    }
    if paper:
        data |= {"license": paper.licence.lower()} if paper.licence and is_single(paper.licence) else {}
        data |= {"keywords": list(paper.keywords)} if paper.keywords else {}
        if paper.doi:
            data["related_identifiers"] = [{"identifier": paper.doi, "relation": "isSupplementTo", "scheme": "doi"}]
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()


def _creator(author: Author) -> dict[str, str]:
    row = {"name": f"{author.family}, {author.given}"}
    row |= {"affiliation": author.affiliation} if author.affiliation else {}
    return row | ({"orcid": author.orcid} if author.orcid else {})
