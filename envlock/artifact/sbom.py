"""The software bill of materials, CycloneDX 1.6 as JSON, a function of lock and image alone: its serial number and time too.

Written as plain data: the form is small, and the library for it would add four packages to every installation. A test holds it
against the published schema.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from packaging.utils import canonicalize_name

from envlock.artifact.licences import Licence, spdx
from envlock.artifact.scan import Scan
from envlock.image import Image
from envlock.lock import Deb, DebianBase, Lock, Wheel

NONE = Licence()


def sbom(lock: Lock, image: Image, scan: Scan) -> bytes:
    """The document's bytes."""
    parts = [_wheel(wheel, scan) for wheel in lock.wheels] + [_deb(deb, lock, scan) for deb in lock.debs]
    parts.append(_bundle(lock))
    if not isinstance(lock.base, DebianBase):
        parts.append(_base(lock.base.reference, lock.base.manifest_digest))
    parts.sort(key=lambda part: str(part["bom-ref"]))
    top = _image(lock, image)
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, image.manifest_digest)}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(lock.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "lifecycles": [{"phase": "build"}],
            "tools": {"components": [{"type": "application", "name": "envlock", "version": lock.shipped.envlock}]},
            "component": top,
        },
        "components": parts,
        "dependencies": [
            {"ref": top["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts]},
            *({"ref": part["bom-ref"]} for part in parts),
        ],
    }
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()


def _image(lock: Lock, image: Image) -> dict[str, Any]:
    purl = f"pkg:oci/{quote(lock.name)}@{quote(image.manifest_digest, safe='')}?tag={lock.short_digest}"
    facts = {
        "envlock:lock": lock.digest,
        "envlock:image": image.digest,
        "envlock:manifest": image.manifest_digest,
        "envlock:platform": lock.stack.platform,
    }
    return {
        "type": "container",
        "bom-ref": purl,
        "name": lock.name,
        "version": lock.short_digest,
        "hashes": [_hash(image.manifest_digest.removeprefix("sha256:"))],
        "purl": purl,
        "properties": [{"name": name, "value": value} for name, value in facts.items()],
    }


def _wheel(wheel: Wheel, scan: Scan) -> dict[str, Any]:
    purl = f"pkg:pypi/{quote(wheel.name)}@{quote(wheel.version, safe='')}?file_name={quote(wheel.file, safe='')}"
    return _component(purl, wheel.name, wheel.version, wheel.sha256, scan.python.get(canonicalize_name(wheel.name), NONE))


def _deb(deb: Deb, lock: Lock, scan: Scan) -> dict[str, Any]:
    """Package URLs of type deb: github.com/package-url/purl-spec, `types-doc/deb-definition.md`."""
    distribution = _distribution(lock)
    of = f"&distro={quote(distribution)}" if distribution else ""
    vendor = "debian" if isinstance(lock.base, DebianBase) else lock.base.facts.get("ID", "debian")
    purl = f"pkg:deb/{quote(vendor)}/{quote(deb.name)}@{quote(deb.version, safe='~')}?arch={deb.architecture}{of}"
    return _component(purl, deb.name, deb.version, deb.sha256, scan.debian.get(deb.name, NONE))


def _distribution(lock: Lock) -> str:
    return lock.base.suite if isinstance(lock.base, DebianBase) else lock.base.facts.get("VERSION_CODENAME", "")


def _bundle(lock: Lock) -> dict[str, Any]:
    purl = f"pkg:generic/envlock-bundle@{quote(lock.shipped.envlock)}?checksum=sha256:{lock.shipped.sha256}"
    return _component(purl, "envlock-bundle", lock.shipped.envlock, lock.shipped.sha256, Licence("Apache-2.0"))


def _base(reference: str, digest: str) -> dict[str, Any]:
    purl = f"pkg:oci/{quote(reference.rpartition('/')[2].partition(':')[0])}@{quote(digest, safe='')}"
    return {"type": "container", "bom-ref": purl, "name": reference, "purl": purl, "hashes": [_hash(digest.removeprefix("sha256:"))]}


def _component(purl: str, name: str, version: str, sha256: str, licence: Licence) -> dict[str, Any]:
    row: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name, "version": version, "hashes": [_hash(sha256)]}
    if stated := _licences(licence):
        row["licenses"] = stated
    return {**row, "purl": purl}


def _licences(licence: Licence) -> list[Mapping[str, Any]]:
    if licence.expression:
        return [{"expression": licence.expression}]
    known = {name: spdx(name) for name in licence.names}
    return [{"license": {"id": known[name]} if _is_plain(known[name]) else {"name": name}} for name in licence.names]


def _is_plain(expression: str) -> bool:
    """Whether it is one of SPDX's own identifiers, and no expression of several or a reference."""
    return bool(expression) and " " not in expression and not expression.startswith("LicenseRef-") and not expression.endswith("+")


def _hash(sha256: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": sha256}
