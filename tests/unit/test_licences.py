"""What packages say of their licences, in all the ways in which they say it."""

from __future__ import annotations

import pytest

from envlock.artifact.licences import of_copyright, of_metadata


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ("License-Expression: mit AND apache-2.0", "MIT AND Apache-2.0"),
        ("License: BSD-3-Clause\nClassifier: License :: OSI Approved :: BSD License", "BSD-3-Clause"),
        ("License: BSD\nClassifier: License :: OSI Approved :: BSD License", "BSD License"),
        ("Classifier: License :: Other/Proprietary License\nLicense: NVIDIA Proprietary Software", "NVIDIA Proprietary Software"),
        ("Classifier: License :: Other/Proprietary License", "Other/Proprietary License"),
        ("License: UNKNOWN", "not stated"),
        ("License: Permission is hereby granted,\n        free of charge, to any person", "not stated"),
        ("", "not stated"),
    ],
)
def test_python_metadata(fields: str, says: str) -> None:
    found = of_metadata(f"Metadata-Version: 2.4\nName: Some_Name\nVersion: 1.2\n{fields}\n\nA description.\n")
    assert (found.name, found.version, found.licence.text) == ("some-name", "1.2", says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\nFiles: *\nLicense: GPL-2+\n text\n", "GPL-2+"),
        ("Format: http://x/copyright-format/1.0\nLicense: B or C\n\nLicense: A\n more\n\nLicense: A\n", "A, B or C"),
        ("It is under the GPL; see /usr/share/common-licenses/GPL-3 and\n/usr/share/common-licenses/LGPL-2.1.\n", "GPL-3, LGPL-2.1"),
        ("Public domain.\n", "not stated"),
    ],
)
def test_debian_copyright_files(text: str, says: str) -> None:
    assert of_copyright(text).text == says


def test_nvidias_are_known() -> None:
    assert of_metadata("Name: x\nVersion: 1\nLicense: NVIDIA Proprietary Software\n").licence.is_nvidia
    assert of_metadata("Name: x\nVersion: 1\nLicense-Expression: LicenseRef-NVIDIA-Proprietary\n").licence.is_nvidia
    assert not of_metadata("Name: x\nVersion: 1\nLicense: MIT\n").licence.is_nvidia
