"""Compile modules to bytecode that depends on their text and on this Python alone; runs inside the image, standard library only.

    python compile_modules.py JOBS

JOBS is a JSON list of [SOURCES, TARGETS, PATH]: the module SOURCES/PATH is compiled, as if it lay at /PATH, into TARGETS, in the
__pycache__ folder that belongs to it. PEP 552 unchecked hashes: no time goes in, and none is looked at when it is imported. A
module that does not compile is left out, as pip leaves it out. Needs Python 3.8.
"""

import contextlib
import importlib.machinery
import importlib.util
import json
import marshal
import os
import sys
import types
from pathlib import Path

UNCHECKED_HASH = (1).to_bytes(4, "little")  # PEP 552: the source's hash in the header, not looked at on import


def compile_module(sources, targets, path):
    """Compile one module, or leave it out."""
    source, recorded = sources + "/" + path, "/" + path
    target = targets + importlib.util.cache_from_source(recorded, optimization="")
    try:
        with Path(source).open("rb") as stream:
            text = stream.read()
        code = importlib.machinery.SourceFileLoader("module", source).source_to_code(text, recorded)
    except (SyntaxError, ValueError, UnicodeError, RecursionError):
        return
    held = []
    hold_strings(code, held)
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    with Path(target).open("wb") as stream:
        stream.write(importlib.util.MAGIC_NUMBER + UNCHECKED_HASH + importlib.util.source_hash(text) + marshal.dumps(code))


def hold_strings(constant, held):
    """Hold each string of a code object once more.

    marshal marks what has more than one holder (cpython issue 129724), and an interned string may have holders outside of this
    module: those that were compiled before it in the same process. Held here, each has more than one, always.
    """
    if isinstance(constant, str):
        held.append(constant)
    elif isinstance(constant, (tuple, frozenset)):
        for part in constant:
            hold_strings(part, held)
    elif isinstance(constant, types.CodeType):
        held += (constant.co_filename, constant.co_name, getattr(constant, "co_qualname", ""))
        held += constant.co_names + constant.co_varnames + constant.co_cellvars + constant.co_freevars
        hold_strings(constant.co_consts, held)


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
