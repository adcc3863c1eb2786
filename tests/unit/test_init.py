"""Files of real kinds of projects in, a spec and what was left out of it out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envlock.catalogue import load
from envlock.errors import EnvlockError, Problems, UsageError
from envlock.init import Draft, Given, draft_for_host, draft_from, name_of, summary, write_spec
from envlock.init.said import Said
from envlock.init.shell import commands, expanded
from envlock.init.sources import read_sources, reader_of
from envlock.locking import solve_file
from envlock.nvidia import parse_smi_xml
from envlock.schema import FILE, POINTER, schema_text
from envlock.spec import read_spec

DATA = Path(__file__).parents[1] / "data"
HOSTS = DATA / "nvidia"


def imported(folder: str, *names: str, torch: str | None = None) -> Draft:
    return draft_from([DATA / "init" / folder / name for name in names], Given("x", torch))


def from_text(tmp_path: Path, name: str, text: str, **given: str) -> Draft:
    (tmp_path / name).write_text(text)
    return draft_from([tmp_path / name], Given("x", **given))


def left(draft: Draft) -> str:
    return "\n".join(f"{row.where} {row.what}: {row.why}" for row in draft.left_out)


@pytest.mark.parametrize(
    ("folder", "names", "torch", "cuda", "python"),
    [
        ("fold", ["Dockerfile", "environment.yml"], "2.5.1", "12.4", "3.10"),
        ("llava", ["cog.yaml"], "2.0.1", "11.7", "3.11"),
        ("nerf", ["Dockerfile"], "2.1.2", "11.8", "3.10"),
        ("pi", ["pyproject.toml"], "2.7.1", "12.8", "3.13"),
        ("points", ["environment.yml"], "2.5.0", "12.4", "3.10"),
        ("segment", ["Dockerfile"], "2.3.1", "12.1", "3.11"),
        ("serve", ["Dockerfile"], "2.7.0", "12.6", "3.12"),
        ("sora", ["Dockerfile"], "2.2.1", "12.1", "3.11"),
        ("tune", ["Dockerfile"], "2.0.1", "11.7", "3.11"),
    ],
)
def test_taken_over_and_accepted_by_check(tmp_path: Path, folder: str, names: list[str], torch: str, cuda: str, python: str) -> None:
    draft = write_spec(imported(folder, *names), tmp_path / "x.yaml", over=False)
    assert draft.problems is None
    _, solution = solve_file(tmp_path / "x.yaml")
    assert (solution.stack.torch, solution.stack.cuda, solution.stack.python) == (torch, cuda, python)


@pytest.mark.parametrize(
    ("folder", "names", "asked"),
    [
        ("detect", ["Dockerfile"], "1.10"),
        ("diffusion", ["Dockerfile", "SE3nv.yml"], "1.9"),
        ("image", ["environment.yaml"], "1.11.0"),
        ("minkowski", ["Dockerfile"], "1.12.0"),
        ("mm", ["Dockerfile"], "1.6.0"),
        ("speed", ["Dockerfile"], "1.13.0"),
        ("splat", ["environment.yml"], "1.12.1"),
    ],
)
def test_too_old_is_written_and_refused_with_the_nearest(tmp_path: Path, folder: str, names: list[str], asked: str) -> None:
    draft = write_spec(imported(folder, *names), tmp_path / "x.yaml", over=False)
    assert read_spec(tmp_path / "x.yaml").stack.torch == asked
    assert draft.problems is not None
    finding = draft.problems.findings[0]
    assert finding.id == "torch-unsupported"
    assert finding.where.startswith("x.yaml:")
    assert "1.13.1" in finding.hint


def test_three_cuda_versions_are_all_named(tmp_path: Path) -> None:
    draft = write_spec(imported("fold", "Dockerfile", "environment.yml"), tmp_path / "x.yaml", over=False)
    finding = next(f for f in draft.findings if f.id == "init-contradiction")
    for text in ("12.1.1", "12.4.1", "Dockerfile:2", "Dockerfile:3", "environment.yml:28", "pytorch-cuda=12.4"):
        assert text in f"{finding.what} {finding.why} {finding.hint}"
    assert {"base-cuda", "two-cudnn"} <= {f.id for f in draft.findings}


@pytest.mark.parametrize(
    ("folder", "names", "says"),
    [("fold3", ["Dockerfile"], "jax==0.4.34"), ("neox", ["Dockerfile"], "nvcr.io/nvidia/pytorch:24.02-py3")],
)
def test_no_torch_is_said_with_the_reason(folder: str, names: list[str], says: str) -> None:
    with pytest.raises(Problems) as caught:
        imported(folder, *names)
    finding = caught.value.findings[0]
    assert finding.id == "torch-missing"
    assert says in finding.why
    assert "--torch" in finding.hint


def test_torch_on_the_command_line_beats_the_sources() -> None:
    assert imported("neox", "Dockerfile", torch="2.3.0").values["stack"] == {"torch": "2.3.0"}


@pytest.mark.parametrize(
    ("folder", "names", "says"),
    [
        (
            "fold",
            ["Dockerfile", "environment.yml"],
            ["cuda-minimal-build-12-1", "channels", "dllogger", "apt-key", "export LD_LIBRARY_PATH"],
        ),
        ("llava", ["cog.yaml"], ["pget", "predict"]),
        ("nerf", ["Dockerfile"], ["stage unused", "tiny-cuda-nn", "colmap", "build-essential"]),
        ("pi", ["pyproject.toml"], ["the project open-pi itself", "lerobot", "pi-client", "ml-dtypes", "dev"]),
        (
            "points",
            ["environment.yml"],
            ["--find-links https://data.example.invalid/whl/torch-2.5.0+cu124.html", "./libs/pointops", "gcc=13.2"],
        ),
        ("segment", ["Dockerfile"], ["FROM pytorch/pytorch", "sam2.1_hiera_tiny.pt", "CMD gunicorn"]),
        ("speed", ["Dockerfile"], ["MLNX_OFED", "USER speed"]),
        ("splat", ["environment.yml"], ["submodules/diff-rasterization", "./submodules/simple-knn"]),
        ("serve", ["Dockerfile"], ["stage base", "jammy has no Python 3.12", "libibverbs-dev"]),
    ],
)
def test_left_out_is_listed_with_its_place(folder: str, names: list[str], says: list[str]) -> None:
    text = left(imported(folder, *names))
    assert [part for part in says if part not in text] == []


def test_written_spec_tells_what_was_left_out(tmp_path: Path) -> None:
    draft = write_spec(imported("llava", "cog.yaml"), tmp_path / "x.yaml", over=False)
    text = (tmp_path / "x.yaml").read_text()
    assert text.startswith(POINTER)
    assert "pget" in text
    assert "pget" in summary(draft, "x.yaml")
    assert (tmp_path / FILE).read_text() == schema_text()


def test_packages_and_programs_find_their_new_names() -> None:
    values = imported("fold", "Dockerfile", "environment.yml").values
    assert {"hmmer", "hhsuite", "kalign", "aria2", "wget", "libxml2"} <= set(values["apt"])
    assert {"openmm", "numpy<2.0.0", "setuptools==59.5.0", "flash-attn"} <= set(values["packages"])
    assert not {"pytorch", "torch", "pip"} & {package.lower() for package in values["packages"]}


def test_the_same_package_twice_stands_once() -> None:
    assert imported("llava", "cog.yaml").values["packages"].count("torchvision==0.15.2") == 1


@pytest.mark.parametrize(
    ("name", "text", "stack"),
    [
        ("requirements.txt", "torch==2.1.2+cu118\n", {"torch": "2.1.2", "cuda": "11.8"}),
        ("requirements.txt", "--index-url https://download.pytorch.org/whl/cpu\ntorch==2.5.1\n", {"torch": "2.5.1", "cuda": "cpu"}),
        ("requirements.txt", "torch==2.4.*\n", {"torch": "2.4"}),
        (
            "requirements.txt",
            "https://download.pytorch.org/whl/cu121/torch-2.3.1%2Bcu121-cp311-cp311-linux_x86_64.whl\n",
            {"torch": "2.3.1", "cuda": "12.1"},
        ),
        ("cog.yaml", "build: {gpu: false, python_packages: ['torch==2.5.1']}\n", {"torch": "2.5.1", "cuda": "cpu"}),
        ("environment.yml", "dependencies: [pytorch=2.1, cpuonly]\n", {"torch": "2.1", "cuda": "cpu"}),
        ("environment.yml", "dependencies: ['pytorch=2.1.0=py3.10_cuda11.8_cudnn8.7.0_0']\n", {"torch": "2.1.0", "cuda": "11.8"}),
        ("Dockerfile", "FROM ubuntu:22.04\nRUN pip install torch==2.5.1\n", {"torch": "2.5.1"}),
        ("Dockerfile", "FROM python:3.11\nRUN <<EOF\npip install torch==2.5.1\nEOF\n", {"torch": "2.5.1"}),
        ("Dockerfile", 'FROM python:3.11\nRUN ["pip", "install", "torch==2.5.1"]\n', {"torch": "2.5.1"}),
        ("pyproject.toml", '[tool.poetry.dependencies]\npython = "^3.11"\ntorch = "2.5.1"\n', {"torch": "2.5.1"}),
    ],
)
def test_stack_is_read(tmp_path: Path, name: str, text: str, stack: dict[str, str]) -> None:
    assert from_text(tmp_path, name, text).values["stack"] == stack


def test_torch_without_a_version_is_the_newest_that_fits(tmp_path: Path) -> None:
    draft = from_text(tmp_path, "requirements.txt", "torch>=2,<2.6\n")
    assert draft.values["stack"]["torch"] == "2.5.1"
    assert "not pinned" in draft.remarks["torch"]


def test_torch_without_a_version_follows_the_base(tmp_path: Path) -> None:
    draft = from_text(tmp_path, "Dockerfile", "FROM nvidia/cuda:12.4.1-base-ubuntu22.04\nRUN pip install torch\n")
    assert draft.values["stack"]["cuda"] == "12.4"
    assert draft.problems is None


def test_markers_for_other_systems_are_left_out(tmp_path: Path) -> None:
    draft = from_text(tmp_path, "requirements.txt", "torch==2.5.1\npywin32; sys_platform == 'win32'\nuvloop; sys_platform == 'linux'\n")
    assert draft.values["packages"] == ['uvloop; sys_platform == "linux"']
    assert "pywin32" in left(draft)


def test_two_pins_of_one_package_are_told(tmp_path: Path) -> None:
    draft = from_text(tmp_path, "requirements.txt", "torch==2.5.1\nnumpy==1.26.4\nnumpy==1.24.0\n")
    (finding,) = [f for f in draft.findings if f.id == "init-contradiction"]
    assert "1.26.4" in finding.what
    assert draft.values["packages"] == ["numpy==1.24.0"]


def test_included_files_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("-r requirements.txt\nnumpy\n")
    draft = from_text(tmp_path, "requirements.txt", "-r more.txt\n-r missing.txt\ntorch==2.5.1\n")
    assert draft.values["packages"] == ["numpy"]
    assert "missing.txt" in left(draft)


def test_secrets_are_never_written(tmp_path: Path) -> None:
    text = "FROM python:3.11\nENV API_TOKEN=hunter2\nRUN pip install torch==2.5.1 --extra-index-url https://me:hunter2@host.invalid/simple?t=hunter2\n"
    draft = write_spec(from_text(tmp_path, "Dockerfile", text), tmp_path / "x.yaml", over=False)
    for place in ((tmp_path / "x.yaml").read_text(), summary(draft, "x.yaml"), str(draft.findings)):
        assert "hunter2" not in place


def test_environment_that_breaks_the_level_is_left_out(tmp_path: Path) -> None:
    text = "FROM python:3.11\nENV NVIDIA_TF32_OVERRIDE=1 CUBLAS_WORKSPACE_CONFIG=:4096 HF_HOME=/data\nRUN pip install torch==2.5.1\n"
    draft = from_text(tmp_path, "Dockerfile", text)
    assert draft.values["env"] == {"HF_HOME": "/data"}
    assert draft.problems is None


def test_files_and_settings_of_a_dockerfile(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    text = "FROM python:3.11\nWORKDIR /app\nCOPY src ./src\nRUN pip install torch==2.5.1\nUSER 1000:1000\n"
    values = from_text(tmp_path, "Dockerfile", text).values
    assert values["files"] == [{"from": "src", "to": "/app/src"}]
    assert values["run"] == {"user": "1000:1000", "workdir": "/app"}


@pytest.mark.parametrize(
    ("xml", "gpus", "python"),
    [("h100.xml", ["h100"], "3.13"), ("a100-mig.xml", ["a100"], "3.13")],
)
def test_spec_for_a_host_with_gpus(tmp_path: Path, xml: str, gpus: list[str], python: str) -> None:
    nvidia = parse_smi_xml((HOSTS / xml).read_text())
    draft = write_spec(draft_for_host(nvidia, "linux/amd64", Given("x")), tmp_path / "x.yaml", over=False)
    assert draft.problems is None
    spec = read_spec(tmp_path / "x.yaml")
    assert (list(spec.target.gpus), spec.target.driver, spec.python) == (gpus, nvidia.driver, python)


def test_spec_for_a_host_without_gpus(tmp_path: Path) -> None:
    nvidia = parse_smi_xml("<nvidia_smi_log/>")
    draft = write_spec(draft_for_host(nvidia, "linux/amd64", Given("x")), tmp_path / "x.yaml", over=False)
    assert draft.problems is None
    assert read_spec(tmp_path / "x.yaml").stack.cuda == "cpu"
    assert read_spec(tmp_path / "x.yaml").stack.torch == load().releases()[-1]


@pytest.mark.parametrize(
    ("given", "says"), [(Given("x", "latest"), "--torch"), (Given("A b"), "--name"), (Given("x", python="4"), "--python")]
)
def test_nonsense_on_the_command_line_is_a_spec_error(given: Given, says: str) -> None:
    with pytest.raises(Problems) as caught:
        draft_for_host(parse_smi_xml("<nvidia_smi_log/>"), "linux/amd64", given)
    assert says in caught.value.findings[0].hint


def test_python_on_the_command_line() -> None:
    draft = draft_for_host(parse_smi_xml("<nvidia_smi_log/>"), "linux/amd64", Given("x", "2.13.0", "cpu", "3.11"))
    assert (draft.values["python"], draft.problems) == ("3.11", None)


def test_a_spec_that_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("mine")
    draft = imported("llava", "cog.yaml")
    with pytest.raises(UsageError):
        write_spec(draft, tmp_path / "x.yaml", over=False)
    assert (tmp_path / "x.yaml").read_text() == "mine"
    write_spec(draft, tmp_path / "x.yaml", over=True)
    assert read_spec(tmp_path / "x.yaml").name == "x"


@pytest.mark.parametrize("name", ["setup.sh", "notes.yaml", "envlock.lock.yaml"])
def test_other_kinds_of_files_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("name: x\n")
    with pytest.raises(UsageError):
        reader_of(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "name"), [("My Project (2)", "my-project-2"), ("résumé", "r-sum"), ("...", "environment"), ("a__b", "a-b"), ("ok.1", "ok.1")]
)
def test_names(text: str, name: str) -> None:
    assert name_of(text) == name


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$V", "11.8.0"),
        ("${V%.*}", "11.8"),
        ("${V%%.*}", "11"),
        ("${V#*.}", "8.0"),
        ("${V##*.}", "0"),
        ("${V//./}", "1180"),
        ("${V/./}", "118.0"),
        ("${W:-x}", "x"),
        ("${W}", "${W}"),
        ("${V:+y}", "y"),
    ],
)
def test_variables_are_filled_in_as_the_shell_does(text: str, value: str) -> None:
    assert expanded(text, {"V": "11.8.0"}) == value


def test_commands_are_told_apart() -> None:
    script = "a 'b && c' && d; e | f\n(g)"
    assert list(commands(script)) == [["a", "b && c"], ["d"], ["e"], ["f"], ["g"]]
    assert list(commands("a 'b")) == [["a 'b"]]


@pytest.mark.parametrize("redirected", ["2>/dev/null", "> log 2>&1", "&> /dev/null", "1>&2"])
def test_what_a_redirection_names_is_no_package(tmp_path: Path, redirected: str) -> None:
    draft = from_text(tmp_path, "Dockerfile", f"FROM python:3.11\nRUN pip install torch==2.5.1 einops {redirected}\n")
    assert draft.values["packages"] == ["einops"]
    assert "/dev/null" not in left(draft)


def test_options_joined_to_their_value_are_read(tmp_path: Path) -> None:
    (tmp_path / "req.txt").write_text("six\n")
    draft = from_text(tmp_path, "Dockerfile", "FROM python:3.11\nRUN pip install torch==2.5.1 -rreq.txt -e.\n")
    assert draft.values["packages"] == ["six"]
    assert "-e ." in left(draft)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["Dockerfile", "requirements.txt", "environment.yml", "cog.yaml", "pyproject.toml"]),
    raw=st.one_of(
        st.binary(max_size=300),
        st.text(max_size=300).map(lambda text: text.encode("utf-8", "replace")),
        st.lists(
            st.sampled_from(
                [
                    "FROM ",
                    "RUN ",
                    "pip install ",
                    "torch",
                    "==2.5.1",
                    "+cu118",
                    "\n",
                    " \\\n",
                    "$A",
                    "${A%.*}",
                    "<<EOF\n",
                    "'",
                    "&&",
                    "-r ",
                    "- ",
                    ":",
                    "[",
                ]
            ),
            max_size=30,
        ).map(lambda parts: "".join(parts).encode()),
    ),
)
def test_whatever_a_file_holds_only_our_errors_come_out(tmp_path: Path, name: str, raw: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(raw)
    try:
        write_spec(draft_from([path], Given("x")), tmp_path / "out.yaml", over=True)
    except EnvlockError:
        return
    json.dumps(read_spec(tmp_path / "out.yaml").canonical())


def test_sources_are_read_in_their_order(tmp_path: Path) -> None:
    for name, version in (("a.txt", "2.5.1"), ("b.txt", "2.4.0")):
        (tmp_path / name).write_text(f"torch=={version}\n")
    said: Said = read_sources([tmp_path / "a.txt", tmp_path / "b.txt"])
    assert [claim.where for claim in said.torch] == ["a.txt:1", "b.txt:1"]
