"""Debian packages as `apt-get install` names them."""

from __future__ import annotations

import re

from pydantic import TypeAdapter, ValidationError

from envlock.init import names
from envlock.init.said import Claim, Said
from envlock.texts import AptName

COMPILING = "only compiling needs it, and envlock never compiles; what must be compiled needs a wheel of its own"
NVIDIA = "it is from NVIDIA's archive; the wheels bring CUDA's libraries"
_PYTHON = re.compile(r"python(?:3(?:\.\d+)?)?(?:-(?:pip|venv|dev|distutils|full|setuptools|wheel|virtualenv))?|libpython3(?:\.\d+)?-dev")
_NVIDIA = re.compile(
    r"cuda-.*|lib(?:cu(?:blas|dnn|sparse|solver|fft|rand|pti|file|tensor)|npp|nccl|nvjpeg|nvinfer|nvjitlink).*|nvidia-.*|nsight-.*|datacenter-.*"
)
_COMPILING = re.compile(
    r"build-essential|(?:gcc|g\+\+|clang|gfortran)(?:-\d+)?|cmake|ninja-build|ccache|automake|autoconf|libtool|pkg-config"
)
_NAME: TypeAdapter[str] = TypeAdapter(AptName)


def take_install(arguments: list[str], where: str, said: Said) -> None:
    """Take over the arguments of one `apt-get install`."""
    rest = iter(arguments)
    for word in rest:
        if word in ("-t", "-o", "-c", "--target-release", "--option"):
            next(rest, "")
        elif not word.startswith("-"):
            take_package(word, where, said)


def take_package(text: str, where: str, said: Said) -> None:
    """Take over one package, or leave it out where the image has no use for it."""
    name = text.partition("=")[0].partition("/")[0].partition(":")[0]
    python = re.fullmatch(r"python(3\.\d+)(?:-dev|-venv|-distutils|-full)?", name)
    if python:
        said.python.append(Claim(python[1], f"apt-get install {text}", where))
    if _PYTHON.fullmatch(name):
        why = "the base brings Python, and the image has no pip: envlock installs the wheels itself"
        said.leave(f"apt-get install {text}", where, why)
    elif "$" in text or "*" in text or not _is_name(name):
        said.leave(f"apt-get install {text}", where, "it is not the name of one Debian package")
    elif _NVIDIA.fullmatch(name):
        said.leave(f"apt-get install {text}", where, NVIDIA)
    elif _COMPILING.fullmatch(name) or name.endswith("-dev"):
        said.leave(f"apt-get install {text}", where, COMPILING)
    else:
        if name != text:
            said.leave(f"the version in {text}", where, "the lock pins the package's version, as the base's archive has it")
        said.apt.append(Claim(names.load().renamed.get(name, name), f"apt-get install {text}", where))


def _is_name(text: str) -> bool:
    try:
        _NAME.validate_python(text)
    except ValidationError:
        return False
    return True
