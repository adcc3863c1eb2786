"""Every file that a user or a stranger can hand to envlock, broken in random ways: it is read, or refused by an error of ours."""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from fuzzing import Document, Read, hold_to_the_promise
from mutations import as_json, broken_json, broken_yaml, damaged
from sample_locks import ARCHIVE, built_of, cpu_lock, cuda_lock
from sample_report import report

from envlock import bundle, catalogue, dockerfile, metrics, reference, report_forms, run_record, yamlfile
from envlock import lock as locks
from envlock import report as reports
from envlock.artifact.inputs import fetch_list, inputs_of
from envlock.artifact.record import read_record
from envlock.config import image_settings
from envlock.diff import diff
from envlock.errors import EnvlockError, Problems
from envlock.host import parse_cpuinfo
from envlock.init import Given, draft_from
from envlock.init.write import spec_text
from envlock.locking import find_lock, is_lock, staleness
from envlock.nvidia import parse_smi_capabilities, parse_smi_list, parse_smi_xml
from envlock.portrait import of_lock, of_spec
from envlock.resolve.credentials import find_credentials
from envlock.resolve.requirements import read_requirements
from envlock.sources import list_files
from envlock.spec import parse_spec
from envlock.stack import located_problems, solve

DATA = Path(__file__).parents[1] / "data"
SPEC: dict[str, Any] = {
    "version": "1",
    "name": "resnet-cifar",
    "python": "3.11",
    "base": {"debian": "bookworm"},
    "stack": {"torch": "2.5.1", "cuda": "12.4", "cudnn": "9.1", "nccl": "2.21.5"},
    "target": {"gpus": ["a100", "sm_90"], "driver": "550.54.15", "platform": "linux/amd64"},
    "packages": ["torchvision", "numpy<2", "pandas[excel]>=2; python_version > '3.8'"],
    "requirements": ["requirements.txt"],
    "apt": ["git", "libgl1"],
    "determinism": {"level": "strict", "seed": "0", "tf32": "false", "threads": "4"},
    "env": {"HF_HOME": "/data/hf", "OMP_NUM_THREADS": "4"},
    "files": [{"from": "src/", "to": "/workspace/src"}],
    "run": {"shm_size": "8g", "user": "1000:1000", "workdir": "/workspace"},
    "paper": {
        "title": "Bits",
        "authors": [{"given": "Ada", "family": "Lovelace", "orcid": "0000-0002-1825-0097"}],
        "licence": "Apache-2.0",
        "doi": "10.1000/xyz",
        "year": "2026",
        "keywords": ["bits"],
    },
}


def plain(value: Any) -> Any:
    """Plain data as a file has it."""
    return json.loads(json.dumps(value))


LOCK = plain({**cuda_lock().inputs, "built": built_of(cuda_lock(), "a", "b").model_dump(mode="json", exclude_none=True)})
IMAGE_LOCK = plain(cpu_lock(base=ARCHIVE).inputs)


def read_spec(raw: bytes, folder: Path) -> None:
    spec = parse_spec(raw, "s.yaml")
    assert spec.digest == parse_spec(raw, "s.yaml").digest
    try:
        solution = solve(spec, catalogue.load())
    except Problems as problems:
        raise located_problems(problems, yamlfile.parse_text(raw, "s.yaml")) from None
    of_spec(spec, solution, "one", None)
    list_files(spec, folder)


def read_lock(raw: bytes, folder: Path) -> None:
    (folder / "l.yaml").write_bytes(raw)
    is_lock(folder / "l.yaml")
    found = locks.parse(raw, "l.lock.yaml")
    assert locks.parse(locks.dump(found), "again").lock == found.lock
    lock = found.lock
    image_settings(lock)
    dockerfile.render(lock, bundle.read_bundle(bundle.own_bundle()))
    fetch_list(lock, "none")
    for row in inputs_of(lock):
        assert ".." not in Path(row.path).parts
        assert not row.path.startswith("/")
    diff(of_lock(lock, None, "one"), of_lock(cpu_lock(), None, "other"))
    staleness(parse_spec(yaml.safe_dump(SPEC).encode(), "s.yaml"), folder, lock)


def read_report(raw: bytes, folder: Path) -> None:
    found = reports.parse(raw, "report.json")
    for form in (report_forms.to_text, report_forms.to_junit, report_forms.to_html, report_forms.to_markdown, report_forms.to_github):
        str(form(found))
    assert reports.parse(reports.to_json(found).encode(), "again") == found
    reference.record(found)


def read_reference(raw: bytes, folder: Path) -> None:
    (folder / "r.json").write_bytes(raw)
    found = reference.read(folder / "r.json")
    reference.held_against(report(), found)
    reference.write(folder / "r2.json", found)
    (folder / "r2.json").unlink()


def read_run(raw: bytes, folder: Path) -> None:
    (folder / "record.json").write_bytes(raw)
    record = run_record.read(folder)
    run_record.to_text(record)
    run_record.to_json(record).encode()
    run_record.held_against([output for run in record.runs for output in run.outputs], record)


def read_image_record(raw: bytes, folder: Path) -> None:
    record = read_record(raw, "IMAGE.json")
    record.to_json  # noqa: B018


def read_metrics(raw: bytes, folder: Path) -> None:
    (folder / "m.json").write_bytes(raw)
    found = metrics.read_metrics(folder / "m.json")
    for metric in metrics.summarise([found, {name: value / 3 for name, value in found.items()}]):
        json.dumps(metrics.as_json(metric))
        metric.text.encode()


def read_docker_config(raw: bytes, folder: Path) -> None:
    (folder / "config.json").write_bytes(raw)
    find_credentials("registry.invalid", lambda said: None, {"DOCKER_CONFIG": str(folder), "PATH": "/nonexistent"})


def read_requirement_file(raw: bytes, folder: Path) -> None:
    (folder / "requirements.txt").write_bytes(raw)
    read_requirements([folder / "requirements.txt"])


def imports(name: str) -> Read:
    def read(raw: bytes, folder: Path) -> None:
        (folder / name).write_bytes(raw)
        spec_text(draft_from([folder / name], Given("x", None)), "x.yaml").encode()

    return read


def read_smi(raw: bytes, folder: Path) -> None:
    text = raw.decode("utf-8", "replace")
    parse_smi_xml(text), parse_smi_list(text), parse_smi_capabilities(text), parse_cpuinfo(text, "x86_64", 2)


RUN = {
    "version": 1, "verdict": "identical", "summary": "s", "command": ["python", "t.py"], "repeat_with": "envlock run", "image": "x:1",
    "image_digest": "sha256:" + "a" * 64, "lock_digest": None, "level": "strict", "host": plain(report().host.model_dump()),
    "environment": {"A": "1"}, "started": "2026-11-29T18:00:00Z",
    "inputs": [{"target": "/d", "files": 2, "size": 4, "sha256": "0" * 64}],
    "runs": [{"number": 1, "status": 0, "seconds": 1.5, "outputs": [{"path": "o", "size": 2, "sha256": "1" * 64, "values": None}]}],
    "differences": [{"against": "run 1", "path": "o", "same": "different", "first": "byte 1", "amount": "2"}],
    "metrics": [{"name": "x"}], "remarks": [],
}  # fmt: skip
REFERENCE = json.loads(reference.to_json(reference.record(report())))
IMAGE_RECORD = {
    "version": 1, "envlock": "0.1.0", "tag": "x:1", "platform": "linux/amd64",
    **dict.fromkeys(("lock_digest", "image_digest", "manifest_digest", "rootfs_digest"), "sha256:" + "a" * 64),
    "layers": [{"diff_id": "sha256:" + "b" * 64, "size": 5, "holds": "h"}], "shown_by": {"docker": "sha256:" + "a" * 64},
    "archive": {
        "compression": "zstd", "compressor": {"level": 3}, "size": 9,
        "files": [{"name": "image/x.tar", "size": 9, "sha256": "c" * 64}],
    },
    "vendor": "all",
}  # fmt: skip
DOCKER_CONFIG = {
    "auths": {"registry.invalid": {"auth": "bWU6cGFzcw=="}, "https://registry.invalid/v1/": {"identitytoken": "t"}},
    "credHelpers": {"other.invalid": "x"}, "credsStore": "",
}  # fmt: skip
METRICS = {"test": {"accuracy": 0.9, "loss": [1, 2.5]}, "n": 3}


def text_of(*names: str) -> bytes:
    return (DATA.joinpath(*names)).read_bytes()


DOCUMENTS: dict[str, tuple[Document, Read]] = {
    "spec": (broken_yaml(SPEC), read_spec),
    "lock": (broken_yaml(LOCK), read_lock),
    "image lock": (broken_yaml(IMAGE_LOCK), read_lock),
    "report": (broken_json(json.loads(reports.to_json(report()))), read_report),
    "reference": (broken_json(REFERENCE), read_reference),
    "run record": (broken_json(RUN), read_run),
    "image record": (broken_json(IMAGE_RECORD), read_image_record),
    "metrics": (broken_json(METRICS), read_metrics),
    "docker config": (broken_json(DOCKER_CONFIG), read_docker_config),
    "requirements": (
        damaged(b"--hash=sha256:00\nnumpy==1.2 ; python_version>'3'\n-r other.txt\ntorch @ file:///x\n-e .\n"),
        read_requirement_file,
    ),
    "conda": (broken_yaml(yaml.safe_load(text_of("init", "fold", "environment.yml"))), imports("environment.yml")),
    "cog": (broken_yaml(yaml.safe_load(text_of("init", "llava", "cog.yaml"))), imports("cog.yaml")),
    "dockerfile": (damaged(text_of("init", "segment", "Dockerfile")), imports("Dockerfile")),
    "pyproject": (damaged(text_of("init", "pi", "pyproject.toml")), imports("pyproject.toml")),
    "pip file": (damaged(text_of("init", "vision", "requirements.txt")), imports("requirements.txt")),
    "nvidia-smi": (damaged(text_of("nvidia", "a100-mig.xml")), read_smi),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with what the documents name beside themselves."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("pass\n")
    (tmp_path / "requirements.txt").write_text("six\n")
    return tmp_path


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_it_is_read_or_refused_by_an_error_of_ours(kind: str, folder: Path) -> None:
    hold_to_the_promise(*DOCUMENTS[kind], folder)


@pytest.mark.parametrize(("kind", "document"), [("spec", SPEC), ("lock", LOCK), ("image lock", IMAGE_LOCK), ("run record", RUN)])
def test_the_document_that_is_broken_was_whole(kind: str, document: Any, folder: Path) -> None:
    _, read = DOCUMENTS[kind]
    read(as_json(document), folder)


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b"a: &a [x, x]\nb: [*a, *a]\n", "anchors and aliases"),
        (b"[" * 100_000, "not valid YAML"),
        (b"a: " * 10_000, ""),
        (b"{a: " * 10_000, "nested more than"),
        (b"- " * 100_000 + b"x", "nested more than"),
        (b"? " * 100_000, "nested more than"),
        (b"x: " + b"y" * 10_000_000, ""),
        (b"".join(b"k%d: v\n" % number for number in range(700_000)), "more than"),
        (b"name: x\n" * 700_000, "more than"),
        (b"name: x\n" * 50_000, "stands twice"),
        (b"a" * (17 * 2**20), "larger than"),
        (b"\0" * 1_000_000, ""),
    ],
    ids=[
        "aliases",
        "lists",
        "one line",
        "maps",
        "dashes",
        "keys",
        "10 MB text",
        "10 MB keys",
        "5 MB of one key",
        "one key",
        "too large",
        "nulls",
    ],
)
def test_a_bomb_is_refused_in_little_time_and_memory(raw: bytes, what: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(raw)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    with pytest.raises(EnvlockError) as caught:
        find_lock(path)
    assert what in caught.value.what
    assert time.process_time() - began < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB
