"""The start-up hook: puts the level of ENVLOCK_DETERMINISM in force in every Python process of the image.

It is started by one line in a `.pth` file of the virtual environment, `pth_line(lib)`:

    import sys; sys.path.insert(0, '/opt/envlock/lib'); from envlock.runtime.hook import start; sys.path.append(sys.path.pop(0)); start()

The folder is first on the path while the hook is imported, so that no other folder is searched for it, and last afterwards. (A
`sitecustomize` of ours would be shadowed by Debian's own.) `python -S` skips such files; `python -I` runs them, but ignores
PYTHONHASHSEED.

Each library is set up at its own first import, by watching for it: so nothing is imported that the program does not import, and a
seed or a flag that user code sets afterwards is never overwritten. CUDA is never touched: a process that has touched it cannot
fork any more.

- `random`, `numpy.random`, `torch`: seeded with ENVLOCK_SEED. A process that multiprocessing spawned mixes its name in (`Process-2`,
  `SpawnPoolWorker-1`), or all would draw the same numbers. A forked one inherits NumPy's and torch's streams, as it always does; but
  CPython reseeds `random` from the system's entropy in it, so there its seed is made again from the parent's state and the number of
  the fork. Processes of torchrun are not mixed: all ranks must start from the same weights (`seed_everything(seed, rank)` parts them).
- `numpy`, `scipy.linalg`: their OpenBLAS is held to ENVLOCK_THREADS on a host with fewer cores; see openblas.py.
- `torch` and `torch._inductor.config`: flags of the levels `deterministic` and `strict`; see flags.py.

This module runs in every process, so it uses only what the interpreter has loaded already: not even `__future__`, hence the quotes
around annotations.
"""

import os
import sys

# As type checkers read it; importing it from typing would take ten times as long as all the rest.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    Action = Callable[["Chosen", ModuleType], None]

LEVELS = ("off", "seeded", "deterministic", "strict")
DEFAULT_LIB = "/opt/envlock/lib"


def pth_line(lib_path: str = DEFAULT_LIB) -> str:
    """The whole content of the `.pth` file, newline included; `lib_path` is the folder that holds the package `envlock`."""
    begin = f"import sys; sys.path.insert(0, {lib_path!r}); from envlock.runtime.hook import start"
    return f"{begin}; sys.path.append(sys.path.pop(0)); start()\n"


class Chosen:
    """What the environment asks for: level, seed, threads (0: leave alone), tf32."""

    __slots__ = ("level", "seed", "tf32", "threads")

    def __init__(self, level: str, seed: int = 0, threads: int = 0, tf32: bool = False) -> None:
        self.level = level
        self.seed = seed
        self.threads = threads
        self.tf32 = tf32


def chosen(environ: "Mapping[str, str]") -> Chosen:
    """Read the choice. No level means `off`; one that does not exist means `strict`, and a line on stderr."""
    level = environ.get("ENVLOCK_DETERMINISM", "") or "off"
    if level not in LEVELS:
        _complain(f"ENVLOCK_DETERMINISM={level!r} is not a level ({', '.join(LEVELS)}); strict is used")
        level = "strict"
    seed = _number(environ, "ENVLOCK_SEED", 0)
    threads = _number(environ, "ENVLOCK_THREADS", 0)
    return Chosen(level, seed, threads, environ.get("ENVLOCK_TF32", "0") == "1")


def _number(environ: "Mapping[str, str]", name: str, otherwise: int) -> int:
    text = environ.get(name, "")
    if text.isascii() and text.isdigit():
        return int(text)
    if text:
        _complain(f"{name}={text!r} is not a number; {otherwise} is used")
    return otherwise


def _complain(message: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"envlock: {message}\n")


class Watch:
    """A finder on `sys.meta_path` that finds nothing itself: it has the real loader call back once a watched module is loaded."""

    def __init__(self, choice: Chosen, actions: "Mapping[str, Action]") -> None:
        self.choice = choice
        self.pending = dict(actions)
        self.done: list[str] = []

    def find_spec(self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None) -> "ModuleSpec | None":
        if name not in self.pending:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                self._follow(spec)
                return spec
        return None

    def _follow(self, spec: "ModuleSpec") -> None:
        loader = spec.loader
        if loader is None or isinstance(loader, type):
            return
        load = loader.exec_module

        def exec_module(module: "ModuleType") -> None:
            del loader.exec_module
            load(module)
            self.loaded(spec.name, module)

        loader.exec_module = exec_module  # type: ignore[method-assign]

    def loaded(self, name: str, module: "ModuleType") -> None:
        """Set a library up, once. A fault is told on stderr, and does not stop the program: the self-test fails on it."""
        action = self.pending.pop(name, None)
        if action is None:
            return
        try:
            action(self.choice, module)
        except Exception as error:
            _complain(f"{name} could not be set to the level {self.choice.level}: {type(error).__name__}: {error}")
        else:
            self.done.append(name)


def start(environ: "Mapping[str, str] | None" = None) -> "Watch | None":
    """Start watching, unless the level is `off` or the hook is active already. Modules that are loaded already are set up at once."""
    choice = chosen(os.environ if environ is None else environ)
    if choice.level == "off" or active() is not None:
        return None
    watch = Watch(choice, _ACTIONS)
    sys.meta_path.insert(0, watch)
    for name in tuple(watch.pending):
        if name in sys.modules:
            watch.loaded(name, sys.modules[name])
    return watch


def active() -> "Watch | None":
    """The hook of this process, if it runs: it holds the choice in force and what it has set up."""
    for finder in sys.meta_path:
        if type(finder).__name__ == "Watch" and type(finder).__module__ == __name__:
            return finder  # type: ignore[return-value]
    return None


def process_seed(choice: Chosen) -> int:
    """The seed for this process: ENVLOCK_SEED, and for a child of multiprocessing a stream of its own, by its name."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    name = "MainProcess" if multiprocessing is None else multiprocessing.current_process().name
    if name == "MainProcess":
        return choice.seed
    from envlock.runtime.seeds import derive

    return derive(choice.seed, "process", name)


def _seed_random(choice: Chosen, random: "ModuleType") -> None:
    random.seed(process_seed(choice))
    forks = [0, 0]

    def note() -> None:
        forks[0] += 1
        forks[1] = hash(random.getstate()[1])

    def seed() -> None:
        random.seed(f"{forks[1]} {forks[0]}")
        forks[0] = 0

    os.register_at_fork(before=note, after_in_child=seed)


def _seed_numpy(choice: Chosen, numpy_random: "ModuleType") -> None:
    seed = process_seed(choice)
    # The legacy generator takes 32 bits as a number, and any length as words.
    numpy_random.seed(seed if seed < 2**32 else [seed & 0xFFFFFFFF, seed >> 32])


def _hold_openblas(choice: Chosen, module: "ModuleType") -> None:
    if choice.level in ("deterministic", "strict") and choice.threads > len(os.sched_getaffinity(0)):
        from envlock.runtime.openblas import set_threads

        set_threads(choice.threads)


def _set_up_torch(choice: Chosen, torch: "ModuleType") -> None:
    from envlock.runtime import flags, seeds

    seeds.seed_torch(torch, process_seed(choice))
    if choice.level in ("deterministic", "strict"):
        flags.apply(torch, choice.level, tf32=choice.tf32, threads=choice.threads)


def _set_up_inductor(choice: Chosen, config: "ModuleType") -> None:
    if choice.level == "strict" and hasattr(config, "deterministic"):
        config.deterministic = True  # type: ignore[attr-defined]


_ACTIONS: "Mapping[str, Action]" = {
    "random": _seed_random,
    "numpy": _hold_openblas,
    "numpy.random": _seed_numpy,
    "scipy.linalg": _hold_openblas,
    "torch": _set_up_torch,
    "torch._inductor.config": _set_up_inductor,
}
