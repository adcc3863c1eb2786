"""Dockerfiles: the stages that the last one stands on, instruction by instruction. Source: Dockerfile reference."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from envlock.catalogue import load
from envlock.init import shell
from envlock.init.said import Claim, Said, Weight
from envlock.runtime import settings
from envlock.secrecy import is_secret
from envlock.stack.images import Reference, guess
from envlock.yamlfile import read_bytes

NGC = "it brings NVIDIA's own build of torch, of which no wheel is published; say which release you want: --torch 2.5.1"
IMAGE_TORCH = "its torch and CUDA are in the spec's stack; envlock installs them from wheels, on a smaller base"
BUILD_ONLY = "only compiling or installing reads it"
SECRET = "it looks like a secret, and everyone who has an image can read its ENV; give it with `docker run -e`"
STARTING = "say it when the container starts; the image starts python"
_BUILD_ENV = re.compile(
    r"DEBIAN_FRONTEND|PIP_.*|UV_.*|CONDA_.*|MAMBA_.*|PATH|LD_LIBRARY_PATH|LIBRARY_PATH|CPATH|CUDA_HOME|CUDA_PATH|CC|CXX|CUDAHOSTCXX|.*_CUDA_ARCH.*|"
    r"FORCE_CUDA|MAX_JOBS|NVCC_.*|DS_BUILD_.*|.*_BUILD_CUDA|NVIDIA_VISIBLE_DEVICES|NVIDIA_DRIVER_CAPABILITIES|PYTHONHASHSEED|PYTHONDONTWRITEBYTECODE|"
    r"CUDA_VERSION|.*_VERSION|SHELL|HOME|USER"
)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction with its heredocs, and the line that it starts on."""

    name: str
    text: str
    line: int


@dataclass
class _Stage:
    name: str
    base: str
    line: int
    instructions: list[Instruction] = field(default_factory=list)


def read(path: Path, said: Said) -> None:
    """Take over a Dockerfile. Raises `FileUnreadable`."""
    text = read_bytes(path).decode("utf-8-sig", errors="replace")
    top: dict[str, str] = {}
    stages: list[_Stage] = []
    for instruction in instructions(text):
        if instruction.name == "FROM":
            stages.append(_stage(instruction, top))
        elif stages:
            stages[-1].instructions.append(instruction)
        elif instruction.name == "ARG":
            top |= _assignments(instruction.text, top)
    if not stages:
        said.leave(path.name, f"{path.name}:1", "it has no FROM")
        return
    used = _chain(stages)
    for stage in stages:
        if stage not in used:
            said.leave(f"stage {stage.name or stage.base}", f"{path.name}:{stage.line}", "the image is not built on it")
    _take_base(used[0].base, f"{path.name}:{used[0].line}", said)
    variables: dict[str, str] = {}
    for stage in used:
        for instruction in stage.instructions:
            _take(instruction, f"{path.name}:{instruction.line}", path.parent, variables, top, said)


def instructions(text: str) -> Iterator[Instruction]:
    """The instructions: continued lines joined, comments left out, heredocs kept with the instruction that they belong to."""
    lines = text.splitlines()
    escape = "`" if re.match(r"#\s*escape\s*=\s*`", text, re.IGNORECASE) else "\\"
    number = 0
    while number < len(lines):
        start = number
        pieces: list[str] = []
        while number < len(lines):
            line = lines[number]
            number += 1
            if line.lstrip().startswith("#") or not line.strip():
                start = start if pieces else number
                continue
            continued = line.rstrip().endswith(escape)
            pieces.append(line.rstrip()[:-1] if continued else line)
            if not continued:
                break
        whole = " ".join(pieces).strip()
        for _, end in re.findall(r"<<-?\s*([\"']?)(\w+)\1", whole) if whole[:4].upper() in ("RUN ", "COPY") else []:
            body = []
            while number < len(lines) and lines[number].strip() != end:
                body.append(lines[number])
                number += 1
            number += 1
            whole += "\n" + "\n".join(body)
        name, _, rest = whole.partition(" ")
        if name:
            yield Instruction(name.upper(), rest.strip(), start + 1)


def _stage(instruction: Instruction, variables: dict[str, str]) -> _Stage:
    words = [word for word in shell.expanded(instruction.text, variables).split() if not word.startswith("--")]
    name = words[2] if len(words) > 2 and words[1].lower() == "as" else ""
    return _Stage(name, words[0] if words else "", instruction.line)


def _chain(stages: list[_Stage]) -> list[_Stage]:
    """The last stage and those that it is built on, lowest first."""
    chain = [stages[-1]]
    before = {stage.name.lower(): stage for stage in stages[:-1] if stage.name}
    while (below := before.pop(chain[0].base.lower(), None)) is not None:
        chain.insert(0, below)
    return chain


def _assignments(text: str, variables: dict[str, str]) -> dict[str, str]:
    """What ARG, ENV and LABEL set; ARG without a value sets nothing. `ENV NAME some words` is the old form."""
    if re.match(r"[\w.]+\s+[^=\s]", text) and "=" not in text.split()[0]:
        name, _, value = text.partition(" ")
        return {name: shell.expanded(value.strip(), variables)}
    try:
        words = shlex.split(text)
    except ValueError:
        return {}
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            found[name] = shell.expanded(value, {**variables, **found})
    return found


def _take_base(image: str, where: str, said: Said) -> None:
    words = f"FROM {image}"
    if not image or "$" in image:
        said.leave(words, where, "its value is known only while the image is built")
        return
    reference = Reference.parse(image)
    facts = guess(reference, load())
    if reference.name.endswith("nvidia/pytorch"):
        said.leave(words, where, NGC)
    elif facts.torch is not None:
        if facts.torch:
            said.torch.append(Claim(facts.torch, words, where, Weight.IMAGE))
        if facts.cuda:
            said.cuda.append(Claim(facts.cuda, words, where, Weight.IMAGE))
        said.leave(words, where, IMAGE_TORCH)
    elif reference.name == "python":
        if facts.python:
            said.python.append(Claim(facts.python, words, where))
        said.leave(words, where, "its Python is in the spec; envlock chooses a base that has it")
    elif re.search(r"conda|mamba|jupyter|/uv$", reference.name) or image == "scratch":
        said.leave(words, where, "the base that envlock chooses has what it brings")
    else:
        if facts.cuda:
            said.cuda.append(Claim(facts.cuda, words, where, Weight.BASE))
        said.bases.append(Claim(image, words, where, Weight.BASE))


def _take(instruction: Instruction, where: str, folder: Path, variables: dict[str, str], top: dict[str, str], said: Said) -> None:
    name, text = instruction.name, instruction.text
    if name == "ARG":
        declared = {word.partition("=")[0] for word in text.split()}
        found = {key: value for key, value in top.items() if key in declared} | _assignments(text, variables)
        variables |= found
        _take_python(found, where, said)
    elif name == "ENV":
        found = _assignments(text, variables)
        variables |= found
        _take_python(found, where, said)
        for key, value in found.items():
            _take_variable(key, value, where, said)
    elif name == "LABEL":
        for key, value in _assignments(text, variables).items():
            if cuda := re.search(r"cuda:(\d+\.\d+(?:\.\d+)?)", value):
                said.cuda.append(Claim(cuda[1], f"LABEL {key}={value}", where, Weight.LABEL))
    elif name == "RUN":
        _take_run(text, where, variables, folder, said)
    elif name in ("COPY", "ADD"):
        _take_copy(name, shell.expanded(text, variables), where, folder, said)
    elif name == "USER":
        _take_user(shell.expanded(text, variables), where, said)
    elif name == "WORKDIR":
        path = shell.expanded(text, variables).strip("\"' ")
        said.workdir = path if path.startswith("/") else f"{said.workdir or ''}/{path}"
    elif name in ("CMD", "ENTRYPOINT", "HEALTHCHECK", "EXPOSE", "VOLUME", "ONBUILD", "STOPSIGNAL"):
        said.leave(f"{name} {text}", where, STARTING)


def _take_python(found: dict[str, str], where: str, said: Said) -> None:
    value = found.get("PYTHON_VERSION", "")
    if re.match(r"3\.\d", value):
        said.python.append(Claim(value, f"PYTHON_VERSION={value}", where))


def _take_run(text: str, where: str, variables: dict[str, str], folder: Path, said: Said) -> None:
    script = re.sub(r"^(?:--\S+\s+)+", "", text)
    if script.startswith("["):
        with suppress(ValueError):
            script = shlex.join(str(word) for word in json.loads(script))
    if heredoc := re.match(r"(?:\w*sh\s+)?<<-?\s*[\"']?\w+[\"']?[^\n]*\n", script):
        script = script[heredoc.end() :]
    shell.take_script(script, where, variables, folder, said)


def _take_variable(name: str, value: str, where: str, said: Said) -> None:
    faults = settings.faults({name: value}, level="strict", reserved=True)
    if is_secret(name):
        said.leave(f"ENV {name}", where, SECRET)
    elif faults:
        said.leave(f"ENV {name}={value}", where, f"{faults[0].what}: {faults[0].why}")
    elif _BUILD_ENV.fullmatch(name):
        said.leave(f"ENV {name}={value}", where, BUILD_ONLY)
    elif "$" in value or "\n" in value or "\0" in value or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        said.leave(f"ENV {name}={value}", where, "its value is known only while the image is built")
    else:
        said.env[name] = Claim(value, f"ENV {name}={value}", where)


def _is_there(path: Path) -> bool:
    with suppress(OSError):  # a name that is too long
        return path.exists()
    return False


def _take_copy(name: str, text: str, where: str, folder: Path, said: Said) -> None:
    words = [word for word in text.split() if not word.startswith("--")]
    words_text = f"{name} {text}".splitlines()[0]
    if "--from=" in text:
        said.leave(words_text, where, "the image is not built on that stage")
    elif re.search(r"://|git@", text):
        said.leave(words_text, where, shell.DOWNLOAD)
    elif len(words) == 2 and _is_there(folder / words[0]) and words[0].strip("./"):
        if not words[0].endswith((".txt", ".yml", ".yaml", ".toml")):
            target = words[1] if words[1].startswith("/") else f"{said.workdir or ''}/{words[1].removeprefix('.').lstrip('/')}"
            said.files.append((words[0].removeprefix("./"), target))
    else:
        said.leave(words_text, where, "name the files that the image needs under `files`: {from: src, to: /workspace/src}")


def _take_user(text: str, where: str, said: Said) -> None:
    plain = text.strip()
    if re.fullmatch(r"\d+(:\d+)?", plain):
        said.user = plain
    elif plain not in ("root", "0"):
        said.leave(f"USER {plain}", where, "a spec names users by number; write the uid under `run`")
