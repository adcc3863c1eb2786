"""What the commands of a RUN line install. Nothing is run: words are read, variables that the file sets are filled in."""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from envlock.init import apt, conda, pip
from envlock.init.said import Said

COMMAND = "a lock holds files, not commands; what it brings must be a wheel, a Debian package or a file of the spec"
DOWNLOAD = "it downloads without a checksum; fetch the file, and add it with `files`"
CLONE = "it takes what a branch holds on that day; build a wheel of it, or add the sources with `files`"
SETTING = "what a RUN exports is gone with its shell; write it under `env`"
_HARMLESS = frozenset(
    {
        "rm",
        "mkdir",
        "echo",
        "set",
        "cd",
        "pwd",
        "true",
        ":",
        "ls",
        "ldconfig",
        "chmod",
        "ln",
        "sync",
        "hash",
        "which",
        "nvidia-smi",
        "fi",
        "done",
    }
    | {"locale-gen", "dpkg-reconfigure", "rmdir", "test", "[", "esac", "conda-clean", "pushd", "popd"}
)
_HARMLESS_PARTS = {
    "apt-get": {"update", "upgrade", "dist-upgrade", "clean", "autoclean", "autoremove", "purge", "remove"},
    "pip": {"cache", "check", "--version", "list", "freeze"},
    "conda": {"clean", "init", "config", "activate", "info", "list"},
    "nvcc": {"--version"},
    "export": {"DEBIAN_FRONTEND=noninteractive"},
}
"""What changes nothing that a lock would have to hold: programs, and parts of programs."""
_ALIKE = {"apt": "apt-get", "aptitude": "apt-get", "pip3": "pip", "mamba": "conda", "micromamba": "conda"}
_VARIABLE = re.compile(r"\$(?:(?P<plain>\w+)|\{(?P<name>\w+)(?P<rest>[^{}]*)\})")
_PIP = re.compile(r"(?:\S*/)?(?:pip\d?(?:\.\d+)?|uv pip|python\d?(?:\.\d+)? -m pip) ")
_CONDA = re.compile(r"(?:\S*/)?(?:conda|mamba|micromamba) ")


def take_script(script: str, where: str, variables: Mapping[str, str], folder: Path, said: Said) -> None:
    """Take over what the commands of a shell script install; leave out the others, each with the reason."""
    known = dict(variables)
    for words in commands(script):
        filled = [expanded(word, known) for word in words]
        while filled and re.fullmatch(r"\w+=.*", filled[0], re.DOTALL):
            name, _, value = filled.pop(0).partition("=")
            known[name] = value
        while filled and filled[0] in ("sudo", "time", "exec", "env", "then", "do", "if", "else"):
            filled.pop(0)
        if filled:
            _take_command(filled, where, folder, said)


def commands(script: str) -> Iterator[list[str]]:
    """The words of each command. A script whose quotes do not close is one command that cannot be read."""
    lexer = shlex.shlex(script, posix=True, punctuation_chars=";&|\n()<>")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words: list[str] = []
    try:
        for word in lexer:
            if word and set(word) <= set(";&|\n()"):
                if words:
                    yield words
                words = []
            else:
                words.append(word)
    except ValueError:
        words = [script]
    if words:
        yield words


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """The text with the variables that are known filled in, with the shell's ways to cut, replace and default them."""

    def value(match: re.Match[str]) -> str:
        name, rest = match["plain"] or match["name"], match["rest"] or ""
        known = variables.get(name)
        if known is None:
            default = re.fullmatch(r":?-(.*)", rest)
            return default[1] if default else match[0]
        return _edited(known, rest)

    return _VARIABLE.sub(value, text)


def _edited(value: str, rest: str) -> str:
    if cut := re.fullmatch(r"(%%?|##?)(.+)", rest):
        lengths = range(len(value) + 1)
        ends = [value[n:] if cut[1][0] == "%" else value[:n] for n in lengths]
        fitting = [n for n, end in enumerate(ends) if fnmatch.fnmatchcase(end, cut[2])]
        if not fitting:
            return value
        longest = len(cut[1]) == 2
        if cut[1][0] == "%":
            return value[: min(fitting) if longest else max(fitting)]
        return value[max(fitting) if longest else min(fitting) :]
    if swap := re.fullmatch(r"(//?)([^/]+)/?(.*)", rest):
        return value.replace(swap[2], swap[3], -1 if swap[1] == "//" else 1)
    if other := re.fullmatch(r":?\+(.*)", rest):
        return other[1]
    return value


def _take_command(words: list[str], where: str, folder: Path, said: Said) -> None:
    end = next((number for number, word in enumerate(words) if re.fullmatch(r"&?[<>]+.*", word)), len(words))
    end -= 0 < end < len(words) and words[end - 1].isdigit()  # `2>` is read as two words
    arguments, text = words[:end], " ".join(words)
    if not arguments or _is_harmless(arguments):
        return
    program = arguments[0].rpartition("/")[2]
    if program in ("apt-get", "apt", "aptitude") and "install" in arguments:
        apt.take_install(arguments[arguments.index("install") + 1 :], where, said)
    elif _PIP.match(text) and "install" in arguments:
        pip.take_install(arguments[arguments.index("install") + 1 :], where, folder, said)
    elif _CONDA.match(text):
        _take_conda(arguments, where, folder, said)
    elif program == "uv" and "sync" in arguments:
        said.leave(text, where, "name pyproject.toml too: --from pyproject.toml")
    elif program == "git":
        said.leave(text, where, CLONE)
    elif program in ("curl", "wget", "aria2c", "gdown", "pget"):
        said.leave(text, where, DOWNLOAD)
    elif program == "export":
        said.leave(text, where, SETTING)
    else:
        said.leave(text, where, COMMAND)


def _is_harmless(arguments: list[str]) -> bool:
    program = arguments[0].rpartition("/")[2]
    if program in _HARMLESS:
        return True
    parts = _HARMLESS_PARTS.get(_ALIKE.get(program, program), set())
    return next((word for word in arguments[1:] if word in parts or not word.startswith("-")), "") in parts


def _take_conda(arguments: list[str], where: str, folder: Path, said: Said) -> None:
    for option in ("-f", "--file"):
        if option in arguments[:-1]:
            path = pip.beside(folder, arguments[arguments.index(option) + 1])
            if pip.is_file(path):
                conda.read(path, said)
            else:
                said.leave(" ".join(arguments), where, "the file is not beside this one; name it too: --from environment.yml")
            return
    if "install" not in arguments and "create" not in arguments:
        said.leave(" ".join(arguments), where, COMMAND)
        return
    rest = iter(arguments[arguments.index("install" if "install" in arguments else "create") + 1 :])
    for word in rest:
        if word in ("-c", "--channel", "-n", "--name", "-p", "--prefix"):
            value = next(rest, "")
            if word in ("-c", "--channel"):
                said.leave(f"channel {value}", where, conda.CHANNELS)
        elif not word.startswith("-"):
            conda.take_package(word, where, said)
