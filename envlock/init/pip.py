"""Requirements as pip reads them: files, options of `pip install`, and single requirements."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from envlock.init.said import Claim, Said, Weight, cuda_of_tag
from envlock.resolve.requirements import logical_lines
from envlock.resolve.wish import TORCH_FAMILY
from envlock.stack.packages import holds, target_environment
from envlock.urls import split_url
from envlock.yamlfile import read_bytes

NOT_A_WHEEL = "it is no published wheel; build one of it, and put it in a folder that pip's or uv's find-links names"
ELSEWHERE = "a lock names no place; name it in pip.conf or uv.toml of the machine that locks"
TOOLS = frozenset({"pip", "conda"})
_INDEXES = ("-i", "--index-url", "--extra-index-url", "--default-index", "--index", "--pypi-url")
_LINKS = ("-f", "--find-links")
_INCLUDES = ("-r", "--requirement", "--requirements", "-c", "--constraint", "--constraints")
_WITH_VALUE = frozenset(
    {"-t", "--target", "--prefix", "--root", "--python-version", "--python", "-p", "--timeout", "--retries", "--progress-bar", "--platform"}
    | {"--global-option", "--config-settings", "--config-setting", "-C", "--build-option", "--trusted-host", "--cache-dir", "--only-binary"}
    | {"--no-binary", "--upgrade-strategy", "--implementation", "--abi", "--src", "--log", "--proxy", "--cert", "--exclude-newer"}
)
_SOURCE = re.compile(r"(\.{0,2}/|\.$|\.\[|~/|[a-z+]+://|git@|[^\s\[;=<>!~]+\.(?:whl|zip|tar\.gz)\b)", re.IGNORECASE)


def read_file(path: Path, said: Said, seen: frozenset[Path] = frozenset()) -> None:
    """Take over a requirement file and those that it includes. Raises `FileUnreadable`."""
    text = read_bytes(path).decode("utf-8-sig", errors="replace")
    for number, line in logical_lines(text):
        take_line(line, f"{path.name}:{number}", path.parent, said, seen | {path})


def take_line(line: str, where: str, folder: Path, said: Said, seen: frozenset[Path] = frozenset()) -> None:
    """Take over one line of a requirement file."""
    if line.startswith("-"):
        parts = re.match(r"(--[\w-]+|-\w)[\s=]*(.*)", line)
        option, value = (parts[1], parts[2]) if parts else (line, "")
        take_option(option, value.strip(), where, folder, said, seen)
    else:
        take_requirement(re.split(r"\s(?=--)", line)[0].strip(), where, said)


def take_install(arguments: list[str], where: str, folder: Path, said: Said) -> None:
    """Take over the arguments of one `pip install`."""
    rest = iter(arguments)
    for word in rest:
        option, equals, value = word.partition("=")
        if joined := re.fullmatch(r"(-[cefir])([^=].*)", word):
            option, equals, value = joined[1], "=", joined[2]
        if not word.startswith("-"):
            take_requirement(word, where, said)
        elif option in (*_INDEXES, *_LINKS, *_INCLUDES, "-e", "--editable"):
            take_option(option, value if equals else next(rest, ""), where, folder, said)
        elif option == "--torch-backend":
            _take_tag(value if equals else next(rest, ""), word, where, said, Weight.INDEX)
        elif option == "--pre":
            said.leave("--pre", where, "pre-releases are deleted from their index after some weeks; name the release you want")
        elif option in _WITH_VALUE and not equals:
            next(rest, "")


def take_option(option: str, value: str, where: str, folder: Path, said: Said, seen: frozenset[Path] = frozenset()) -> None:
    """Take over an option that names an index, a file or a source."""
    if option in _INDEXES or option in _LINKS:
        take_place(option, value, where, said)
    elif option in _INCLUDES:
        path = beside(folder, value)
        if not is_file(path):
            said.leave(f"{option} {value}", where, "there is no such file")
        elif option in _INCLUDES[:3] and path not in seen:
            read_file(path, said, seen)
        elif path not in seen:
            said.leave(f"{option} {value}", where, "name it in a requirement file, and that under `requirements` in the spec")
    elif option in ("-e", "--editable"):
        said.leave(f"{option} {value}", where, NOT_A_WHEEL)
    elif option not in ("--only-binary", "--prefer-binary", "--require-hashes"):
        said.leave(f"{option} {value}".strip(), where, "the option changes how pip chooses; name the version you want instead")


def beside(folder: Path, named: str) -> Path:
    """The file that a path in an image or a project stands for here: below the folder, or of that name in it."""
    whole = folder / named.lstrip("/")
    return whole if is_file(whole) else folder / Path(named).name


def is_file(path: Path) -> bool:
    """Whether a path leads to a file; what can be no path, as a name that is too long, leads to none."""
    try:
        return path.is_file()
    except OSError:
        return False


def take_place(option: str, url: str, where: str, said: Said) -> None:
    """Take over an index or a page of links: PyTorch's own say which build of torch is meant."""
    host, path = split_url(url).hostname or "", unquote(split_url(url).path)
    words = f"{option} {url}"
    if host.endswith("download.pytorch.org") or re.search(r"/whl/(?:cu\d{2,3}|cpu)(?:/|$)", path):
        tag = re.search(r"/(cu\d{2,3}|cpu|rocm[\d.]+|xpu|nightly)(?:/|$)", path)
        if tag is not None:
            _take_tag(tag[1], words, where, said, Weight.INDEX)
        return
    if tag := re.search(r"(?:^|[^a-z0-9])(cu\d{2,3}|cpu)(?:$|[^a-z0-9])", path):
        _take_tag(tag[1], words, where, said, Weight.ELSEWHERE)
    if version := re.search(r"torch-?(\d+\.\d+(?:\.\d+)?)", path):
        said.torch.append(Claim(version[1], words, where, Weight.ELSEWHERE))
    said.leave(words, where, ELSEWHERE)


def _take_tag(tag: str, words: str, where: str, said: Said, weight: Weight) -> None:
    if tag == "cpu":
        said.cuda.append(Claim("cpu", words, where, weight))
    elif re.fullmatch(r"cu\d{2,3}", tag):
        said.cuda.append(Claim(cuda_of_tag(tag), words, where, weight))
    elif tag == "nightly":
        said.leave(words, where, "nightly builds are deleted from their index after some weeks")
    elif tag != "auto":
        said.leave(words, where, f"envlock locks CUDA and CPU builds of torch, not {tag}")


def take_requirement(text: str, where: str, said: Said) -> None:
    """Take over one requirement, or leave it out where it is none that a lock can hold."""
    if "$" in text or "`" in text:
        said.leave(text, where, "its value is known only while the image is built")
        return
    if _SOURCE.match(text):
        _take_source(text, where, said)
        return
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        said.leave(text, where, "it is not a requirement as Python packages are named")
        return
    if requirement.url is not None:
        _take_source(requirement.url, where, said, text)
    elif not _may_hold(requirement):
        said.leave(text, where, "it is for other systems than Linux")
    elif canonicalize_name(requirement.name) in TOOLS:
        said.leave(text, where, "the image has no pip: envlock installs the wheels itself")
    else:
        _take(requirement, where, said)


def _may_hold(requirement: Requirement) -> bool:
    """Whether a requirement's marker holds for some Python on Linux."""
    pythons = [f"3.{minor}" for minor in range(7, 16)]
    return any(holds(requirement, target_environment(python, "linux/amd64")) for python in pythons)


def _take_source(url: str, where: str, said: Said, whole: str = "") -> None:
    """A wheel of torch's family says which build is meant; every other source is left out."""
    try:
        name, version, _, _ = parse_wheel_filename(unquote(split_url(url).path.rpartition("/")[2]))
    except (InvalidWheelFilename, ValueError):
        said.leave(whole or url, where, NOT_A_WHEEL)
        return
    if name in TORCH_FAMILY:
        _take(Requirement(f"{name}=={version}"), where, said)
    else:
        said.leave(whole or url, where, "a lock names no place; put the wheel in a folder that pip's or uv's find-links names")


def _take(requirement: Requirement, where: str, said: Said) -> None:
    name, words = canonicalize_name(requirement.name), str(requirement)
    if name not in TORCH_FAMILY:
        said.packages.append(Claim(words, words, where))
        return
    local = re.search(r"\+(cu\d{2,3}|cpu)\b", str(requirement.specifier))
    if local:
        _take_tag(local[1], words, where, said, Weight.PIN)
        requirement.specifier = SpecifierSet(re.sub(r"\+(?:cu\d{2,3}|cpu)\b", "", str(requirement.specifier)))
    if name == "torch":
        said.torch.append(Claim(version_of(requirement.specifier), words, where))
    else:
        said.packages.append(Claim(str(requirement), words, where))


def version_of(specifier: SpecifierSet) -> str:
    """The one version that a specifier names (`==2.5.1`, `==2.5.*`), else the specifier itself; empty where it allows all."""
    parts = list(specifier)
    if len(parts) == 1 and parts[0].operator in ("==", "==="):
        return parts[0].version.removesuffix(".*")
    return str(specifier)
