"""From a spec to a lock: the only code that locks over the network."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from envlock import bundle, stack
from envlock.catalogue import load
from envlock.environment import image_environment
from envlock.errors import Finding
from envlock.lock import DebianBase, ImageBase, Lock, Run, Settings, Wheel
from envlock.progress import Progress
from envlock.resolve.debian import resolve_base
from envlock.resolve.overlaps import check_overlaps
from envlock.resolve.python import PythonWish, newest_date, resolve_wheels
from envlock.sources import hash_requirements, keep_files, list_files
from envlock.spec import ArchiveBase as ArchiveWish
from envlock.spec import DebianBase as DebianWish
from envlock.spec import ImageBase as ImageWish
from envlock.spec import Spec
from envlock.store import Store

# The installer of the Dockerfile's route; the assembled route renders records with the same library.
INSTALLER = f"installer=={version('installer')}"


def resolve(spec: Spec, folder: Path, store: Store, progress: Progress, *, keep: Lock | None) -> tuple[Lock, tuple[Finding, ...]]:
    """Pin every input of a spec. `folder` is where the spec stands, `keep` an older lock whose pins are preferred.

    Returns the lock and the warnings that the stack gave rise to. Raises whatever made it impossible, all reasons at once where
    they can be found together.
    """
    solution = stack.solve(spec, load())
    files = list_files(spec, folder)
    requirements = hash_requirements(spec, folder)
    base = _resolve_base(solution.base, spec, store, progress, keep)
    wheels = resolve_wheels(_python_wish(spec, solution, folder), store, progress, keep=keep.wheels if keep else ())
    check_overlaps(wheels, store)
    findings = (*solution.findings, *stack.check_closure(wheels, solution))
    installer = _resolve_installer(solution, store, progress, keep)
    keep_files(files, folder, store)
    bundle.keep_bundle(store)
    made = Lock(
        name=spec.name,
        spec=spec.digest,
        tools={"installer": installer.version, "uv": version("uv")},
        epoch=max(base.date if isinstance(base, DebianBase) else 0, newest_date(wheels, store)),
        stack=solution.stack,
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
    return made, findings


def _resolve_base(
    wish: DebianWish | ImageWish | ArchiveWish, spec: Spec, store: Store, progress: Progress, keep: Lock | None
) -> DebianBase | ImageBase:
    if isinstance(wish, DebianWish):
        before = keep.base if keep and isinstance(keep.base, DebianBase) else None
        return resolve_base(wish.debian, spec.target.platform, (), store, progress, keep=before)
    raise NotImplementedError


def _python_wish(spec: Spec, solution: stack.Solution, folder: Path) -> PythonWish:
    return PythonWish(
        requirements=(solution.torch_requirement, *solution.family, *_others(spec.packages)),
        constraints=solution.constraints,
        requirement_files=tuple(folder / name for name in spec.requirements),
        python=solution.stack.python,
        platform=solution.stack.platform,
        glibc=solution.glibc,
        torch_index=solution.torch_index,
        torch_index_path=solution.torch_index_path,
    )


def _others(packages: Sequence[str]) -> tuple[str, ...]:
    return tuple(packages)


def _resolve_installer(solution: stack.Solution, store: Store, progress: Progress, keep: Lock | None) -> Wheel:
    wish = PythonWish(
        requirements=(INSTALLER,),
        constraints=(),
        requirement_files=(),
        python=solution.stack.python,
        platform=solution.stack.platform,
        glibc=solution.glibc,
        torch_index="default",
        torch_index_path="",
    )
    (wheel,) = resolve_wheels(wish, store, progress, keep=(keep.installer,) if keep else ())
    return wheel
