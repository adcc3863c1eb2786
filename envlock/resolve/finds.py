"""The find-links folders as the resolver may see them.

A folder can hold several builds of torch. A requirement such as torch==2.13.0 admits 2.13.0+cpu and prefers it, so builds that the
wish does not name are hidden: uv gets a folder of links to the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from envlock.resolve.indexes import Indexes
from envlock.resolve.pages import is_remote
from envlock.resolve.target import Target


@dataclass(frozen=True, slots=True)
class FindLinks:
    """Folders of wheels, and the environment in which uv sees these."""

    folders: tuple[Path, ...]
    environment: Mapping[str, str] = field(repr=False)

    @classmethod
    def prepared(cls, indexes: Indexes, family: tuple[str, ...], labels: Set[str], views: Path) -> FindLinks:
        """The folders of `indexes`; where one has builds of the torch family with a label not in `labels`, a view without them is
        made below `views`. Folders named in uv's own configuration file stay as they are, since uv reads that itself."""
        places = [place for place in indexes.environment.get("UV_FIND_LINKS", "").split(",") if place]
        replaced: dict[Path, Path] = {}
        for place in places:
            if is_remote(place):
                continue
            folder = Path(place).absolute()
            wheels = sorted(path for path in folder.glob("*.whl"))
            kept = [path for path in wheels if not _is_other_build(path.name, family, labels)]
            if len(kept) < len(wheels):
                replaced[folder] = views / str(len(replaced))
                replaced[folder].mkdir(parents=True)
                for path in kept:
                    (replaced[folder] / path.name).symlink_to(path)
        shown = [str(replaced.get(Path(place).absolute(), place)) for place in places]
        environment = dict(indexes.environment)
        if shown:
            environment["UV_FIND_LINKS"] = ",".join(shown)
        return cls(tuple(replaced.get(folder, folder) for folder in indexes.folders), environment)

    def offers(self, requirement: Requirement, target: Target) -> bool:
        """Whether a folder has a wheel that satisfies the requirement on the target."""
        name = canonicalize_name(requirement.name)
        for folder in self.folders:
            for path in folder.glob("*.whl"):
                found = _name_and_version(path.name)
                suits = found is not None and found[0] == name and requirement.specifier.contains(found[1], prereleases=True)
                if suits and target.rank(path.name) is not None:
                    return True
        return False

    def has(self, file: str) -> bool:
        """Whether a folder has a file of this name."""
        return any((folder / file).is_file() for folder in self.folders)


def _is_other_build(file: str, family: tuple[str, ...], labels: Set[str]) -> bool:
    found = _name_and_version(file)
    if found is None or found[0] not in family:
        return False
    label = found[1].partition("+")[2]
    return bool(label) and label not in labels


def _name_and_version(file: str) -> tuple[str, str] | None:
    try:
        name, version, _, _ = parse_wheel_filename(file)
    except InvalidWheelFilename:
        return None
    return name, str(version)
