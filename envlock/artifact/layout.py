"""Where things stand in an artifact, and what can be left out of one."""

from __future__ import annotations

from typing import Literal

from envlock.lock import Lock

Vendor = Literal["none", "wheels", "all"]
"""What of the inputs lies in the artifact: nothing, the wheels, or all that a rebuild without network needs."""

Compression = Literal["none", "zstd"]

LOCK = "envlock.lock.yaml"
SPEC_FOLDER = "spec"
SPEC = "spec/envlock.yaml"
IMAGE_FOLDER = "image"
IMAGE = "IMAGE.json"
CONTEXT = "context"
DEBS = "inputs/debs"
BASE_BLOBS = "inputs/base"
BUNDLE = "inputs/bundle.tar"
FETCH = "fetch.json"
SBOM = "sbom.cdx.json"
LICENCES = "LICENSES.md"
PYLOCK = "packages/pylock.toml"
REQUIREMENTS = "packages/requirements.txt"
APT = "packages/debian.txt"
REPORTS = "reports"
REFERENCES = "references"
REGISTRY = "REGISTRY.json"
CRATE = "ro-crate-metadata.json"
CITATION = "CITATION.cff"
ZENODO = ".zenodo.json"
APPENDIX_MD = "appendix/appendix.md"
APPENDIX_TEX = "appendix/appendix.tex"
APPTAINER = "hpc/apptainer.def"
SLURM = "hpc/slurm.sh"
README = "README.md"
CHECKLIST = "CHECKLIST.md"
SUMS = "SHA256SUMS"
SEAL = "SHA256SUMS.sha256"

EDITED = (APPENDIX_MD, APPENDIX_TEX, CITATION, ZENODO, CHECKLIST)
"""What authors fill in by hand; once they did, it is not written over."""


def image_tag(lock: Lock) -> str:
    """The name under which the archive's image is loaded: by its lock, never `latest`."""
    return f"{lock.name}:{lock.short_digest}"


def archive_name(lock: Lock, compression: Compression) -> str:
    """The image's file; its parts have a number after it."""
    return f"{IMAGE_FOLDER}/{lock.name}-{lock.short_digest}.tar{'.zst' if compression == 'zstd' else ''}"
