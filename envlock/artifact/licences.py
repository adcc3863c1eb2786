"""Licences: what a package says of its own, in the forms of Python's metadata and of Debian's copyright files. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.parser import HeaderParser

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.utils import canonicalize_name

_LONGEST_NAME = 100
_MACHINE_READABLE = re.compile(r"^Format:\s*\S*copyright-format", re.IGNORECASE | re.MULTILINE)
_COMMON = re.compile(r"/usr/share/common-licenses/([A-Za-z0-9.+-]+)")
# Debian's names (debian-policy, "Machine-readable debian/copyright") where SPDX has another for the same text.
_SPDX_OF_DEBIAN = {"Expat": "MIT"}


@dataclass(frozen=True, slots=True)
class Licence:
    """What a package says: an SPDX expression where it is one, else names as they stand there; neither where it says nothing.

    `where` tells what it was read from.
    """

    expression: str = ""
    names: tuple[str, ...] = ()
    where: str = ""

    @property
    def text(self) -> str:
        """For people."""
        return self.expression or ", ".join(self.names) or "not stated"

    @property
    def is_nvidia(self) -> bool:
        """Whether NVIDIA's own terms apply."""
        return "nvidia" in self.text.lower()


@dataclass(frozen=True, slots=True)
class Distribution:
    """A Python distribution as its METADATA has it."""

    name: str
    version: str
    licence: Licence


def of_metadata(text: str) -> Distribution:
    """Name, version and licence out of core metadata (packaging.python.org, "Core metadata specifications", 2.4).

    `License-Expression` counts first, then the trove classifiers, then a `License` field that is short enough to be a name.
    """
    fields = HeaderParser().parsestr(text)
    name, version = canonicalize_name(str(fields.get("Name", ""))), str(fields.get("Version", ""))
    said = str(fields.get("License", "")).strip()
    classified = [str(row).rpartition(" :: ")[2] for row in fields.get_all("Classifier", []) if str(row).startswith("License ::")]
    for candidate in (str(fields.get("License-Expression", "")), said):
        if expression := spdx(candidate):
            return Distribution(name, version, Licence(expression, (), "METADATA"))
    names = [row for row in classified if row not in ("OSI Approved", "Other/Proprietary License")]
    short = said if 0 < len(said) <= _LONGEST_NAME and "\n" not in said and said.lower() != "unknown" else ""
    found = tuple(dict.fromkeys(names or ([short] if short else classified)))
    return Distribution(name, version, Licence("", found, "METADATA"))


def of_copyright(text: str) -> Licence:
    """The licences that a Debian copyright file names (debian-policy, chapter 12.5).

    A machine-readable file has a `License` field for each group of files; of another, only the common licences that it points to
    can be told.
    """
    if not _MACHINE_READABLE.search(text[:2000]):
        return Licence("", tuple(sorted({name.rstrip(".") for name in _COMMON.findall(text)})), "copyright")
    names = re.findall(r"^License:[ \t]*(\S[^\n]*)$", text, re.MULTILINE)
    return Licence("", tuple(sorted({name.strip() for name in names})), "copyright")


def spdx(text: str) -> str:
    """A licence expression in SPDX's own letters; empty where it is none."""
    text = _SPDX_OF_DEBIAN.get(text, text)
    if not text or len(text) > _LONGEST_NAME:
        return ""
    try:
        return str(canonicalize_license_expression(text))
    except InvalidLicenseExpression:
        return ""
