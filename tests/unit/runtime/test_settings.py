"""The table of settings: what an image's ENV holds, and what would undo it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from envlock.runtime import settings

NEWEST = {"torch_version": "2.13.0+cpu", "numpy_version": "2.4.6"}


def test_off_bakes_in_nothing_but_its_name() -> None:
    assert settings.environment("off", **NEWEST) == {"ENVLOCK_DETERMINISM": "off"}


def test_each_level_holds_all_variables_of_the_level_below() -> None:
    names = [set(settings.environment(level, **NEWEST)) for level in settings.LEVELS]
    assert names[0] < names[1] < names[2] < names[3]


def test_templates_are_filled_in() -> None:
    env = settings.environment("strict", seed=7, threads=3, **NEWEST)
    assert (env["PYTHONHASHSEED"], env["OMP_NUM_THREADS"], env["ENVLOCK_TF32"], env["NVIDIA_TF32_OVERRIDE"]) == ("7", "3", "0", "0")


def test_tf32_takes_the_override_away() -> None:
    env = settings.environment("strict", tf32=True, **NEWEST)
    assert env["ENVLOCK_TF32"] == "1"
    assert "NVIDIA_TF32_OVERRIDE" not in env


@pytest.mark.parametrize(("torch", "present"), [("2.9.1", False), ("2.10.0", True), ("2.15.0+cu132", True)])
def test_a_variable_is_set_from_the_torch_on_that_knows_it(torch: str, present: bool) -> None:
    env = settings.environment("strict", torch_version=torch)
    assert ("TORCHINDUCTOR_DETERMINISTIC" in env) is present


@pytest.mark.parametrize(("numpy", "word"), [("1.26.4", "AVX512_SKX"), ("2.2.0", "AVX512_SPR"), ("2.4.6", "X86_V4")])
def test_numpy_gets_the_names_that_it_knows(numpy: str, word: str) -> None:
    env = settings.environment("strict", torch_version="2.13.0", numpy_version=numpy)
    assert word in env["NPY_DISABLE_CPU_FEATURES"].split()


def test_an_image_without_numpy_has_none_of_its_variables() -> None:
    assert "NPY_DISABLE_CPU_FEATURES" not in settings.environment("strict", torch_version="2.13.0")


def test_instruction_sets_are_those_of_the_platform() -> None:
    arm = settings.environment("strict", platform="linux/arm64", **NEWEST)
    assert arm["ATEN_CPU_CAPABILITY"] == "default"
    assert "MKL_CBWR" not in arm


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="seeded"):
        settings.environment("sedeed", **NEWEST)


@pytest.mark.parametrize("level", settings.LEVELS)
def test_what_the_table_sets_it_does_not_refuse(level: str) -> None:
    env = settings.environment(level, seed=2**32 - 1, **NEWEST)
    assert settings.faults(env, level=level) == ()


@pytest.mark.parametrize(
    ("name", "value", "id_", "says"),
    [
        ("CUBLAS_WORKSPACE_CONFIG", ":4096", "env-value", [":4096:8", ":16:8"]),
        ("CUBLAS_WORKSPACE_CONFIG", ":4096:8 ", "env-value", [":4096:8"]),
        ("CUBLAS_WORKSPACE_CONFIG", "", "env-value", [":4096:8"]),
        ("PYTHONHASHSEED", "random", "env-value", ["4294967295"]),
        ("PYTHONHASHSEED", "4294967296", "env-value", ["4294967295"]),
        ("NCCL_ALGO", "NVLS", "env-value", ["Ring"]),
        ("NVIDIA_TF32_OVERRIDE", "1", "env-override", ["NVIDIA_TF32_OVERRIDE", "tf32"]),
        ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1", "env-override", ["tf32"]),
        ("LD_LIBRARY_PATH", "/usr/local/cuda/lib64/stubs", "env-override", ["stubs"]),
        ("LD_LIBRARY_PATH", "/opt/x:/usr/local/cuda-12.1/lib64", "env-override", ["another CUDA"]),
        ("LD_PRELOAD", "/x/libcudnn.so.8", "env-override", ["ahead of all others"]),
        ("NCCL_CONF_FILE", "/x", "env-override", ["lock does not cover"]),
    ],
)
def test_what_breaks_the_level_is_named(name: str, value: str, id_: str, says: list[str]) -> None:
    (fault,) = settings.faults({name: value}, level="strict")
    assert fault.id == id_
    assert all(word in f"{fault.what} {fault.why} {fault.hint}" for word in says)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NVIDIA_TF32_OVERRIDE", "0"),
        ("NVIDIA_TF32_OVERRIDE", ""),
        ("LD_LIBRARY_PATH", "/opt/mine/lib"),
        ("LD_PRELOAD", "/usr/lib/libjemalloc.so.2"),
        ("CUBLAS_WORKSPACE_CONFIG", ":16:8"),
        ("HF_HOME", "/data/cuda"),
    ],
)
def test_what_does_not_break_the_level_passes(name: str, value: str) -> None:
    assert settings.faults({name: value}, level="strict") == ()


def test_tf32_may_be_forced_where_it_is_asked_for() -> None:
    assert settings.faults({"NVIDIA_TF32_OVERRIDE": "1"}, level="strict", tf32=True) == ()


def test_a_spec_sets_the_level_by_its_own_key() -> None:
    (fault,) = settings.faults({"ENVLOCK_SEED": "3"}, level="strict", reserved=True)
    assert (fault.id, fault.hint) == ("env-override", "write `determinism.seed`")


def test_files_that_nccl_reads_are_found(tmp_path: Path) -> None:
    (tmp_path / ".nccl.conf").write_text("NCCL_ALGO=NVLS\n")
    assert settings.settings_files("strict", home=tmp_path) == (str(tmp_path / ".nccl.conf"),)
    assert settings.settings_files("seeded", home=tmp_path) == ()


def test_a_user_without_a_home_has_no_files_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert settings.settings_files("strict") == ()


def test_every_row_says_what_it_does_how_it_is_asked_back_and_where_it_is_from() -> None:
    table = settings.table()
    assert all(row.effect and row.asked and row.source for row in table.variables)
    assert all(row.reason and row.hint and row.source for row in table.overrides)
    assert all(flag.effect for flag in table.flags)


SHIPPED = sorted(path for part in ("runtime", "selftest") for path in (Path(settings.__file__).parents[1] / part).rglob("*.py"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_what_ships_is_readable_for_the_oldest_python_of_supported_torch(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))


def test_the_runtime_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in {'torch', 'numpy', 'pydantic', 'yaml'}: raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        f"sys.path.insert(0, {str(Path(settings.__file__).parents[2])!r})\n"
        "import envlock.runtime, envlock.selftest.__main__\n"
        "from envlock.runtime import flags, hook, seeds, settings, state, snapshots, allreduce, fingerprints, hardware\n"
        "print(len(settings.environment('strict', torch_version='2.5.1')))\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20
