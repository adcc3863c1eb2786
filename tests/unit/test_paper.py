"""The paper that an image belongs to: what is taken, what is refused, and that it is no input of the image."""

from __future__ import annotations

import pytest

from envlock.errors import Problems
from envlock.paper import Paper
from envlock.spec import Spec, parse_spec

PLAIN = "name: x\nstack: {torch: 2.5.1}\n"


def spec(paper: str) -> Spec:
    return parse_spec(f"{PLAIN}paper:\n  title: On Bits\n  authors: [{{given: Ada, family: Lovelace}}]\n{paper}".encode(), "s.yaml")


def paper(text: str) -> Paper:
    found = spec(text).paper
    assert found is not None
    return found


def test_it_is_no_input_of_the_image() -> None:
    assert spec("  year: 2026\n").digest == spec("  year: 2027\n").digest == parse_spec(PLAIN.encode(), "s.yaml").digest


@pytest.mark.parametrize("written", ["10.1000/xyz", "doi:10.1000/xyz", "https://doi.org/10.1000/xyz"])
def test_a_doi_in_any_form(written: str) -> None:
    assert paper(f"  doi: {written}\n").doi == "10.1000/xyz"


def test_a_licence_gets_its_usual_letters() -> None:
    assert paper("  licence: apache-2.0 or mit\n").licence == "Apache-2.0 OR MIT"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("  doi: xyz\n", "is not a DOI"),
        ("  licence: Apache\n", "is not an SPDX licence expression"),
        ("  license: MIT\n", "`license` is not a key of a spec"),
        ("  year: '26'\n", "is not a year"),
    ],
)
def test_what_is_refused(line: str, says: str) -> None:
    with pytest.raises(Problems) as caught:
        spec(line)
    assert [finding.where.partition(":")[0] for finding in caught.value.findings] == ["s.yaml"]
    assert says in caught.value.findings[0].what


def test_an_orcid_whose_checksum_is_wrong() -> None:
    def authors(orcid: str) -> bytes:
        return f"{PLAIN}paper: {{title: t, authors: [{{given: A, family: B, orcid: {orcid}}}]}}\n".encode()

    for right in ("0000-0002-1825-0097", "https://orcid.org/0000-0002-1694-233X"):
        assert parse_spec(authors(right), "s.yaml").paper
    with pytest.raises(Problems, match="a digit is wrong"):
        parse_spec(authors("0000-0002-1825-0098"), "s.yaml")


def test_a_paper_without_authors() -> None:
    with pytest.raises(Problems, match="at least one author"):
        parse_spec(f"{PLAIN}paper: {{title: t, authors: []}}\n".encode(), "s.yaml")
