"""Which wheel suits which target."""

from __future__ import annotations

import pytest

from envlock.resolve.target import Target

BOOKWORM = Target("3.11", "linux/amd64", (2, 36))


@pytest.mark.parametrize(
    ("files", "best"),
    [
        (["p-1-cp311-cp311-manylinux_2_17_x86_64.whl", "p-1-cp311-cp311-manylinux_2_28_x86_64.whl"], 1),
        (["p-1-cp311-cp311-manylinux2014_x86_64.whl", "p-1-cp311-abi3-manylinux_2_28_x86_64.whl"], 0),
        (["p-1-cp38-abi3-manylinux1_x86_64.whl", "p-1-py3-none-any.whl"], 0),
        (["p-1-py3-none-any.whl", "p-1-1-py3-none-any.whl"], 1),
        (["p-1-cp311-cp311-linux_x86_64.whl"], 0),
        (["p-1-cp311-cp311-manylinux_2_39_x86_64.whl", "p-1-py2.py3-none-any.whl"], 1),
        (["p-1-cp312-cp312-manylinux_2_28_x86_64.whl", "p-1-cp312-abi3-manylinux_2_28_x86_64.whl"], None),
        (["p-1-cp311-cp311-musllinux_1_2_x86_64.whl", "p-1-cp311-cp311-win_amd64.whl", "p-1.tar.gz"], None),
        (["p-1-cp311-cp311t-manylinux_2_28_x86_64.whl", "p-1-pp311-pypy311_pp73-manylinux_2_28_x86_64.whl"], None),
    ],
)
def test_best_wheel(files: list[str], best: int | None) -> None:
    for listed in (files, files[::-1]):
        assert BOOKWORM.best(listed) == (None if best is None else files[best])


def test_other_targets() -> None:
    arm = Target("3.12", "linux/arm64", (2, 39))
    assert arm.best(["p-1-cp312-cp312-manylinux_2_28_x86_64.whl", "p-1-cp312-cp312-manylinux2014_aarch64.whl"]) is not None
    assert arm.best(["p-1-cp312-cp312-manylinux1_x86_64.whl", "p-1-cp312-cp312-manylinux2010_aarch64.whl"]) is None
    assert Target("3.7", "linux/amd64", (2, 28)).best(["p-1-cp37-cp37m-manylinux1_x86_64.whl"]) is not None


@pytest.mark.parametrize(("glibc", "platform"), [(17, "2_17"), (27, "2_17"), (28, "2_28"), (30, "2_28"), (36, "2_36"), (41, "2_40")])
def test_uv_is_told_the_newest_platform_that_the_target_fulfils(glibc: int, platform: str) -> None:
    assert Target("3.11", "linux/amd64", (2, glibc)).uv_platform == f"x86_64-manylinux_{platform}"
