"""pip's settings are read as pip documents them."""

from __future__ import annotations

from pathlib import Path

import pytest

from envlock.pipconfig import PipSettings, read_pip_settings


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def settings(home: Path, **environ: str) -> PipSettings:
    # Folders of the system are kept out of the test by naming others.
    return read_pip_settings({"HOME": str(home), "XDG_CONFIG_DIRS": str(home / "xdg"), **environ}, home / "venv")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_several_values_stand_on_lines_or_behind_each_other(home: Path) -> None:
    write(home / ".config/pip/pip.conf", "[global]\nextra-index-url = https://a/simple https://b/simple\nfind_links =\n  /w1\n  ~/w2\n")
    found = settings(home, PIP_CONFIG_FILE="")
    assert found.extra_index_urls == ("https://a/simple", "https://b/simple")
    assert found.find_links[0] == "/w1"
    assert not found.find_links[1].startswith("~")


def test_later_files_and_variables_win(home: Path) -> None:
    write(home / "xdg/pip/pip.conf", "[global]\nindex-url = https://everybody/simple\ntimeout = 7\n")
    write(home / ".pip/pip.conf", "[global]\nindex-url = https://legacy/simple\n")
    write(home / ".config/pip/pip.conf", "[install]\nindex-url = https://install/simple\n[global]\nindex-url = https://user/simple\n")
    assert settings(home).index_url == "https://install/simple"
    write(home / "venv/pip.conf", "[global]\nindex-url = https://venv/simple\n")
    assert settings(home).index_url == "https://venv/simple"
    assert settings(home).timeout == 7
    assert settings(home, PIP_INDEX_URL="https://variable/simple").index_url == "https://variable/simple"


def test_a_named_file_replaces_the_user_s_and_dev_null_all(home: Path) -> None:
    write(home / ".config/pip/pip.conf", "[global]\ntrusted-host = user\nno-index = true\n")
    write(home / "named.conf", "[global]\nindex-url = https://named/simple\n")
    found = settings(home, PIP_CONFIG_FILE=str(home / "named.conf"))
    assert (found.index_url, found.trusted_hosts) == ("https://named/simple", ())
    assert settings(home, PIP_CONFIG_FILE="/dev/null") == PipSettings()
    assert settings(home).no_index


def test_what_would_change_the_choice_is_left_out_and_named(home: Path) -> None:
    found = settings(home, PIP_CONFIG_FILE="/dev/null", PIP_CONSTRAINT="c.txt", PIP_PRE="1", PIP_CERT="/ca.pem")
    assert found == PipSettings(cert="/ca.pem", left_out=("constraint", "pre"))


def test_a_damaged_file_counts_as_absent(home: Path) -> None:
    before = settings(home)
    write(home / ".config/pip/pip.conf", "index-url = no section\n")
    assert settings(home) == before
