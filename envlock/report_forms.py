"""A report in the forms that people and their tools read: text, JUnit, GitHub annotations, Markdown, one HTML page."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from io import StringIO
from pathlib import Path
from typing import TextIO
from xml.etree import ElementTree

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from envlock.bundle import templates_folder
from envlock.console import github_annotation, paint
from envlock.errors import Finding, Severity
from envlock.report import Check, Remark, Report, to_json
from envlock.report_charts import cost_chart, spread_chart
from envlock.store import write_atomically

WIDTH = 100

OUTCOME_WORDS = {"raises": "raises", "differs": "varies", "not-discriminating": "unseen"}
"""How people read what was seen where the status alone does not tell: an operation without a deterministic kernel raises, one that
differs where the level allows it varies, and a negative control that could not be provoked left its difference unseen."""

VERDICTS = {"pass": "HOLDS", "fail": "DOES NOT HOLD", "inconclusive": "INCONCLUSIVE", "host-not-ready": "HOST NOT READY"}

_VERDICT_STYLES = {"pass": "ok", "fail": "error", "inconclusive": "warning", "host-not-ready": "warning"}


def word_of(check: Check) -> str:
    """The one word for a check's outcome."""
    if check.status in ("fail", "not-run"):
        return "FAIL" if check.status == "fail" else "not run"
    return OUTCOME_WORDS.get(check.outcome or "") or {"pass": "ok", "unsupported": "n/a"}[check.status]


def style_of(check: Check) -> str:
    """The style that goes with it: ok, error, warning, info or dim."""
    if check.status == "pass" and check.outcome == "differs":
        return "warning"
    return {"pass": "ok", "fail": "error", "unsupported": "info", "not-run": "dim"}[check.status]


def to_text(report: Report, stream: TextIO | None = None) -> str:
    """The report for a terminal: the verdict first, then each check in one line, faults in full. Colour only where `stream` wants it."""
    out = stream or StringIO()
    lines = [f"{paint(VERDICTS[report.verdict], _VERDICT_STYLES[report.verdict], out)}  {report.image.reference}"]
    lines += textwrap.wrap(report.summary, WIDTH, initial_indent="  ", subsequent_indent="  ")
    lines.append("")
    lines += [f"  {label:<8} {text}" for label, text in _facts(report)]
    several = len({check.device for check in report.checks} - {"cpu"}) > 1
    for group, checks in _grouped(report.checks):
        lines += ["", paint(group.upper(), "bold", out)]
        for check in checks:
            lines += _check_lines(check, out, show_device=several and check.device != "cpu")
    odd = [variable for variable in report.environment if not variable.holds]
    if odd:
        lines += ["", paint("ENVIRONMENT THAT DIFFERS FROM THE LOCK", "bold", out)]
        lines += [f"  {v.name}: locked {v.locked!r}, in the image {v.configured!r}, found {v.found!r}" for v in odd]
    if report.remarks:
        lines += ["", paint("ALSO", "bold", out)]
        for remark in report.remarks:
            lines += _wrapped(f"{remark.severity}: {remark.what}", "  ", "    ")
            lines += _wrapped(remark.why, "    ", "    ")
            lines += _wrapped(f"do: {remark.hint}", "    ", "    ") if remark.hint else []
    counts = ", ".join(f"{number} {word}" for word, number in counted(report.checks).items())
    lines += ["", f"{counts}; {report.run.seconds:.0f} s. Repeat it with:", f"  {report.run.command}"]
    return "\n".join(lines) + "\n"


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    image, host, run = report.image, report.host, report.run
    yield "image", image.image_digest or "(the engine does not tell its digest)"
    yield "lock", image.lock_digest or "(not built by envlock)"
    versions = " · ".join(f"{name} {version}" for name, version in image.versions.items())
    if versions:
        yield "has", textwrap.shorten(versions, WIDTH - 11, placeholder=" …")
    yield "level", " · ".join(part for part in (image.level or "none", f"self-test {run.selftest}", f"envlock {run.envlock}") if part)
    cpu = f"{host.cpu} ({', '.join(part for part in (host.isa_level, host.cores and f'{host.cores} cores') if part)})"
    yield "host", " · ".join(part for part in (host.name, cpu, host.driver and f"driver {host.driver}") if part)
    for gpu in host.gpus:
        parts = (gpu.device, gpu.name, gpu.capability and f"capability {gpu.capability}", gpu.sm_count and f"{gpu.sm_count} SMs", gpu.mig)
        yield "gpu", " · ".join(str(part) for part in parts if part)
    if not host.gpus:
        yield "gpu", "none"


def _check_lines(check: Check, out: TextIO, *, show_device: bool) -> list[str]:
    word = paint(f"{word_of(check):<7}", style_of(check), out)
    title = f"{check.title} ({check.device})" if show_device else check.title
    if check.status == "fail":
        lines = _wrapped(title, f"  {word}  ", " " * 11)
        lines += _wrapped(check.why, " " * 11, " " * 11)
        return lines + (_wrapped(f"do: {check.hint}", " " * 11, " " * 15) if check.hint else [])
    mark = check.fingerprints[0].value[:12] if check.fingerprints else ""
    room = WIDTH - 11 - max(len(title), 44) - 2 - len(mark) - 1
    why = textwrap.shorten(" ".join(check.why.split()), room, placeholder="…") if check.why and room > 12 else ""
    why = "" if why == "…" else why
    return [f"  {word}  {title:<44}  {why:<{max(room, 0)}} {mark}".rstrip()]


def _grouped(checks: Iterable[Check]) -> list[tuple[str, list[Check]]]:
    groups: dict[str, list[Check]] = {}
    for check in checks:
        groups.setdefault(check.group, []).append(check)
    return list(groups.items())


def counted(checks: Iterable[Check]) -> dict[str, int]:
    """How many checks have each word, the good ones first."""
    order = ("ok", "FAIL", "raises", "varies", "unseen", "n/a", "not run")
    words = [word_of(check) for check in checks]
    return {word: words.count(word) for word in order if word in words}


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return [
        line
        for part in text.splitlines()
        for line in textwrap.wrap(part, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False)
    ]


def to_junit(report: Report) -> str:
    """JUnit XML, one test case for each check: what CI systems show. A check that could not run is `skipped`, never passed."""
    counts = report.counts()
    head = {
        "name": f"envlock verify {report.image.reference}",
        "tests": str(len(report.checks)),
        "failures": str(counts.get("fail", 0)),
        "errors": str(sum(remark.severity == "error" for remark in report.remarks)),
        "skipped": str(counts.get("not-run", 0) + counts.get("unsupported", 0)),
        "time": f"{report.run.seconds:.3f}",
        "timestamp": report.run.started,
        "hostname": report.host.name,
    }
    suites = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(suites, "testsuite", head)
    properties = ElementTree.SubElement(suite, "properties")
    facts = {"image_digest": report.image.image_digest, "lock_digest": report.image.lock_digest, "driver": report.host.driver}
    facts |= {"selftest": report.run.selftest, "gpus": ", ".join(gpu.name for gpu in report.host.gpus), "command": report.run.command}
    for name, value in facts.items():
        ElementTree.SubElement(properties, "property", {"name": name, "value": printable(value or "")})
    for check in report.checks:
        name = check.title if check.device == "cpu" else f"{check.title} [{check.device}]"
        attributes = {"classname": f"envlock.{check.group}", "name": printable(name), "time": f"{check.seconds or 0:.3f}"}
        case = ElementTree.SubElement(suite, "testcase", attributes)
        if check.status == "fail":
            failure = ElementTree.SubElement(case, "failure", {"message": printable(check.why[:300]), "type": check.fault or "image"})
            failure.text = printable("\n".join(part for part in (check.proves, check.why, check.hint) if part))
        elif check.status in ("not-run", "unsupported"):
            ElementTree.SubElement(case, "skipped", {"message": printable(f"{word_of(check)}: {check.why}"[:300])})
        elif check.why:
            ElementTree.SubElement(case, "system-out").text = printable(check.why)
    for remark in report.remarks:
        if remark.severity == "error":
            case = ElementTree.SubElement(suite, "testcase", {"classname": "envlock.run", "name": remark.id, "time": "0.000"})
            error = ElementTree.SubElement(case, "error", {"message": printable(remark.what[:300]), "type": remark.fault or "run"})
            error.text = printable("\n".join(part for part in (remark.what, remark.why, remark.hint) if part))
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def printable(text: str) -> str:
    """Text without the control characters that XML forbids; output of a container may hold any."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "�", text)


def to_github(report: Report) -> str:
    """GitHub's workflow commands: an annotation for the verdict, and for each check that fails or could not run."""
    levels: dict[str, Severity] = {"pass": "info", "fail": "error"}
    level: Severity = levels.get(report.verdict, "warning")
    head = Finding(f"verify-{report.verdict}", level, f"{report.image.reference}: {report.summary}", hint=report.run.command)
    found = [head, *(_finding_of(remark) for remark in report.remarks if remark.severity != "info")]
    for check in report.checks:
        if check.status in ("fail", "not-run"):
            level = "error" if check.status == "fail" else "warning"
            what = f"{check.title} ({word_of(check)}, {check.device})"
            found.append(Finding(f"check-{check.id}", level, what, why=check.why, hint=check.hint))
    return "".join(f"{github_annotation(finding)}\n" for finding in found)


def _finding_of(remark: Remark) -> Finding:
    return Finding(remark.id, remark.severity, remark.what, remark.where, remark.why, remark.hint)


def to_markdown(report: Report) -> str:
    """Markdown, for a job's summary or a pull request."""
    return _render("report.md.j2", report)


def to_html(report: Report) -> str:
    """One self-contained page: no script, nothing loaded from elsewhere."""
    return _render("report.html.j2", report)


def _render(template: str, report: Report) -> str:
    environment = Environment(
        loader=FileSystemLoader(templates_folder() / "report"),
        autoescape=template.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["cell"] = markdown_cell
    devices = sorted({check.device for check in report.checks}, key=lambda device: (device != "cpu", device))
    environment.globals |= {"word_of": word_of, "style_of": style_of}
    return environment.get_template(template).render(
        report=report,
        verdict=VERDICTS[report.verdict],
        facts=list(_facts(report)),
        counts=counted(report.checks),
        groups=matrix(report.checks),
        failed=[check for check in report.checks if check.status == "fail"],
        devices=devices,
        cost=cost_chart(report.measurements),
        spread=spread_chart(report.measurements),
    )


Row = tuple[str, dict[str, Check]]


def matrix(checks: Iterable[Check]) -> list[tuple[str, list[Row], dict[str, int]]]:
    """Checks of one name side by side: group, its rows (title, check by device), and how many checks have each word."""
    groups: dict[str, dict[str, dict[str, Check]]] = {}
    for check in checks:
        title = re.sub(r", (cpu|gpu|cuda:\d+)$", "", check.title)
        groups.setdefault(check.group, {}).setdefault(title, {})[check.device] = check
    return [
        (group, list(rows.items()), counted(check for row in rows.values() for check in row.values())) for group, rows in groups.items()
    ]


def markdown_cell(text: str) -> str:
    """Text for one cell of a Markdown table: one line, no markup of its own."""
    flat = " ".join(text.split())
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", flat)


def write_all(report: Report, folder: Path) -> tuple[Path, ...]:
    """Write report.json, report.txt, junit.xml, report.md and report.html into a folder, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    forms = {
        "report.json": to_json(report),
        "report.txt": to_text(report),
        "junit.xml": to_junit(report),
        "report.md": to_markdown(report),
        "report.html": to_html(report),
    }
    for name, text in forms.items():
        write_atomically(folder / name, text.encode())
    return tuple(folder / name for name in forms)
