"""The start-up hook, in fresh processes."""

from __future__ import annotations

import ast
import json
import random

import pytest
from fresh_process import Fresh

from envlock.runtime.hook import pth_line
from envlock.runtime.seeds import derive

STRICT = {"ENVLOCK_DETERMINISM": "strict", "ENVLOCK_SEED": "7", "ENVLOCK_THREADS": "1"}


def test_the_pth_file_is_one_line_that_python_runs() -> None:
    line = pth_line("/opt/envlock/lib")
    assert line.startswith("import ")
    assert line.count("\n") == 1
    assert "'/opt/envlock/lib'" in line


@pytest.mark.parametrize("env", [{}, {"ENVLOCK_DETERMINISM": "off"}, {"ENVLOCK_DETERMINISM": ""}])
def test_without_a_level_nothing_is_done(fresh: Fresh, env: dict[str, str]) -> None:
    done = fresh("import random, sys; print([f for f in sys.meta_path if 'envlock' in type(f).__module__])", **env)
    assert done.stdout.strip() == "[]"


def test_a_level_that_does_not_exist_is_told_and_held_as_strict(fresh: Fresh) -> None:
    done = fresh("from envlock.runtime import hook; print(hook.active().choice.level)", ENVLOCK_DETERMINISM="stirct")
    assert done.stdout.strip() == "strict"
    assert "stirct" in done.stderr


def test_a_seed_that_is_no_number_is_told(fresh: Fresh) -> None:
    done = fresh("import random; print(random.random() == random.Random(0).random())", ENVLOCK_DETERMINISM="seeded", ENVLOCK_SEED="x")
    assert done.stdout.strip() == "True"
    assert "ENVLOCK_SEED" in done.stderr


def test_it_imports_nothing_that_the_program_does_not(fresh: Fresh) -> None:
    done = fresh("import sys; print([name for name in ('torch', 'numpy', 'random', 'typing', 'json') if name in sys.modules])", **STRICT)
    assert done.stdout.strip() == "[]"


def test_python_without_site_skips_it(fresh: Fresh) -> None:
    done = fresh("import sys; print(any('envlock' in type(f).__module__ for f in sys.meta_path))", "-S", **STRICT)
    assert done.stdout.strip() == "False"


def test_each_library_is_seeded_at_its_own_import(fresh: Fresh) -> None:
    code = """
import random
first = random.random() == random.Random(7).random()
random.seed(1)
import numpy.random
numpy_seeded = numpy.random.random() == numpy.random.RandomState(7).random_sample()
numpy.random.seed(2)
import torch
print(first, numpy_seeded, torch.initial_seed() == 7, random.random() == random.Random(1).random(),
      numpy.random.random() == numpy.random.RandomState(2).random_sample(), torch.cuda.is_initialized())
"""
    assert fresh(code, **STRICT).stdout.split() == ["True", "True", "True", "True", "True", "False"]


def test_strict_sets_torch_and_inductor_as_the_public_switch_does(fresh: Fresh) -> None:
    code = """
import sys, torch
early = "torch._inductor" in sys.modules
from envlock.runtime import flags
wanted = flags.wanted(torch, "strict", threads=1)
ours = flags.in_force(torch, wanted)
import torch._inductor.config
inductor = torch._inductor.config.deterministic
torch.use_deterministic_algorithms(False)
torch.use_deterministic_algorithms(True)
print(early, ours == wanted, inductor, torch._inductor.config.deterministic, flags.in_force(torch, ours) == ours)
"""
    assert fresh(code, **STRICT).stdout.split() == ["False", "True", "True", "True", "True"]


def test_deterministic_only_warns(fresh: Fresh) -> None:
    code = "import torch; print(torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled())"
    assert fresh(code, **{**STRICT, "ENVLOCK_DETERMINISM": "deterministic"}).stdout.split() == ["True", "True"]


def test_forked_children_of_any_kind_draw_their_own_repeatable_numbers(fresh: Fresh) -> None:
    code = """
import os, random, json
random.random()
drawn = []
for _ in range(2):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, random.random().hex().encode())
        os._exit(0)
    os.wait()
    drawn.append(os.read(reader, 99).decode())
print(json.dumps([*drawn, random.random().hex()]))
"""
    first, second = (json.loads(fresh(code, ENVLOCK_DETERMINISM="seeded").stdout) for _ in range(2))
    assert first == second
    assert len(set(first)) == 3


def test_spawned_children_draw_from_streams_by_their_names(fresh: Fresh, tmp_path_factory: pytest.TempPathFactory) -> None:
    script = tmp_path_factory.mktemp("spawn") / "script.py"
    script.write_text("""
import multiprocessing, random
def work(queue):
    queue.put((multiprocessing.current_process().name, random.random()))
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    children = [context.Process(target=work, args=(queue,)) for _ in range(2)]
    [child.start() for child in children]
    print(sorted(queue.get() for _ in children))
    [child.join() for child in children]
""")
    code = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    drawn = ast.literal_eval(fresh(f"import sys; sys.argv=[{str(script)!r}]; {code}", **STRICT).stdout)
    assert drawn == [(name, random.Random(derive(7, "process", name)).random()) for name in ("SpawnProcess-1", "SpawnProcess-2")]


def test_a_fault_in_setting_up_is_told_and_stops_nothing(fresh: Fresh) -> None:
    code = """
import sys
from envlock.runtime import hook
def broken(choice, module): raise RuntimeError("no such flag")
hook.active().pending["colorsys"] = broken
import colorsys
print(colorsys.rgb_to_hsv(0, 0, 0), hook.active().done)
"""
    done = fresh(code, **STRICT)
    assert done.stdout.strip().endswith("[]")
    assert "colorsys could not be set to the level strict: RuntimeError: no such flag" in done.stderr


def test_a_failed_import_is_tried_again(fresh: Fresh, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("late")
    (folder / "late.py").write_text("import os\nif 'READY' not in os.environ: raise ImportError('not yet')\n")
    code = f"""
import os, sys
sys.path.insert(0, {str(folder)!r})
from envlock.runtime import hook
hook.active().pending["late"] = lambda choice, module: None
try:
    import late
except ImportError:
    os.environ["READY"] = "1"
import late
print(hook.active().done, late.__spec__.loader.exec_module.__name__, "exec_module" in vars(late.__spec__.loader))
"""
    assert fresh(code, **STRICT).stdout.split() == ["['late']", "exec_module", "False"]


def test_openblas_uses_the_threads_that_are_locked_on_a_host_with_fewer_cores(fresh: Fresh) -> None:
    one_core = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    code = f"{one_core}; import numpy; from envlock.runtime import openblas; print(openblas.threads())"
    env = {"ENVLOCK_DETERMINISM": "strict", "ENVLOCK_THREADS": "3", "OPENBLAS_NUM_THREADS": "3"}
    assert "3" in fresh(code, **env).stdout
    assert "3" not in fresh(code, **{**env, "ENVLOCK_DETERMINISM": "seeded", "OPENBLAS_NUM_THREADS": "1"}).stdout
