"""Many hosts' reports side by side: which host, GPU or driver computes other bits than the rest under the same key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from envlock.errors import Exit
from envlock.reference import Key, key_of
from envlock.report import Report

Outcome = Literal["equal", "different", "inconclusive"]


@dataclass(frozen=True, slots=True)
class Subject:
    """One device of one report; `name` tells it apart from all others."""

    name: str
    host: str
    device: str
    model: str
    uuid: str
    driver: str
    kernel: str
    cpu: str


@dataclass(frozen=True, slots=True)
class Difference:
    """One fingerprint on which subjects with the same key disagree.

    `odd` are those without the most frequent value; where two are equally frequent, all of them. `separates` names the facts (host,
    GPU, driver …) that differ exactly as the values do.
    """

    check: str
    title: str
    fingerprint: str
    values: dict[str, str]
    odd: tuple[str, ...]
    separates: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StatusDifference:
    """One check that fails on some subjects and not on others."""

    check: str
    title: str
    statuses: dict[str, str]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a comparison found. `compared` counts the keys that two or more subjects share."""

    outcome: Outcome
    summary: str
    subjects: tuple[Subject, ...]
    compared: int
    differences: tuple[Difference, ...]
    statuses: tuple[StatusDifference, ...]

    @property
    def exit(self) -> Exit:
        """The exit status."""
        return {"equal": Exit.OK, "different": Exit.DOES_NOT_HOLD, "inconclusive": Exit.INCONCLUSIVE}[self.outcome]

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "outcome": self.outcome,
            "summary": self.summary,
            "compared": self.compared,
            "subjects": [asdict(subject) for subject in self.subjects],
            "differences": [asdict(difference) for difference in self.differences],
            "statuses": [asdict(status) for status in self.statuses],
        }


def compare(reports: Sequence[Report]) -> Comparison:
    """Compare reports of one image on many hosts, or of many GPUs."""
    subjects: dict[tuple[int, str], Subject] = {}
    for number, report in enumerate(reports):
        for device in dict.fromkeys(check.device for check in report.checks):
            subjects[number, device] = _subject(report, device)
    subjects = _told_apart(subjects)
    values: dict[Key, dict[str, str]] = {}
    titles: dict[str, str] = {}
    statuses: dict[tuple[str, str], dict[str, str]] = {}
    for number, report in enumerate(reports):
        for check in report.checks:
            titles[check.id] = check.title
            subject = subjects[number, check.device]
            statuses.setdefault((check.id, "cpu" if check.device == "cpu" else "gpu"), {})[subject.name] = check.status
            for fingerprint in check.fingerprints if check.status == "pass" else ():
                values.setdefault(key_of(check.id, fingerprint.name, fingerprint.depends), {})[subject.name] = fingerprint.value
    shared = {key: found for key, found in values.items() if len(found) > 1}
    by_name = {subject.name: subject for subject in subjects.values()}
    differences = tuple(_difference(key, found, titles, by_name) for key, found in shared.items() if len(set(found.values())) > 1)
    odd_statuses = tuple(
        StatusDifference(check, titles[check], found)
        for (check, _), found in statuses.items()
        if "fail" in found.values() and {"pass", "unsupported"} & set(found.values())
    )
    outcome, summary = _judge(len(shared), differences, odd_statuses, reports)
    return Comparison(outcome, summary, tuple(subjects.values()), len(shared), differences, odd_statuses)


def _judge(
    compared: int, differences: Sequence[Difference], statuses: Sequence[StatusDifference], reports: Sequence[Report]
) -> tuple[Outcome, str]:
    if differences:
        odd = Counter(name for difference in differences for name in difference.odd)
        facts = Counter(fact for difference in differences for fact in difference.separates)
        named = ", ".join(name for name, _ in odd.most_common(4))
        why = f"; what differs with them: {', '.join(fact for fact, _ in facts.most_common(4))}" if facts else ""
        return "different", f"{len(differences)} of {compared} fingerprints differ under the same key, on {named}{why}"
    if statuses:
        return "different", f"{len(statuses)} checks fail on some and not on others: {', '.join(item.title for item in statuses[:4])}"
    if not compared:
        fields = {name: {getattr(report.image, name) for report in reports} for name in ("image_digest", "level")}
        other = [name.replace("_", " ") for name, found in fields.items() if len(found) > 1]
        why = f"they have another {' and '.join(other)}" if other else "no two devices have the same model and settings"
        return "inconclusive", f"nothing can be compared: {why}"
    return "equal", f"all {compared} fingerprints that two or more share are equal"


def _difference(key: Key, found: dict[str, str], titles: dict[str, str], subjects: dict[str, Subject]) -> Difference:
    counts = Counter(found.values()).most_common()
    (usual, most), (_, second) = counts[:2]
    odd = tuple(name for name, value in found.items() if most == second or value != usual)
    return Difference(key[0], titles[key[0]], key[1], found, odd, tuple(_separating(found, subjects)))


_FACTS: tuple[tuple[str, Callable[[Subject], str]], ...] = (
    ("driver", lambda s: s.driver),
    ("kernel", lambda s: s.kernel),
    ("CPU", lambda s: s.cpu),
    ("host", lambda s: s.host),
    ("GPU", lambda s: s.uuid),
)


def _separating(found: dict[str, str], subjects: dict[str, Subject]) -> list[str]:
    """Facts of which each value goes with one fingerprint only, and which are not the same everywhere."""
    names = []
    for name, fact in _FACTS:
        pairs = {(fact(subjects[subject]), value) for subject, value in found.items()}
        facts = {fact(subjects[subject]) for subject in found}
        if "" not in facts and 1 < len(facts) == len(pairs):
            listed = ", ".join(sorted(facts)) if len(facts) <= 4 else f"{len(facts)} of them"
            names.append(f"{name} ({listed})")
    return names


def _subject(report: Report, device: str) -> Subject:
    host = report.host
    gpu = next((gpu for gpu in host.gpus if gpu.device == device), None)
    model = gpu.name if gpu is not None else host.cpu if device == "cpu" else ""
    uuid = gpu.uuid or "" if gpu is not None else ""
    driver = (host.driver or "") if device != "cpu" else ""
    return Subject(f"{host.name} {device}", host.name, device, model, uuid, driver, host.kernel, host.cpu)


def _told_apart(subjects: dict[tuple[int, str], Subject]) -> dict[tuple[int, str], Subject]:
    """Subjects whose names are all different: reports of one host get their number."""
    counts = Counter(subject.name for subject in subjects.values())
    return {
        (number, device): replace(subject, name=f"{subject.name} (report {number + 1})") if counts[subject.name] > 1 else subject
        for (number, device), subject in subjects.items()
    }


def to_text(comparison: Comparison) -> str:
    """The comparison for people: the verdict first."""
    word = {"equal": "EQUAL", "different": "DIFFERENT", "inconclusive": "INCONCLUSIVE"}[comparison.outcome]
    lines = [f"{word}  {comparison.summary}", ""]
    width = max((len(subject.name) for subject in comparison.subjects), default=0)
    for subject in comparison.subjects:
        facts = " · ".join(part for part in (subject.model, subject.uuid, subject.driver and f"driver {subject.driver}") if part)
        lines.append(f"  {subject.name:<{width}}  {facts}")
    for difference in comparison.differences:
        lines += ["", f"{difference.title} ({difference.fingerprint})"]
        for name, value in difference.values.items():
            lines.append(f"  {name:<{width}}  {value[:16]}{'  <- differs' if name in difference.odd else ''}")
        lines += [f"  what differs with it: {'; '.join(difference.separates)}"] if difference.separates else []
    for status in comparison.statuses:
        lines += ["", status.title, *(f"  {name:<{width}}  {value}" for name, value in status.statuses.items())]
    return "\n".join(lines) + "\n"
