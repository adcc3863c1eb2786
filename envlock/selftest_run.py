"""One run of the self-test in one container: started, followed line by line, and what became of it.

An image that envlock did not build gets the self-test copied in, and the Python in it that has torch is found.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from envlock.bundle import own_bundle, read_bundle
from envlock.diagnose import UNKNOWN, Diagnosis, Evidence, diagnose, diagnose_exit
from envlock.doctor import Needs
from envlock.engine import Engine, EngineImage, Gpus
from envlock.errors import EnvlockError, Exit, Finding, exit_code_of
from envlock.lock import Lock
from envlock.progress import Progress
from envlock.report import Check, Fault, Remark
from envlock.transcript import Begun, Done, Started, Transcript

GUEST_LIB = "/opt/envlock-selftest"
DEFAULT_SHM = "1g"
SCRATCH = "/tmp"
NO_TORCH = 42

CACHES = {"TORCHINDUCTOR_CACHE_DIR": f"{SCRATCH}/inductor", "TRITON_CACHE_DIR": f"{SCRATCH}/triton"}
"""Where compiled kernels go: the only folder that can be written to, mounted so that what is in it may be executed."""

FIND_PYTHON = f"""
for python in python python3 /opt/venv/bin/python /opt/conda/bin/python /usr/local/bin/python3 /usr/bin/python3; do
  if "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' 2>/dev/null; then
    exec "$python" -c 'import sys; sys.path.append("{GUEST_LIB}"); from envlock.selftest.__main__ import main; sys.exit(main())' "$@"
  fi
done
exit {NO_TORCH}
"""
"""Finds the Python that has torch in an image of somebody else, and runs the self-test with it."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to verify. `gpus`: `auto` (all, where image and host have CUDA), `all`, `none`, or devices to test one after the other.

    `level`, `groups`, `nproc`, `repeats` and `extra` go to the self-test; `timeout` is in seconds and for each container.
    """

    gpus: tuple[str, ...] = ("auto",)
    shm_size: str | None = None
    user: str | None = None
    nproc: int | None = None
    groups: tuple[str, ...] = ()
    level: str | None = None
    repeats: int | None = None
    extra: tuple[str, ...] = ()
    timeout: float = 7200.0
    environment: Mapping[str, str] = field(default_factory=dict)


class SelfTestRun:
    """One container that runs the self-test, and what became of it."""

    def __init__(
        self, engine: Engine, image: EngineImage, lock: Lock | None, gpus: Gpus | None, options: Options, progress: Progress, needs: Needs
    ) -> None:
        self._engine = engine
        self._image = image
        self._lock = lock
        self._options = options
        self._progress = progress
        self._needs = needs
        self.gpus = gpus
        named = gpus.devices[0] if gpus and gpus.devices != ("all",) else "0"
        self.transcript = Transcript(device=f"cuda:{named}" if named.isdigit() else f"cuda:0 ({named})")
        self.remarks: tuple[Remark, ...] = ()

    def run(self) -> None:
        """Run it to its end. What stops it becomes a remark; what was said before still counts."""
        try:
            status, late = self._in_container()
        except EnvlockError as error:
            self.remarks = refusal(error, self._evidence({}))
            return
        self.remarks = tuple(self._ended(status, late))

    def _in_container(self) -> tuple[int, bool]:
        ours = self._lock is not None
        arguments = selftest_arguments(self._options)
        entrypoint = ("python", "-m", "envlock.selftest") if ours else ("sh", "-c", FIND_PYTHON, "sh")
        environment = {name: value for name, value in CACHES.items() if name not in self._image.environment}
        with self._engine.container(
            self._image.id,
            arguments,
            entrypoint=entrypoint,
            network="none",
            environment={**environment, **self._options.environment},
            user=self._options.user,
            workdir=SCRATCH if ours else "/",
            read_only=ours,
            tmpfs={SCRATCH: "rw,exec,nosuid,nodev,mode=1777"},
            shm_size=shm_size(self._options, self._lock),
            gpus=self.gpus,
        ) as container:
            if not ours:
                container.put("/", guest_files())
            container.start()
            for piece in container.output(self._options.timeout):
                if piece.stream == "stderr":
                    self.transcript.set_aside(piece.data)
                    continue
                for event in self.transcript.feed(piece.data):
                    self._tell(event)
            return container.wait(), container.timed_out

    def _tell(self, event: Started | Begun | Done) -> None:
        if isinstance(event, Started):
            facts = event.facts
            gpus = [str(gpu.get("model")) for gpu in facts.get("gpus") or () if isinstance(gpu, dict)]
            self._progress.say(
                f"self-test {event.selftest}: {len(event.planned)} checks, torch {facts.get('torch')}, {', '.join(gpus) or 'no GPU'}"
            )
        elif isinstance(event, Done):
            planned = len(self.transcript.started.planned) if self.transcript.started else 0
            check = event.check
            why = f": {check.why.splitlines()[0]}" if check.why and check.status in ("fail", "not-run") else ""
            done = len(self.transcript.checks)
            self._progress.say(f"[{done:>{len(str(planned))}}/{planned}] {check.status:<11} {check.title} ({check.seconds:.1f} s){why}")

    def _ended(self, status: int, late: bool) -> Iterator[Remark]:
        """What the way it ended says beyond its checks."""
        said = self.transcript
        if late:
            what = f"the self-test did not end within {self._options.timeout:.0f} s and was stopped"
            yield Remark(id="selftest-late", severity="warning", what=what, where=said.running or "", hint="give it more with --timeout")
        elif status == NO_TORCH and said.started is None:
            yield Remark(
                id="torch-missing",
                severity="error",
                what="no Python in the image has torch",
                where="image",
                hint="verify an image with torch",
            )
        elif not said.finished:
            yield self._broken(status)

    def _broken(self, status: int) -> Remark:
        printed = self.transcript.stray.decode("utf-8", "replace")
        found = diagnose_exit(status, printed, self._evidence({}))
        if found is not None:
            return Remark.of(found.finding, found.fault)
        what, hint = f"the self-test ended with status {status} before it was done", "what it printed last stands above"
        tail = "\n".join(printed.strip().splitlines()[-12:])
        return Remark.of(Finding("selftest-broken", "error", what, "", tail, hint), "image")

    def _evidence(self, evidence: Mapping[str, Any]) -> Evidence:
        """What decides between image and host for this run."""
        capabilities = [str(gpu.get("capability")) for gpu in self.transcript.facts.get("gpus") or () if isinstance(gpu, dict)]
        targets = self._needs.targets
        is_target = any(f"sm_{c.replace('.', '')}" in targets for c in capabilities) if targets and capabilities else None
        return Evidence(libcuda=str(evidence.get("libcuda") or ""), gpu_is_target=is_target)

    def checks(self, image_digest: str) -> list[Check]:
        """Every check that was planned or reported, faults told apart, fingerprints tied to the image."""
        said = self.transcript
        planned = {check.id: check for check in said.started.planned} if said.started else {}
        why = "the self-test ended before it"
        unreached = [check.model_copy(update={"why": why}) for id_, check in planned.items() if id_ not in said.checks]
        return [self._placed(check, image_digest) for check in (*said.checks.values(), *unreached)]

    def _placed(self, check: Check, image_digest: str) -> Check:
        changes: dict[str, Any] = {}
        if check.fingerprints:
            changes["fingerprints"] = tuple(
                fingerprint.model_copy(update={"depends": {**fingerprint.depends, "image": image_digest}})
                for fingerprint in check.fingerprints
            )
        if check.status == "fail":
            found = self._diagnosis(check)
            if found is not None:
                changes |= {"finding": found.id, "fault": found.fault, "hint": check.hint or found.hint}
            elif check.fault is None:
                changes["fault"] = "image"
        return check.model_copy(update=changes) if changes else check

    def _diagnosis(self, check: Check) -> Diagnosis | None:
        printed = f"{check.why}\n{check.evidence.get('printed', '')}"
        found = diagnose(printed, self._evidence(check.evidence))
        unknown = check.finding in (None, "check-crashed")
        return found if found is not None and (unknown or found.id == check.finding) else None


def refusal(error: EnvlockError, evidence: Evidence = UNKNOWN) -> tuple[Remark, ...]:
    """Why no container could be had: the engine's words tell more than its error does where they are known."""
    found = diagnose(error.why, evidence)
    if found is not None:
        return (Remark.of(replace(found.finding, where=error.where), found.fault),)
    fault: Fault = "host" if exit_code_of(error) is Exit.HOST else "image"
    return tuple(Remark.of(finding, fault) for finding in error.findings)


def selftest_arguments(options: Options) -> tuple[str, ...]:
    """The self-test's own command line; see `python -m envlock.selftest --help`."""
    arguments = [word for group in options.groups for word in ("--group", group)]
    for flag, value in (("--level", options.level), ("--nproc", options.nproc), ("--repeats", options.repeats)):
        if value is not None:
            arguments += [flag, str(value)]
    return (*arguments, *options.extra)


def shm_size(options: Options, lock: Lock | None) -> str:
    """The size of /dev/shm: as asked for, as the spec says, or enough for the self-test."""
    return options.shm_size or (lock.run.shm_size if lock is not None else None) or DEFAULT_SHM


def guest_files() -> Iterator[bytes]:
    """A tar of the self-test for an image that does not have it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path, content in read_bundle(own_bundle()).below("lib").items():
            header = tarfile.TarInfo(f"{GUEST_LIB.lstrip('/')}/{path}")
            header.size, header.mode = len(content), 0o644
            tar.addfile(header, io.BytesIO(content))
    yield buffer.getvalue()
