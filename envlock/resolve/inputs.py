"""All inputs of a lock, resolved one after the other from a spec and its stack."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envlock import bundle, stack
from envlock.catalogue import load
from envlock.environment import image_environment
from envlock.errors import Exit, Finding, Problems
from envlock.foundation import Foundation
from envlock.layers.apt import require_repeatable
from envlock.layers.canonical import Tree
from envlock.layers.wheels import open_groups, wheel_groups
from envlock.lock import Apt, DebianBase, ImageBase, Lock, Run, Settings
from envlock.progress import Progress, Silent
from envlock.resolve.apt import resolve_apt
from envlock.resolve.baseimage import fetch_base, resolve_archive, resolve_image
from envlock.resolve.debian import resolve_base
from envlock.resolve.python import PythonWish, newest_date, resolve_wheels
from envlock.sources import hash_requirements, keep_files, list_files
from envlock.spec import ArchiveBase as ArchiveWish
from envlock.spec import DebianBase as DebianWish
from envlock.spec import Spec
from envlock.stack import Solution
from envlock.store import Store

if TYPE_CHECKING:
    from envlock.engine import Engine

Base = DebianBase | ImageBase

INSTALLER = f"installer=={version('installer')}"
"""The library that installs wheels by the Dockerfile's route: the one that the assembled route asks what goes where."""


def resolve_base_of(spec: Spec, solution: Solution, folder: Path, store: Store, progress: Progress, keep: Lock | None) -> Base:
    """Pin the base that a stack stands on: Debian's packages, or an image out of a registry or an archive beside the spec.

    Raises as `resolve_base`, `resolve_archive`, `resolve_image` and `fetch_base`.
    """
    platform = spec.target.platform
    if isinstance(solution.base, DebianWish):
        before = keep.base if keep and isinstance(keep.base, DebianBase) else None
        return resolve_base(solution.base.debian, platform, solution.python_packages, store, progress, keep=before)
    if isinstance(solution.base, ArchiveWish):
        return resolve_archive(folder / solution.base.archive, solution.base.archive, platform, store, progress)
    kept = keep.base if keep and isinstance(keep.base, ImageBase) and keep.base.reference == solution.base.image else None
    if kept is not None:
        fetch_base(kept, store, progress)
        return kept
    return resolve_image(solution.base.image, platform, store, progress)


def resolve_on(
    base: Base,
    spec: Spec,
    solution: Solution,
    folder: Path,
    open_engine: Callable[[], Engine],
    store: Store,
    progress: Progress,
    keep: Lock | None = None,
) -> Lock:
    """Pin all other inputs of a spec. `solution` is its stack, `folder` where it stands, `keep` an older lock whose pins are preferred.

    Where nothing moved, the result is `keep` itself. The engine is asked for where the base's own apt must choose packages. Raises
    what made it impossible, all reasons at once where they can be found together.
    """
    files = list_files(spec, folder)
    requirements = hash_requirements(spec, folder)
    wheels = resolve_wheels(_wish(spec, solution, folder), store, progress, keep=keep.wheels if keep else ())
    _refuse(stack.check_closure(wheels, solution, load()))
    open_groups(wheel_groups(wheels), {wheel.sha256: store.path(wheel.sha256) for wheel in wheels}, solution.stack.python, Tree())
    (installer,) = resolve_wheels(_installer_wish(solution), store, Silent(), keep=(keep.installer,) if keep else ())
    apt = _resolve_apt(base, spec, solution, open_engine, store, progress, keep)
    numpy = next((wheel.version for wheel in wheels if wheel.name == "numpy"), None)
    keep_files(files, folder, store)
    bundle.keep_bundle(store)
    made = Lock(
        name=spec.name,
        spec=spec.digest,
        tools={"uv": version("uv")},
        epoch=max(_date(base), apt.date if apt else 0, newest_date(wheels, store)),
        stack=stack.completed(solution.stack, wheels),
        base=base,
        shipped=bundle.own_shipped(),
        apt=apt,
        wheels=wheels,
        installer=installer,
        requirements=requirements,
        files=files,
        determinism=Settings(**spec.determinism.model_dump()),
        environment=image_environment(spec, solution.stack, numpy, base.environment if isinstance(base, ImageBase) else {}),
        run=Run(**spec.run.model_dump()),
    )
    # Another uv that finds the same is no reason for another lock.
    if keep is not None and keep.model_copy(update={"tools": made.tools}) == made:
        return keep
    return made


def _date(base: Base) -> int:
    """Newest date of a base; an image's own `created` may be a day of the year 1 or of its rebuild, and says nothing."""
    return base.date if isinstance(base, DebianBase) else 0


def _resolve_apt(
    base: Base, spec: Spec, solution: Solution, open_engine: Callable[[], Engine], store: Store, progress: Progress, keep: Lock | None
) -> Apt | None:
    """The spec's packages, and those that bring Python to an image base without one; installed twice to see that they come out alike."""
    brought = () if isinstance(base, DebianBase) else solution.python_packages
    asked = tuple(dict.fromkeys((*brought, *spec.apt)))
    if not asked:
        return None
    steps = bundle.read_bundle(bundle.own_bundle()).below("templates/steps")
    before = keep.apt if keep else None
    with Foundation(base, None, spec.target.platform, steps, open_engine, store, progress) as foundation:
        container, tree = foundation.base_container, foundation.base_tree
        newest = max((node.mtime for node in tree.nodes.values()), default=0)
        apt = resolve_apt(asked, base, spec.target.platform, container, newest, store, progress, keep=before)
        if apt != before:
            with progress.track("installed twice, to see that nothing varies"):
                require_repeatable(apt, steps, container, tree, store)
    return apt


def _refuse(findings: tuple[Finding, ...]) -> None:
    if any(finding.severity == "error" for finding in findings):
        raise Problems(findings, Exit.NO_STACK)


def _wish(spec: Spec, solution: Solution, folder: Path) -> PythonWish:
    """The packages of the spec, with torch and its family as solved."""
    solved = (solution.torch_requirement, *solution.family)
    names = {canonicalize_name(Requirement(text).name) for text in solved}
    others = [text for text in spec.packages if canonicalize_name(Requirement(text).name) not in names]
    return PythonWish(
        requirements=(*solved, *others),
        constraints=solution.constraints,
        requirement_files=tuple(folder / name for name in spec.requirements),
        python=solution.stack.python,
        platform=solution.stack.platform,
        glibc=solution.glibc,
        torch_index=solution.torch_index,
        torch_index_path=solution.torch_index_path,
    )


def _installer_wish(solution: Solution) -> PythonWish:
    return PythonWish(requirements=(INSTALLER,), python=solution.stack.python, platform=solution.stack.platform, glibc=solution.glibc)
