"""All inputs of a lock, resolved one after the other from a spec and its stack."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envlock import bundle, stack
from envlock.catalogue import load
from envlock.environment import image_environment
from envlock.errors import Exit, Finding, Problems
from envlock.layers.canonical import Tree
from envlock.layers.wheels import open_groups, wheel_groups
from envlock.lock import DebianBase, ImageBase, Lock, Run, Settings
from envlock.progress import Progress
from envlock.resolve.debian import resolve_base
from envlock.resolve.python import PythonWish, newest_date, resolve_wheels
from envlock.sources import hash_requirements, keep_files, list_files
from envlock.spec import DebianBase as DebianWish
from envlock.spec import Spec
from envlock.stack import Solution
from envlock.store import Store

INSTALLER = f"installer=={version('installer')}"
"""The library that installs wheels by the Dockerfile's route: the one that the assembled route asks what goes where."""


def resolve(spec: Spec, solution: Solution, folder: Path, store: Store, progress: Progress, keep: Lock | None = None) -> Lock:
    """Pin every input of a spec. `solution` is its stack, `folder` where it stands, `keep` an older lock whose pins are preferred.

    Where nothing moved, the result is `keep` itself. Raises what made it impossible, all reasons at once where they can be found
    together.
    """
    files = list_files(spec, folder)
    requirements = hash_requirements(spec, folder)
    base = _resolve_base(solution, spec, store, progress, keep)
    wheels = resolve_wheels(_wish(spec, solution, folder), store, progress, keep=keep.wheels if keep else ())
    _refuse(stack.check_closure(wheels, solution, load()))
    open_groups(wheel_groups(wheels), {wheel.sha256: store.path(wheel.sha256) for wheel in wheels}, solution.stack.python, Tree())
    (installer,) = resolve_wheels(_installer_wish(solution), store, progress, keep=(keep.installer,) if keep else ())
    keep_files(files, folder, store)
    bundle.keep_bundle(store)
    made = Lock(
        name=spec.name,
        spec=spec.digest,
        tools={"uv": version("uv")},
        epoch=max(base.date if isinstance(base, DebianBase) else 0, newest_date(wheels, store)),
        stack=stack.completed(solution.stack, wheels),
        base=base,
        shipped=bundle.own_shipped(),
        wheels=wheels,
        installer=installer,
        requirements=requirements,
        files=files,
        determinism=Settings(**spec.determinism.model_dump()),
        environment=image_environment(spec, solution.stack, base.environment if isinstance(base, ImageBase) else {}),
        run=Run(**spec.run.model_dump()),
    )
    # Another uv that finds the same is no reason for another lock.
    if keep is not None and keep.model_copy(update={"tools": made.tools}) == made:
        return keep
    return made


def _refuse(findings: tuple[Finding, ...]) -> None:
    if any(finding.severity == "error" for finding in findings):
        raise Problems(findings, Exit.NO_STACK)


def _resolve_base(solution: Solution, spec: Spec, store: Store, progress: Progress, keep: Lock | None) -> DebianBase | ImageBase:
    if isinstance(solution.base, DebianWish):
        before = keep.base if keep and isinstance(keep.base, DebianBase) else None
        return resolve_base(solution.base.debian, spec.target.platform, solution.python_packages, store, progress, keep=before)
    what = f"bases of the kind `{next(iter(type(solution.base).model_fields))}` cannot be locked yet"
    raise Problems([Finding("base-kind", "error", what, hint="use a Debian base: `base: {debian: bookworm}`")], Exit.USAGE)


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
