"""The artifact's files for machines are of their published forms, and say what is so."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from artifact_helpers import Small, make_small
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from sample_locks import cpu_lock, cuda_lock
from sample_report import report as sample_report
from uv import find_uv_bin

from envlock.artifact import citation, layout, packages
from envlock.artifact.pages import tex
from envlock.artifact.record import read_record
from envlock.errors import UsageError
from envlock.paper import Paper
from envlock.report import to_json

SCHEMAS = Path(__file__).parents[1] / "data" / "schemas"


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artifact")
    with pytest.MonkeyPatch.context() as patch:
        small: Small = make_small(folder, patch)
        report = sample_report()
        ours = report.image.model_copy(update={"image_digest": small.image.digest})
        (folder / "verify.json").write_text(to_json(report.model_copy(update={"image": ours})))
        small.pinned(folder / "a", reports=(folder / "verify.json",))
    return folder / "a"


def paper_of(artifact: Path) -> Paper:
    from envlock.spec import read_spec

    paper = read_spec(artifact / layout.SPEC).paper
    assert paper is not None
    return paper


# bill of materials


def bill(artifact: Path) -> Any:
    return json.loads((artifact / layout.SBOM).read_text())


def test_the_bill_of_materials_is_cyclonedx(artifact: Path) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str((artifact / layout.SBOM).read_text()) is None


def test_the_bill_lists_every_package_with_its_licence(artifact: Path) -> None:
    rows = {row["name"]: row for row in bill(artifact)["components"]}
    assert set(rows) == {"torch", "nvidia-nvtx-cu12", "base-files", "python3", "envlock-bundle"}
    assert rows["torch"]["licenses"] == [{"expression": "BSD-3-Clause"}]
    assert rows["nvidia-nvtx-cu12"]["licenses"] == [{"license": {"name": "NVIDIA Proprietary Software"}}]
    assert rows["base-files"]["licenses"] == [{"license": {"id": "MIT"}}, {"license": {"name": "GPL-2+"}}]
    assert rows["python3"]["licenses"] == rows["base-files"]["licenses"], "its documentation is base-files'"
    assert rows["base-files"]["purl"] == "pkg:deb/debian/base-files@1?arch=amd64&distro=bookworm"


def test_the_bill_tells_the_image(artifact: Path) -> None:
    record = json.loads((artifact / layout.IMAGE).read_text())
    top = bill(artifact)["metadata"]["component"]
    assert top["hashes"] == [{"alg": "SHA-256", "content": record["manifest_digest"].removeprefix("sha256:")}]
    assert bill(artifact)["serialNumber"].startswith("urn:uuid:")


def test_a_record_without_layers_is_none(artifact: Path) -> None:
    record = json.loads((artifact / layout.IMAGE).read_text())
    with pytest.raises(UsageError, match="not the record of an image"):
        read_record(json.dumps({**record, "layers": []}).encode(), layout.IMAGE)


# packages


def test_pylock_is_what_pep_751_says(artifact: Path) -> None:
    data = tomllib.loads((artifact / layout.PYLOCK).read_text())
    assert (data["lock-version"], data["created-by"], data["requires-python"]) == ("1.0", "envlock", ">=3.11,<3.12")
    for row in data["packages"]:
        (wheel,) = row["wheels"]
        assert (artifact / "packages" / wheel["path"]).resolve().stat().st_size == wheel["size"]
        assert wheel["hashes"].keys() == {"sha256"}
    pylock = pytest.importorskip("packaging.pylock", reason="packaging 26 reads PEP 751")
    pylock.Pylock.from_dict(data).validate()


def test_pip_installs_from_the_requirements(artifact: Path, tmp_path: Path) -> None:
    """The command that the file itself names, with the target's Python said and into a folder."""
    command = [
        find_uv_bin(),
        "pip",
        "install",
        "--offline",
        "--no-deps",
        "--no-index",
        "--find-links",
        "context/wheels",
        "--require-hashes",
    ]
    words = [*command, "-r", layout.REQUIREMENTS, "--target", str(tmp_path / "site"), "--no-cache", "--no-config"]
    done = subprocess.run(words, cwd=artifact, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "torch.py").is_file()


def test_requirements_name_pytorchs_index() -> None:
    assert "--extra-index-url https://download.pytorch.org/whl" in packages.requirements(cpu_lock()).decode()


def test_the_list_for_apt() -> None:
    rows = packages.apt_list(cuda_lock()).decode().splitlines()
    assert rows[0] == "# Debian bookworm, as its archive was at 20261128T201100Z"
    assert [row.split()[0] for row in rows[1:]] == ["base-files=1", "git=1", "libgl1=1", "python3=1"]


# citation and deposit


@pytest.mark.parametrize("with_paper", [True, False])
def test_the_citation_is_cff(artifact: Path, with_paper: bool) -> None:
    schema = json.loads((SCHEMAS / "cff-1.2.0.json").read_text())
    data = yaml.safe_load(citation.citation(cpu_lock(), paper_of(artifact) if with_paper else None))
    jsonschema.Draft7Validator(schema, format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER).validate(data)
    if with_paper:
        assert (data["license"], data["doi"], data["preferred-citation"]["doi"]) == ("Apache-2.0", "10.5281/zenodo.1", "10.1000/xyz")
        assert data["authors"][0]["orcid"] == "https://orcid.org/0000-0002-1825-0097"
    else:
        assert citation.OPEN in data["title"]


def test_the_deposit_has_what_zenodo_asks_for(artifact: Path) -> None:
    """developers.zenodo.org, "Deposit metadata": the fields that are required, and the form of those that are given."""
    data = json.loads((artifact / layout.ZENODO).read_text())
    assert data["upload_type"] == "software"
    assert data["access_right"] == "open"
    assert data["license"] == "apache-2.0"
    assert data["title"]
    assert data["description"]
    assert data["creators"] == [
        {"name": "Lovelace, Ada", "affiliation": "Analytical Engines", "orcid": "0000-0002-1825-0097"},
        {"name": "Müller, Łukasz"},
    ]
    assert data["related_identifiers"] == [{"identifier": "10.1000/xyz", "relation": "isSupplementTo", "scheme": "doi"}]


@pytest.mark.parametrize("licence", ["MIT OR Apache-2.0", "LicenseRef-mine"])
def test_a_licence_that_is_no_single_one_is_left_out(artifact: Path, licence: str) -> None:
    paper = paper_of(artifact).model_copy(update={"licence": licence})
    assert "license" not in yaml.safe_load(citation.citation(cpu_lock(), paper))
    assert "license" not in json.loads(citation.zenodo(cpu_lock(), paper))


# RO-Crate


def graph(artifact: Path) -> dict[str, Any]:
    rows = json.loads((artifact / layout.CRATE).read_text())["@graph"]
    assert len({row["@id"] for row in rows}) == len(rows), "an entity is described once (RO-Crate 1.1, 'Overview')"
    return {row["@id"]: row for row in rows}


def test_the_crate_describes_itself_and_its_root(artifact: Path) -> None:
    """RO-Crate 1.1, "Metadata of the RO-Crate": the descriptor, and the four required properties of the root."""
    rows = graph(artifact)
    descriptor = rows[layout.CRATE]
    assert (descriptor["@type"], descriptor["about"]) == ("CreativeWork", {"@id": "./"})
    assert descriptor["conformsTo"] == {"@id": "https://w3id.org/ro/crate/1.1"}
    root = rows["./"]
    assert root["@type"] == "Dataset"
    assert all(root[name] for name in ("name", "description", "datePublished", "license"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", root["datePublished"])


def test_the_crate_lists_every_file_and_points_nowhere_else(artifact: Path) -> None:
    rows = graph(artifact)
    files = {row["@id"] for row in rows.values() if row["@type"] == "File"}
    there = {path.relative_to(artifact).as_posix() for path in artifact.rglob("*") if path.is_file()}
    assert files == there - {layout.CRATE, layout.SUMS, layout.SEAL}
    assert {part["@id"] for part in rows["./"]["hasPart"]} == files
    external = re.compile(r"https?://")
    for row in rows.values():
        for value in row.values():
            for link in value if isinstance(value, list) else [value]:
                if isinstance(link, dict) and not external.match(link["@id"]):
                    assert link["@id"] in rows, link


def test_the_crate_names_the_image_as_run_crate_does(artifact: Path) -> None:
    image = graph(artifact)["#image"]
    assert image["@type"] == "ContainerImage"
    assert image["additionalType"] == {"@id": "https://w3id.org/ro/terms/workflow-run#DockerImage"}
    assert re.fullmatch(r"[0-9a-f]{64}", image["sha256"])


# pages


def test_every_local_name_in_the_pages_is_a_file(artifact: Path) -> None:
    for page in (layout.README, layout.CHECKLIST):
        text = (artifact / page).read_text()
        for name in re.findall(r"\b(?:context|inputs|image|packages|appendix|hpc|reports|spec)/[\w./*-]*", text):
            assert list(artifact.glob(name.rstrip("/.")))[:1], (page, name)


def test_open_points_are_marked_and_known_ones_filled(artifact: Path) -> None:
    text = (artifact / layout.APPENDIX_MD).read_text()
    assert "driver 550.54.15" in text
    assert "doi:10.5281/zenodo.1" in text
    assert text.count(citation.OPEN) > 5
    assert "- [x] It has a licence: Apache-2.0" in (artifact / layout.CHECKLIST).read_text()


def test_nvidias_terms_are_flagged(artifact: Path) -> None:
    text = (artifact / layout.LICENCES).read_text()
    assert "## NVIDIA's terms" in text
    assert "| nvidia-nvtx-cu12 | 1 | NVIDIA Proprietary Software |" in text


@pytest.mark.parametrize("script", [layout.SLURM])
def test_scripts_parse(artifact: Path, script: str) -> None:
    subprocess.run(["sh", "-n", artifact / script], check=True)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("50% & more_less", r"50\% \& more\_less"),
        ("Łukasz Müller", r"\L{}ukasz M\"{u}ller"),
        ("a\\b{c}$d^e~f#g", r"a\textbackslash{}b\{c\}\$d\textasciicircum{}e\textasciitilde{}f\#g"),
        ("数", "?"),
        ("a" * 40, "a" * 16 + r"\allowbreak{}" + "a" * 16 + r"\allowbreak{}" + "a" * 8),
    ],
)
def test_text_for_latex(text: str, made: str) -> None:
    assert tex(text) == made


def test_the_appendix_compiles(artifact: Path, tmp_path: Path) -> None:
    if shutil.which("pdflatex") is None:
        pytest.skip("needs pdflatex (Debian: texlive-latex-base)")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", f"-output-directory={tmp_path}", artifact / layout.APPENDIX_TEX]
    own = {**os.environ, "HOME": str(tmp_path)}  # where LaTeX keeps the fonts that it makes
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=tmp_path, env=own, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "appendix.pdf").stat().st_size > 10_000
    assert (artifact / layout.APPENDIX_TEX).read_bytes().isascii()
