"""Kinds of text that a spec and a lock hold: what each may be, in words for whoever wrote another.

A lock can come from a stranger: what it names becomes paths, arguments of programs and lines of a Dockerfile, so that each text is
held to its kind when it is read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_after_validator_function


def fault(id_: str, what: str, hint: str = "") -> PydanticCustomError:
    """A complaint of a validator in our words."""
    return PydanticCustomError(id_, "{what}", {"what": what, "hint": hint})


@dataclass(frozen=True, slots=True)
class Matching:
    """A rule for text: the pattern that the whole of it matches, in words, and what to write instead. It stands in the JSON Schema too."""

    pattern: str
    what: str
    hint: str
    id: str = "spec-value"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "pattern": f"^(?:{self.pattern})$"}

    def check(self, value: str) -> str:
        """The value itself. Raises a complaint where it does not match."""
        if not re.fullmatch(self.pattern, value, re.ASCII):
            raise fault(self.id, f"{value!r} is not {self.what}", self.hint)
        return value


def _inside_folder(value: str) -> str:
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in value:
        raise fault("file-outside", f"{value!r} leads out of the spec's folder", "name a file or folder below the spec's own folder")
    return value


def _in_image(value: str) -> str:
    path = PurePosixPath(value)
    if not path.is_absolute() or ".." in path.parts or "\0" in value:
        raise fault("spec-value", f"{value!r} is not an absolute path in the image", "write it as /workspace/src")
    for taken in ("/proc", "/sys", "/dev", "/opt/venv", "/opt/envlock"):
        if path == PurePosixPath(taken) or PurePosixPath(taken) in path.parents:
            raise fault("spec-value", f"{value!r} lies in {taken}, which is not the spec's to fill", "choose another folder")
    return value


Name = Annotated[
    str,
    Matching(r"[a-z0-9]+(?:[._-][a-z0-9]+)*", "a name for an image", "lower-case letters, digits and single dots, dashes or underscores"),
]
PythonVersion = Annotated[str, Matching(r"3\.\d{1,2}", "a Python version", "write major and minor: 3.11")]
Version = Annotated[str, Matching(r"\d+(\.\d+)*([a-z0-9.+-]*)", "a version number", "write it as 2.5.1")]
CudaVersion = Annotated[str, Matching(r"cpu|\d+\.\d+(\.\d+)?", "a CUDA version", "write it as 12.4, or cpu for none")]
DriverVersion = Annotated[str, Matching(r"\d{3,}(\.\d+){0,2}", "a driver version", "write it as nvidia-smi shows it: 550.54.15")]
AptName = Annotated[
    str,
    Matching(r"[a-z0-9][a-z0-9+.-]+", "the name of a Debian package", "lower-case letters, digits, plus, minus and dots only", "apt-name"),
]
InProject = Annotated[str, AfterValidator(_inside_folder)]
InImage = Annotated[str, AfterValidator(_in_image)]
EnvName = Annotated[str, Matching(r"[A-Za-z_][A-Za-z0-9_]*", "a name for an environment variable", "letters, digits and underscores")]
EnvValue = Annotated[str, Matching(r"[^\0\r\n]*", "a value for an environment variable", "one line, no null byte")]
Suite = Annotated[str, Matching(r"[a-z]+", "a Debian release", "write its code name: bookworm")]
Size = Annotated[str, Matching(r"\d{1,15}[kmg]?", "a size", "write it as 8g or 512m")]
User = Annotated[str, Matching(r"\d{1,10}(:\d{1,10})?", "a numeric user", "write uid or uid:gid, as 1000:1000")]

_AGAIN = "lock the spec again"
Line = Annotated[str, Matching(r"[^\x00-\x1f\x7f]*", "one line of text", _AGAIN)]
PoolPath = Annotated[InProject, Matching(r"[^\s\x00-\x1f\x7f]+", "a path in an archive", _AGAIN)]
Word = Annotated[str, Matching(r"[A-Za-z0-9][A-Za-z0-9._+!~:-]*", "a name or version", _AGAIN)]
Platform = Annotated[str, Matching(r"[a-z0-9]+(/[a-z0-9_.]+){1,2}", "a platform", "write it as linux/amd64")]
WheelFile = Annotated[str, Matching(r"[^\s/\\\x00-\x1f\x7f.-][^\s/\\\x00-\x1f\x7f]*\.whl", "the file name of a wheel", _AGAIN)]
InheritedName = Annotated[
    str,
    Matching(r"[^=\s\"'$\\\x00-\x1f\x7f]+", "a name for an environment variable", "take a base without it: a Dockerfile cannot write it"),
]
"""A variable of a base image, whose makers may call it what a spec may not."""
