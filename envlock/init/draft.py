"""From what sources say, or from what a host has, to the values of a spec: one value for each, and every contradiction told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import ValidationError

from envlock.catalogue import Catalogue
from envlock.catalogue.gpus import plain
from envlock.errors import Exit, Finding, Problems
from envlock.init.said import Claim, LeftOut, Said, Weight
from envlock.nvidia import Nvidia
from envlock.spec import Spec
from envlock.stack import Solution, solve, stack_rows
from envlock.stack.base import debian_bases

CONTRADICTION = "init-contradiction"
NO_TORCH = "envlock locks PyTorch environments only; say which release you want: --torch 2.5.1"


@dataclass(frozen=True, slots=True)
class Given:
    """What the person said on the command line; it beats every source."""

    name: str
    torch: str | None = None
    cuda: str | None = None
    python: str | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """A spec before it is written: its values as plain data, a remark for a key, and what is to be told.

    `problems` is what `check` says against it, None where it holds; `solution` the stack where it does.
    """

    values: dict[str, Any]
    remarks: dict[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    sources: tuple[str, ...] = ()
    solution: Solution | None = None
    problems: Problems | None = None


def for_host(nvidia: Nvidia, platform: str, given: Given, catalogue: Catalogue) -> Draft:
    """A draft for the GPUs and the driver of a host: the newest torch that serves them; without a GPU, one for the CPU."""
    remarks: dict[str, str] = {}
    target: dict[str, Any] = {}
    names, unknown = _gpu_names(nvidia, platform, catalogue)
    if names:
        target["gpus"] = names
        remarks["gpus"] = "this host's; locking stops where torch has no code for one of them"
    if nvidia.driver and nvidia.gpus:
        target["driver"] = nvidia.driver
        remarks["driver"] = "this host's; write the oldest among your hosts"
    if platform != "linux/amd64":
        target["platform"] = platform
    cuda = given.cuda if given.cuda or target.get("gpus") or target.get("driver") else "cpu"
    if cuda == "cpu" and given.cuda is None:
        remarks["cuda"] = "no NVIDIA GPU was seen on this host"
    torch = given.torch or _newest((), cuda, target, given.python, catalogue)
    if given.torch is None:
        remarks["torch"] = "the newest in envlock's catalogue that serves these hosts"
    stack = {"torch": torch} | ({"cuda": cuda} if cuda else {})
    python = {"python": given.python} if given.python else {}
    draft = Draft({"name": given.name, **python, "stack": stack, "target": target, "packages": ["numpy"]}, remarks, tuple(unknown))
    return _with_python(_checked(_valid(draft), catalogue), "", catalogue)


def _gpu_names(nvidia: Nvidia, platform: str, catalogue: Catalogue) -> tuple[list[str], list[Finding]]:
    """How the spec names a host's GPUs: by model where the catalogue has it, else by compute capability."""
    found: list[str] = []
    unknown = []
    for gpu in nvidia.gpus:
        capability = f"sm_{gpu.capability.replace('.', '')}" if gpu.capability else None
        for name in (gpu.name, capability):
            if name and _known(name, platform, catalogue):
                found.append(gpu_word(name))
                break
        else:
            what = f"{gpu.name} is not a GPU that envlock knows"
            unknown.append(
                Finding("gpu-unknown", "warning", what, f"GPU {gpu.index}", hint="write its compute capability, as sm_90, under gpus")
            )
    return list(dict.fromkeys(found)), unknown


def _known(name: str, platform: str, catalogue: Catalogue) -> bool:
    try:
        stack_rows(catalogue, [name], platform=platform)
    except Problems:
        return False
    return True


def gpu_word(name: str) -> str:
    """A GPU's name as a spec has it: `NVIDIA A100-SXM4-80GB` is a100."""
    return name if name.startswith("sm_") else plain(name)


def from_sources(said: Said, sources: Sequence[str], given: Given, catalogue: Catalogue) -> Draft:
    """A draft from what files say. Raises `Problems` (`torch-missing`) where they name no torch and none was given."""
    remarks: dict[str, str] = {}
    findings: list[Finding] = []
    torch = _torch(said, given, findings)
    cuda = given.cuda or _cuda(said, torch, findings)
    python, bounds = _python(said, findings)
    python = given.python or python
    base = said.bases[-1] if said.bases else None
    if torch is None or not torch.value[:1].isdigit():
        wanted = [torch.value] if torch is not None else []
        below = next((claim.value for claim in said.cuda if claim.weight == Weight.BASE), None)
        choice = _newest(wanted, cuda or below, {}, python, catalogue) or _newest(wanted, cuda, {}, python, catalogue)
        remarks["torch"] = f"not pinned in {torch.where if torch else sources[0]}; the newest release that fits the rest"
        value = choice or catalogue.releases()[-1]
        if cuda is None and below is not None and choice == _newest(wanted, below, {}, python, catalogue):
            cuda = ".".join(below.split(".")[:2])
            remarks["cuda"] = "that of the source's base"
    else:
        value = torch.value
    packages = _packages(said, findings)
    values: dict[str, Any] = {"name": given.name, "stack": {"torch": value} | ({"cuda": cuda} if cuda else {})}
    if python:
        values["python"] = python
    if base is not None:
        values["base"] = _base(base.value, catalogue)
    run = {key: text for key, text in (("user", said.user), ("workdir", said.workdir)) if text and text != "/"}
    values |= {"packages": packages, "apt": list(dict.fromkeys(claim.value for claim in said.apt))}
    values |= {"env": {name: claim.value for name, claim in said.env.items()}, "run": run}
    values["files"] = [{"from": source, "to": to} for source, to in said.files]
    draft = Draft({key: part for key, part in values.items() if part}, remarks, tuple(findings), tuple(said.left_out), tuple(sources))
    whole = _checked(_valid(draft), catalogue)
    if base is not None and whole.problems is not None:
        whole = _without_base(whole, base, catalogue)
    return _with_python(whole, bounds, catalogue)


def _torch(said: Said, given: Given, findings: list[Finding]) -> Claim | None:
    """The statement that decides the release of torch; None where torch is wanted in any release."""
    if given.torch:
        return Claim(given.torch, f"--torch {given.torch}", "the command line")
    if not said.torch or all(claim.weight == Weight.ELSEWHERE for claim in said.torch):
        others = [
            claim.words for claim in said.packages if canonicalize_name(Requirement(claim.words).name) in ("jax", "jaxlib", "tensorflow")
        ]
        ngc = next((left.what for left in said.left_out if "nvidia/pytorch" in left.what), None)
        why = f"{ngc} brings NVIDIA's own build of torch, of which no wheel is published" if ngc else ""
        why = f"they name {', '.join(others[:3])}" if others else why
        raise Problems([Finding("torch-missing", "error", "the sources name no torch", "", why, NO_TORCH)], Exit.NO_STACK)
    exact = [claim for claim in said.torch if claim.value[:1].isdigit()]
    _tell("releases of torch", exact, _same_release, findings)
    deciding = [claim for claim in exact if claim.weight != Weight.ELSEWHERE]
    if deciding:
        return max(deciding, key=lambda claim: claim.weight)
    return next((claim for claim in said.torch if claim.value), None)


def _cuda(said: Said, torch: Claim | None, findings: list[Finding]) -> str | None:
    """The CUDA version that a source decides, as `12.4`; None where torch's wheel is to decide."""
    image = {claim.value for claim in said.torch if claim.weight == Weight.IMAGE}
    of_image = torch is not None and torch.value in image
    floor = Weight.IMAGE if of_image or (torch is None and image) else Weight.TOOL
    deciding = [claim for claim in said.cuda if claim.weight >= floor]
    taken = max(deciding, key=lambda claim: claim.weight) if deciding else None
    _tell("CUDA versions", said.cuda, _same_minor, findings, taken)
    return None if taken is None else ".".join(taken.value.split(".")[:2])


def _python(said: Said, findings: list[Finding]) -> tuple[str | None, str]:
    """The Python that is named (major and minor), and the bounds that others set."""
    exact = [claim for claim in said.python if claim.value[:1].isdigit()]
    _tell("versions of Python", exact, _same_minor, findings, exact[-1] if exact else None)
    bounds = ",".join(claim.value for claim in said.python if claim.value and not claim.value[:1].isdigit())
    value = ".".join(exact[-1].value.split(".")[:2]) if exact else None
    return (value if value and "." in value else None), bounds


def _same_minor(left: str, right: str) -> bool:
    return left.split(".")[:2] == right.split(".")[:2]


def _same_release(left: str, right: str) -> bool:
    shorter, longer = sorted((left.split("+")[0].split("."), right.split("+")[0].split(".")), key=len)
    return longer[: len(shorter)] == shorter


def _tell(what: str, claims: Sequence[Claim], same: Any, findings: list[Finding], taken: Claim | None = None) -> None:
    """Add a finding where the statements are not all the same."""
    if all(same(claims[0].value, claim.value) for claim in claims):
        return
    values = list(dict.fromkeys(claim.value for claim in claims))
    places = list(dict.fromkeys(f"{claim.words} ({claim.where})" for claim in claims))
    chosen = taken or max((claim for claim in claims if claim.weight > Weight.BASE), key=lambda claim: claim.weight, default=None)
    hint = f"{chosen.value} was taken, from {chosen.words}; change it in the spec where you meant another" if chosen else ""
    if chosen is None:
        hint = "none was taken: torch's own wheel decides; name one in the spec where you meant it"
    named = ", ".join(values[:-1]) + f" and {values[-1]}"
    text = f"the sources name {len(values)} {what}: {named}"
    findings.append(Finding(CONTRADICTION, "warning", text, claims[0].where, "; ".join(places), hint))


def _packages(said: Said, findings: list[Finding]) -> list[str]:
    """Each project once for each text; where several exact versions are named, the last, as pip would have it."""
    by_name: dict[tuple[str, str], list[Claim]] = {}
    for claim in said.packages:
        requirement = Requirement(claim.value)
        by_name.setdefault((canonicalize_name(requirement.name), str(requirement.marker or "")), []).append(claim)
    found = []
    for (name, _), claims in by_name.items():
        exact = [claim for claim in claims if "==" in claim.value]
        if exact:
            _tell(
                f"versions of {name}", [replace(claim, value=str(Requirement(claim.value).specifier)) for claim in exact], _equal, findings
            )
            found.append(exact[-1].value)
        else:
            bounded = [claim.value for claim in claims if Requirement(claim.value).specifier]
            found += list(dict.fromkeys(bounded or [claims[0].value]))
    return found


def _equal(left: str, right: str) -> bool:
    return left == right


def _base(image: str, catalogue: Catalogue) -> dict[str, str]:
    name, _, tag = image.partition(":")
    suites = {suite for row in debian_bases(catalogue) for suite in row.names}
    suite = tag.removesuffix("-slim")
    return (
        {"debian": suite} if name.removeprefix("docker.io/").removeprefix("library/") == "debian" and suite in suites else {"image": image}
    )


def _newest(wanted: Iterable[str], cuda: str | None, target: dict[str, Any], python: str | None, catalogue: Catalogue) -> str:
    """The newest release that satisfies these specifiers and has a build for the rest; empty where none does."""
    allowed = SpecifierSet()
    for text in wanted:
        try:
            allowed &= SpecifierSet(text)
        except InvalidSpecifier:
            continue
    rows = stack_rows(catalogue, target.get("gpus", ()), target.get("driver"), python, target.get("platform", "linux/amd64"))
    minor = None if cuda is None else ".".join(cuda.split(".")[:2])
    wants_cuda = minor is None
    fitting = (row for row in rows if (row.cuda == minor if minor is not None else row.cuda != "cpu") and allowed.contains(row.torch))
    found = next(fitting, None)
    return found.torch if found is not None else (catalogue.releases()[-1] if not rows and wants_cuda else "")


def _valid(draft: Draft) -> Draft:
    """The draft without parts that no spec may hold; each is told with the reason."""
    values, left = dict(draft.values), list(draft.left_out)
    for _ in range(100):
        try:
            Spec.model_validate(values)
            break
        except ValidationError as error:
            detail = error.errors(include_url=False)[0]
            key, *rest = detail["loc"]
            why = str((detail.get("ctx") or {}).get("what") or detail["msg"])
            part = values[str(key)]
            if isinstance(part, list) and rest and isinstance(rest[0], int):
                left.append(LeftOut(f"{key}: {part[rest[0]]}", "", why))
                values[str(key)] = [item for number, item in enumerate(part) if number != rest[0]]
            elif isinstance(part, dict) and rest and rest[0] in part and key != "stack":
                left.append(LeftOut(f"{key}: {rest[0]}", "", why))
                values[str(key)] = {name: item for name, item in part.items() if name != rest[0]}
            elif key in ("stack", "name", "python"):
                hint = "say it with --torch, --cuda, --python or --name"
                raise Problems([Finding("spec-value", "error", why, str(key), hint=hint)], Exit.USAGE) from None
            else:
                left.append(LeftOut(f"{key}: {part}", "", why))
                del values[str(key)]
    return replace(draft, values={key: part for key, part in values.items() if part}, left_out=tuple(left))


def _checked(draft: Draft, catalogue: Catalogue) -> Draft:
    """The draft with what `check` says of it."""
    try:
        return replace(draft, solution=solve(Spec.model_validate(draft.values), catalogue), problems=None)
    except Problems as problems:
        return replace(draft, solution=None, problems=problems)


def _without_base(draft: Draft, base: Claim, catalogue: Catalogue) -> Draft:
    """The draft on a base of envlock's own choice, where the source's base is what stands in the way."""
    values = {key: part for key, part in draft.values.items() if key != "base"}
    other = _checked(replace(draft, values=values), catalogue)
    if other.problems is not None or draft.problems is None:
        return draft
    why = f"{draft.problems.what}; envlock chooses a base that serves"
    return replace(other, left_out=(LeftOut(base.words, base.where, why), *draft.left_out))


def _with_python(draft: Draft, bounds: str, catalogue: Catalogue) -> Draft:
    """The draft with its Python written out, inside the bounds that the sources set."""
    if draft.solution is None or "python" in draft.values:
        return draft
    try:
        allowed = SpecifierSet(bounds)
    except InvalidSpecifier:
        allowed = SpecifierSet()
    known = [row.python for row in debian_bases(catalogue) if row.python] + [row.python for row in catalogue.images]
    for python in (draft.solution.stack.python, *known):
        if _allows(allowed, python):
            own = draft.solution.origins.get("python", "").removeprefix("left out; ") if python == draft.solution.stack.python else ""
            remarks = draft.remarks | {"python": own.partition(",")[0] or f"the sources ask for {bounds}"}
            tried = _checked(replace(draft, values=draft.values | {"python": python}, remarks=remarks), catalogue)
            if tried.problems is None:
                return tried
    return draft


def _allows(allowed: SpecifierSet, python: str) -> bool:
    """Whether some patch release of a Python is allowed; `>=3.11.4` allows 3.11."""
    try:
        return any(allowed.contains(Version(f"{python}.{patch}")) for patch in (0, 99))
    except InvalidVersion:
        return False
