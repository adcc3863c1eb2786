"""Compile modules to bytecode that depends on their text and on this Python alone; runs inside the image, standard library only.

    python compile_modules.py JOBS

JOBS is a JSON list of [SOURCES, TARGETS, PATH]: the module SOURCES/PATH is compiled, as if it lay at /PATH, into TARGETS, in the
__pycache__ folder that belongs to it. PEP 552 unchecked hashes: no time goes in, and none is looked at when it is imported. A
module that does not compile is left out, as pip leaves it out. Needs Python 3.8.
"""

import importlib.machinery
import importlib.util
import json
import marshal
import operator
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
    settled = share_sets(code, {})
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    with Path(target).open("wb") as stream:
        stream.write(importlib.util.MAGIC_NUMBER + UNCHECKED_HASH + importlib.util.source_hash(text) + marshal.dumps(settled))


def share_sets(code, shared):
    """The code with one object for all equal sets of constants (`x in {"a", "b"}`), in it and in the code inside of it.

    Whether the compiler itself shares them depends on which strings are interned in the process already, hence on the modules that
    were compiled before: it copies a set in which it has to exchange a string (cpython, intern_constants; issue 129724).
    """
    constants = tuple(
        share_sets(constant, shared) if isinstance(constant, types.CodeType) else shared_set(constant, shared)
        for constant in code.co_consts
    )
    return code.replace(co_consts=constants) if any(map(operator.is_not, constants, code.co_consts)) else code


def shared_set(constant, shared):
    """The first set seen that is equal and of the same types, or the constant itself where it is no set."""
    if not isinstance(constant, frozenset):
        return constant
    # Equal constants may differ: 1, 1.0 and True, 0.0 and -0.0.
    parts = frozenset((type(part), repr(part)) for part in constant)
    # Copied, so that the first is changed like all others and the code around it made anew, whether or not it was shared.
    return shared.setdefault(parts, frozenset(list(constant)))


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
