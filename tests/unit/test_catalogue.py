"""The catalogue: rows without a source are refused, names of GPUs are read as people write them, rules hold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from envlock.catalogue import drivers, gpus, load, parse
from envlock.catalogue.loader import DATA, TABLES
from envlock.catalogue.rows import numbers
from envlock.errors import Problems

FILES = {table: (DATA / f"{table}.json").read_bytes() for table in TABLES}


def with_row(table: str, change: dict[str, Any]) -> dict[str, bytes]:
    content = json.loads(FILES[table])
    row = {**content["rows"][0], **change}
    content["rows"][0] = {key: value for key, value in row.items() if value is not KeyError}
    return {**FILES, table: json.dumps(content).encode()}


@pytest.mark.parametrize("table", sorted(TABLES))
@pytest.mark.parametrize("field", ["source", "date", "how"])
def test_a_row_without_a_source_is_refused(table: str, field: str) -> None:
    for change in ({field: KeyError}, {field: " "}):
        with pytest.raises(Problems) as error:
            parse(with_row(table, change))
        assert (error.value.findings[0].id, error.value.findings[0].where) == ("catalogue-invalid", f"{table}.json row 1")


@pytest.mark.parametrize("change", [{"date": "29.11.2026"}, {"colour": "red"}, {"cuda": KeyError}])
def test_a_row_that_is_not_one_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Problems):
        parse(with_row("drivers", change))


def test_the_digest_is_of_the_content_alone() -> None:
    other_layout = {table: json.dumps(json.loads(raw), indent=3).encode() for table, raw in FILES.items()}
    assert parse(other_layout).digest == load().digest
    assert parse(with_row("drivers", {"driver": "1.2"})).digest != load().digest


def test_every_architecture_of_every_build_has_a_rule() -> None:
    ruled = {row.code for row in load().code}
    for build in load().builds:
        assert {a.partition("_")[2] for a in build.architectures} <= ruled, build


def test_every_cuda_of_every_build_has_a_driver() -> None:
    for build in load().builds:
        if build.cuda is not None:
            need = drivers.needs(build.cuda, load())
            assert need is not None
            assert need.exact, build


def test_no_build_stands_twice() -> None:
    keys = [(b.torch, b.platform, b.variant) for b in load().builds]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("a100", "8.0"),
        ("NVIDIA A100-SXM4-80GB", "8.0"),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "8.0"),
        ("NVIDIA H100 80GB HBM3", "9.0"),
        ("H100 PCIe", "9.0"),
        ("h100-nvl", "9.0"),
        ("NVIDIA GH200 480GB", "9.0"),
        ("B200", "10.0"),
        ("RTX 4090", "8.9"),
        ("rtx4090", "8.9"),
        ("GeForce RTX 4090", "8.9"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "8.9"),
        ("rtx_5090", "12.0"),
        ("A6000", "8.6"),
        ("NVIDIA RTX A6000", "8.6"),
        ("NVIDIA RTX 6000 Ada Generation", "8.9"),
        ("Quadro RTX 6000", "7.5"),
        ("Tesla V100-SXM2-32GB", "7.0"),
        ("tesla-t4", "7.5"),
        ("L40S", "8.9"),
        ("GTX 1080 Ti", "6.1"),
        ("TITAN RTX", "7.5"),
        ("Jetson AGX Orin", "8.7"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "12.0"),
        ("sm_90", "9.0"),
        ("SM120", "12.0"),
        ("sm_90a", "9.0"),
        ("8.6", "8.6"),
        ("compute_75", "7.5"),
    ],
)
def test_gpu_names(name: str, capability: str) -> None:
    gpu = gpus.find(name, load())
    assert gpu is not None
    assert gpu.capability == numbers(capability)


@pytest.mark.parametrize("name", ["h1000", "sm_99", "sm_9", "90", "", "rtx", "nvidia", "mi300x", "a100a"])
def test_not_a_gpu(name: str) -> None:
    assert gpus.find(name, load()) is None


@pytest.mark.parametrize(
    ("code", "device", "cuda", "runs"),
    [
        ("sm_86", "8.9", "12.4", True),
        ("sm_80", "8.6", "12.4", True),
        ("sm_86", "8.0", "12.4", False),
        ("sm_80", "9.0", "12.4", False),
        ("sm_100", "10.3", "13.0", True),
        ("sm_120", "12.1", "13.0", True),
        ("sm_80", "8.7", "13.0", False),
        ("sm_80", "8.7", "13.2", True),
        ("sm_90a", "9.0", "12.4", True),
        ("sm_90a", "9.1", "12.4", False),
        ("sm_37", "3.7", "11.7", True),
        ("sm_110", "11.0", "13.0", True),
    ],
)
def test_which_device_runs_which_code(code: str, device: str, cuda: str, runs: bool) -> None:
    assert gpus.runs_code(code, numbers(device), numbers(cuda), load()) is runs


@pytest.mark.parametrize(
    ("driver", "cuda", "reach"),
    [
        ("470.86", "12.4", "too-old"),
        ("525.60.13", "12.4", "minor-version"),
        ("550.54.14", "12.4", "full"),
        ("550", "12.4", "full"),
        ("550.54.14", "12.4.1", "minor-version"),
        ("580.65.06", "12.4", "full"),
        ("550.54.15", "13.0", "too-old"),
        ("580", "13.2", "minor-version"),
        ("470.86", "11.7", "minor-version"),
    ],
)
def test_which_driver_runs_which_cuda(driver: str, cuda: str, reach: str) -> None:
    need = drivers.needs(cuda, load())
    assert need is not None
    assert drivers.reach(driver, need.row) == reach


def test_a_patch_release_without_a_row_takes_the_nearest_earlier_one() -> None:
    need = drivers.needs("12.4.7", load())
    assert need is not None
    assert (need.row.cuda, need.exact) == ("12.4.1", False)


@pytest.mark.parametrize(("driver", "cuda"), [("535.104.05", "12.2"), ("551.23", "12.4"), ("400.10", None)])
def test_the_cuda_that_a_driver_serves(driver: str, cuda: str | None) -> None:
    assert drivers.newest_cuda(driver, load()) == cuda
