"""conda's environment files: its packages under the names of the Python index and of Debian."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from envlock import yamlfile
from envlock.init import names, pip
from envlock.init.said import Claim, Said, Weight, texts_in
from envlock.yamlfile import Document

CHANNELS = "conda's channels are not used: packages come from the Python index, programs from Debian"
_CUDA = ("pytorch-cuda", "cudatoolkit", "cuda-version")
_TORCH = ("pytorch", "pytorch-gpu", "pytorch-cpu")


def read(path: Path, said: Said) -> None:
    """Take over an environment file. Raises `FileUnreadable`, or `Problems` where it is not YAML."""
    document = yamlfile.parse_text(yamlfile.read_bytes(path), path.name)
    data = document.data if isinstance(document.data, dict) else {}
    if isinstance(data.get("name"), str):
        said.names.append(data["name"])
    channels = [text for text in texts_in(data.get("channels")) if text not in ("defaults", "nodefaults")]
    where = _line(document, ("channels",))
    for channel in channels:
        if label := re.search(r"cuda-(\d+\.\d+(?:\.\d+)?)", channel):
            said.cuda.append(Claim(label[1], f"channel {channel}", where, Weight.ELSEWHERE))
    if channels:
        said.leave(f"channels {', '.join(channels)}", where, CHANNELS)
    dependencies = data.get("dependencies")
    for place, item in enumerate(dependencies if isinstance(dependencies, list) else []):
        if isinstance(item, dict):
            for inner, text in enumerate(texts_in(item.get("pip"))):
                pip.take_line(text, _line(document, ("dependencies", place, "pip", inner)), path.parent, said)
        elif isinstance(item, str):
            take_package(item, _line(document, ("dependencies", place)), said)
    variables = data.get("variables")
    for name, value in (variables if isinstance(variables, dict) else {}).items():
        said.env[name] = Claim(str(value), f"{name}={value}", _line(document, ("variables", name)))


def take_package(text: str, where: str, said: Said) -> None:
    """Take over one package in conda's own way of writing: `channel::name=version=build`, or `name >=1,<2`."""
    match = re.fullmatch(r"(?:(?P<channel>\S+)::)?(?P<name>[A-Za-z0-9_.-]+)(?:\[[^]]*\])?\s*(?P<rest>[^A-Za-z].*)?", text.strip())
    if match is None:
        said.leave(text, where, "it is not a package as conda writes it")
        return
    name, (version, build) = match["name"].lower(), _version_and_build(match["rest"] or "")
    try:
        specifier = SpecifierSet(version)
    except InvalidSpecifier:
        said.leave(f"the version in {text}", where, "only conda reads it so; name the version you want in the spec")
        specifier = SpecifierSet()
    if name == "python":
        said.python.append(Claim(pip.version_of(specifier), text, where))
    elif name in _TORCH:
        said.torch.append(Claim(pip.version_of(specifier), text, where))
        if cuda := re.search(r"cuda(\d+\.\d+)", build):
            said.cuda.append(Claim(cuda[1], text, where, Weight.PIN))
        elif "cpu" in build or name.endswith("cpu"):
            said.cuda.append(Claim("cpu", text, where, Weight.PIN))
    elif name in _CUDA:
        if exact := re.match(r"\d+\.\d+", pip.version_of(specifier)):
            said.cuda.append(Claim(exact[0], text, where, Weight.INDEX))
    elif name == "cpuonly":
        said.cuda.append(Claim("cpu", text, where, Weight.INDEX))
    else:
        _take_other(name, specifier, text, where, said)


def _take_other(name: str, specifier: SpecifierSet, text: str, where: str, said: Said) -> None:
    table = names.load()
    why = table.needless.get(name)
    if why is not None:
        said.leave(text, where, why)
    elif name in table.debian:
        said.apt.append(Claim(table.debian[name], text, where))
        if str(specifier):
            said.leave(f"the version in {text}", where, "the lock pins the package's version, as the base's archive has it")
    elif cuda := re.search(r"-cuda(\d+\.\d+)$", name):
        said.cuda.append(Claim(cuda[1], text, where, Weight.ELSEWHERE))
        said.leave(text, where, "it is a build of a conda channel; name the package's own wheel in the spec")
    else:
        project = table.python.get(name, name)
        pip.take_requirement(f"{canonicalize_name(project) if '[' not in project else project}{specifier}", where, said)


def _version_and_build(text: str) -> tuple[str, str]:
    """conda's version as Python writes it, and the build: `=1.2` is any 1.2, `=1.2.3` that release, `1.2.*` as it says."""
    plain = text.strip().strip("'\"")
    parts = [part for part in re.split(r"\s+", plain) if part] if " " in plain and not re.search(r"[<>!~,]", plain) else [plain]
    version, _, build = parts[0].lstrip("=").partition("=") if not re.match(r"[<>!~]", parts[0]) else (parts[0], "", "")
    build = build or (parts[1] if len(parts) > 1 else "")
    if not version or version == "*":
        return "", build
    if re.match(r"[<>!~]", version) or "," in version or "|" in version:
        return version.replace(" ", ""), build
    if version.endswith(".*") or parts[0].startswith("==") or version.count(".") >= 2:
        return f"=={version}", build
    return f"=={version.rstrip('.*')}.*", build


def _line(document: Document, path: tuple[str | int, ...]) -> str:
    return document.where(path).rpartition(":")[0]
