"""The paper that an image belongs to: who wrote it, under which licence its artifact goes out, where it was published.

Part of a spec, and no input of the image: it is left out of the spec's digest, so that a title may change after the lock was made.
`envlock pin` reads it from the spec file and fills the citation, the deposit's metadata and the appendix with it.
"""

from __future__ import annotations

import re
from typing import Annotated

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from envlock.texts import fault

_DOI = re.compile(r"10\.\d{4,9}/\S+")
_ORCID = re.compile(r"\d{4}-\d{4}-\d{4}-\d{3}[\dX]")


def _doi(value: str) -> str:
    plain = re.sub(r"^(https?://(dx\.)?doi\.org/|doi:)", "", value, flags=re.IGNORECASE)
    if not _DOI.fullmatch(plain):
        raise fault("spec-value", f"{value!r} is not a DOI", "write it as 10.1000/xyz123")
    return plain


def _orcid(value: str) -> str:
    """An ORCID iD without its address; its last character is a checksum (ISO 7064, MOD 11-2)."""
    plain = value.removeprefix("https://orcid.org/").removeprefix("http://orcid.org/")
    hint = "write it as 0000-0002-1825-0097; its last character is a checksum"
    if not _ORCID.fullmatch(plain):
        raise fault("spec-value", f"{value!r} is not an ORCID iD", hint)
    total = 0
    for digit in plain.replace("-", "")[:-1]:
        total = (total + int(digit)) * 2
    check = (12 - total % 11) % 11
    if plain[-1] != ("X" if check == 10 else str(check)):
        raise fault("spec-value", f"{value!r} is not an ORCID iD: a digit is wrong", hint)
    return plain


def _licence(value: str) -> str:
    try:
        return str(canonicalize_license_expression(value))
    except InvalidLicenseExpression:
        raise fault(
            "spec-value", f"{value!r} is not an SPDX licence expression", "write it as MIT or Apache-2.0; the list is at spdx.org/licenses"
        ) from None


def _year(value: str) -> str:
    if not re.fullmatch(r"(19|20)\d{2}", value):
        raise fault("spec-value", f"{value!r} is not a year", "write it as 2026")
    return value


Line = Annotated[str, Field(min_length=1, max_length=2000, pattern=r"^[^\x00-\x1f]+$")]
Doi = Annotated[str, AfterValidator(_doi)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Author(_Part):
    """One author; given and family name apart, since no rule tells them apart in every language."""

    given: Line = Field(description="given names")
    family: Line = Field(description="family name")
    orcid: Annotated[str, AfterValidator(_orcid)] | None = Field(default=None, description="ORCID iD")
    affiliation: Line | None = Field(default=None, description="university, laboratory or company")


def _some(authors: tuple[Author, ...]) -> tuple[Author, ...]:
    if not authors:
        raise fault("spec-value", "a paper has at least one author", "write `authors: [{given: Ada, family: Lovelace}]`")
    return authors


class Paper(_Part):
    """What a citation and a deposit need; whatever is left out is marked as open in the artifact."""

    title: Line = Field(description="title of the paper")
    authors: Annotated[tuple[Author, ...], AfterValidator(_some)] = Field(description="authors, in the paper's order")
    licence: Annotated[str, AfterValidator(_licence)] | None = Field(
        default=None, description="SPDX expression for what the authors made in the artifact"
    )
    doi: Doi | None = Field(default=None, description="the paper's DOI")
    artifact_doi: Doi | None = Field(default=None, description="the DOI that an archive reserved for this artifact")
    venue: Line | None = Field(default=None, description="conference or journal")
    year: Annotated[str, AfterValidator(_year)] | None = Field(default=None, description="year of publication")
    abstract: Line | None = Field(default=None, description="one paragraph, for the deposit")
    keywords: tuple[Line, ...] = Field(default=(), description="keywords, for the deposit")
