"""The settings of uv and pip, as one value."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from packaging.requirements import Requirement

from envlock.errors import ToolMissing, UsageError
from envlock.resolve.indexes import Indexes, read_indexes
from envlock.resolve.uv import SUPPORTED, Uv

A, B, C = "https://a.example/simple", "https://b.example/simple", "https://c.example/simple"


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Indexes]:
    """Read the settings of a user who has these variables, and this uv.toml in the folder where they stand."""
    here = tmp_path / "project"
    here.mkdir()
    monkeypatch.chdir(here)

    def reading(config: str = "", **variables: str) -> Indexes:
        (here / "uv.toml").write_text(config)
        base = {"HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"], "PIP_CONFIG_FILE": os.devnull, "UV_NO_SYSTEM_CONFIG": "1"}
        return read_indexes(Uv.find(), base | {"XDG_CONFIG_DIRS": str(tmp_path / "none")} | variables)

    return reading


def test_without_settings_there_is_the_default_index_alone(read: Callable[..., Indexes]) -> None:
    found = read()
    assert found.default is not None
    assert urlsplit(found.default).scheme == "https"
    assert (found.named, found.unnamed, found.find_links, found.options) == ({}, (), (), ())
    assert "UV_INDEX_STRATEGY" not in found.environment


@pytest.mark.parametrize("project", ["tool = 1\n", "[tool]\nuv = 1\n"])
def test_a_project_file_that_uv_only_warns_of(read: Callable[..., Indexes], project: str) -> None:
    Path("pyproject.toml").write_text(project)
    assert read(UV_DEFAULT_INDEX=A).default == A


def test_pip_s_settings_count_where_uv_has_none(read: Callable[..., Indexes]) -> None:
    found = read(PIP_INDEX_URL=A, PIP_EXTRA_INDEX_URL=f"{B} {C}", PIP_TRUSTED_HOST="b.example", PIP_CERT="/ca.pem", PIP_PROXY="http://p:1")
    assert (found.default, found.unnamed) == (A, (B, C))
    expected = {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_INSECURE_HOST": "b.example",
        "SSL_CERT_FILE": "/ca.pem",
        "HTTPS_PROXY": "http://p:1",
    }
    assert expected.items() <= found.environment.items()


@pytest.mark.parametrize(
    ("config", "variables"),
    [
        (f'[[index]]\nurl = "{B}"\ndefault = true\n', {}),
        (f'index-url = "{B}"\n', {}),
        (f'[pip]\nindex-url = "{B}"\n', {}),
        ("", {"UV_DEFAULT_INDEX": B}),
        ("", {"UV_INDEX_URL": B}),
    ],
)
def test_uv_s_own_default_index_wins_over_pip_s(read: Callable[..., Indexes], config: str, variables: dict[str, str]) -> None:
    assert read(config, PIP_INDEX_URL=A, **variables).default == B


def test_indexes_have_the_names_that_uv_gives_them(read: Callable[..., Indexes]) -> None:
    config = f'[[index]]\nname = "company"\nurl = "{A}/"\n[[index]]\nname = "default"\nurl = "{B}"\n'
    found = read(config, UV_INDEX=f"other={C}", PIP_EXTRA_INDEX_URL=B)
    assert dict(found.named) == {"other": C, "company": f"{A}/"}
    assert set(found.unnamed) == {B}  # a reserved name is no name


def test_credentials_of_a_named_index_come_from_its_variables(read: Callable[..., Indexes]) -> None:
    found = read(f'[[index]]\nname = "my-company"\nurl = "{A}"\n', UV_INDEX_MY_COMPANY_USERNAME="me", UV_INDEX_MY_COMPANY_PASSWORD="p@ss")
    assert found.named["my-company"] == A.replace("https://", "https://me:p%40ss@")
    assert "p%40ss" not in repr(found)
    assert "p@ss" not in repr(found)


def test_find_links_of_pip_and_uv_are_joined_and_absent_ones_left_out(read: Callable[..., Indexes], tmp_path: Path) -> None:
    for name in ("pip", "uv", "variable"):
        (tmp_path / name).mkdir()
    found = read(
        f'find-links = ["{tmp_path}/uv"]\n',
        PIP_FIND_LINKS=f"{(tmp_path / 'pip').as_uri()} {tmp_path}/absent https://wheels.example/page.html",
        UV_FIND_LINKS=str(tmp_path / "variable"),
    )
    assert set(found.find_links) == {*(str(tmp_path / n) for n in ("pip", "uv", "variable")), "https://wheels.example/page.html"}
    assert set(found.folders) == {tmp_path / "pip", tmp_path / "uv", tmp_path / "variable"}


def test_extra_indexes_that_are_absent_folders_are_left_out(read: Callable[..., Indexes], tmp_path: Path) -> None:
    (tmp_path / "simple").mkdir()
    present = (tmp_path / "simple").as_uri()
    assert read(PIP_EXTRA_INDEX_URL=f"{tmp_path.as_uri()}/absent {present}").unnamed == (present,)


def test_no_index_leaves_no_default(read: Callable[..., Indexes]) -> None:
    assert read(PIP_NO_INDEX="1").default is None
    assert read("no-index = true\n").default is None


def test_uv_s_strategy_is_left_to_uv(read: Callable[..., Indexes]) -> None:
    assert "UV_INDEX_STRATEGY" not in read('index-strategy = "first-index"\n', PIP_EXTRA_INDEX_URL=B).environment


def test_a_damaged_uv_configuration_is_an_error_of_ours(read: Callable[..., Indexes]) -> None:
    with pytest.raises(UsageError) as caught:
        read("find-links = 3\n")
    assert "find-links" in caught.value.why


def test_an_uv_of_an_unknown_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "uv"
    fake.write_text("#!/bin/sh\necho uv 1.0.0\n")
    fake.chmod(0o755)
    monkeypatch.setattr("uv.find_uv_bin", lambda: str(fake))
    with pytest.raises(ToolMissing, match="not one that envlock works with"):
        Uv.find()
    fake.unlink()
    with pytest.raises(ToolMissing, match="not installed"):
        Uv.find()


def test_the_supported_uv_is_the_one_that_the_package_depends_on() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    (dependency,) = (r for text in project["project"]["dependencies"] if (r := Requirement(text)).name == "uv")
    assert dependency.specifier == SUPPORTED
