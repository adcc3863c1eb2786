"""cog's `cog.yaml`. Source: cog's documentation, docs/yaml.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from envlock import yamlfile
from envlock.init import apt, pip
from envlock.init.said import Claim, Said, Weight

NOT_RUN = "a lock holds files, not commands; what the command brings must be a wheel, a Debian package or a file of the spec"
_SERVING = ("predict", "train", "concurrency", "weights")


def read(path: Path, said: Said) -> None:
    """Take over a cog.yaml. Raises `FileUnreadable`, or `Problems` where it is not YAML."""
    document = yamlfile.parse_text(yamlfile.read_bytes(path), path.name)
    data = document.data if isinstance(document.data, dict) else {}
    build = data.get("build")

    def where(*keys: str | int) -> str:
        return document.where(keys).rpartition(":")[0]

    if isinstance(data.get("image"), str):
        said.names.append(data["image"].rpartition("/")[2].partition(":")[0])
    for key in _SERVING:
        if key in data:
            said.leave(f"{key}: {data[key]}", where(key), "serving is cog's part; copy your code with `files` and start it yourself")
    if isinstance(build, dict):
        _read_build(build, path.parent, where, said)


def _read_build(build: dict[str, Any], folder: Path, where: Any, said: Said) -> None:
    for key, value in build.items():
        place = where("build", key)
        items = [(item, where("build", key, number)) for number, item in enumerate(value)] if isinstance(value, list) else []
        if key == "gpu" and value == "false":
            said.cuda.append(Claim("cpu", "gpu: false", place, Weight.TOOL))
        elif key == "cuda" and isinstance(value, str):
            said.cuda.append(Claim(value, f"cuda: {value}", place, Weight.TOOL))
        elif key == "python_version" and isinstance(value, str):
            said.python.append(Claim(".".join(value.split(".")[:2]), f"python_version: {value}", place))
        elif key == "python_requirements" and isinstance(value, str):
            pip.take_option("-r", value, place, folder, said)
        elif key == "python_packages":
            for item, line in items:
                pip.take_line(str(item), line, folder, said)
        elif key == "system_packages":
            for item, line in items:
                apt.take_package(str(item), line, said)
        elif key in ("run", "pre_install"):
            for item, line in items or [(value, place)]:
                said.leave(f"{key}: {item.get('command', item) if isinstance(item, dict) else item}", line, NOT_RUN)
        elif key not in ("gpu", "cog_runtime"):
            said.leave(f"{key}: {value}", place, "torch's own wheel pins it" if key == "cudnn" else "a spec has no such key")
