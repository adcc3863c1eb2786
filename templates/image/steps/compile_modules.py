"""Compile modules to bytecode that depends on their text and on this Python alone; runs inside the image, standard library only.

    python compile_modules.py JOBS

JOBS is a JSON list of [SOURCES, TARGETS, PATH]: the module SOURCES/PATH is compiled, as if it lay at /PATH, into TARGETS, in the
__pycache__ folder that belongs to it. PEP 552 unchecked hashes: no time goes in, and none is looked at when it is imported. A
module that does not compile is left out, as pip leaves it out. Needs Python 3.8.
"""

import contextlib
import importlib.util
import json
import os
import py_compile
import sys
from pathlib import Path


def compile_module(sources, targets, path):
    """Compile one module, or leave it out."""
    recorded = "/" + path
    with contextlib.suppress(py_compile.PyCompileError, UnicodeError):
        py_compile.compile(
            sources + recorded,
            cfile=targets + importlib.util.cache_from_source(recorded, optimization=""),
            dfile=recorded,
            doraise=True,
            optimize=0,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )


def compile_modules(jobs):
    """Compile all modules on all cores. Ends the program when a worker dies."""
    workers = min(os.cpu_count() or 1, len(jobs))
    children = []
    for number in range(workers):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for job in jobs[number::workers]:
                    compile_module(*job)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    if any(statuses):
        sys.exit(f"bytecode could not be compiled: a worker ended with wait status {max(statuses)}")


if __name__ == "__main__":
    compile_modules(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
