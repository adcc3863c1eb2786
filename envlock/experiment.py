"""`envlock run`: a user's own command in containers of an image, once or several times, and whether it came out the same.

Each run has a fresh container: no network unless asked for, code and data read-only, results taken out of one folder at the end, so
that it works the same with an engine on another host and whoever the container's user is.
"""

from __future__ import annotations

import hashlib
import io
import os
import shlex
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from envlock import run_record
from envlock.diagnose import diagnose_exit
from envlock.doctor import examine
from envlock.engine import Bind, Container, Engine, EngineImage, Gpus, Output
from envlock.errors import EnvlockError, Exit, Finding, Problems, UsageError
from envlock.host import Host, container_runtime, read_host
from envlock.lock import Lock
from envlock.metrics import Metric, as_json, read_metrics, summarise
from envlock.outputs import compare_folders, list_outputs, regular_files, sha256_of
from envlock.progress import Progress
from envlock.report import HostFacts, Remark
from envlock.run_record import Input, OneRun, Record
from envlock.runtime import settings
from envlock.secrecy import shown_variables
from envlock.selftest_run import CACHES, DEFAULT_SHM, refusal
from envlock.store import write_atomically
from envlock.transcript import Transcript
from envlock.verify import find_image, gpu_requests, host_facts, needs_of, read_lock

OUTPUTS = "/outputs"
OUTPUTS_VARIABLE = "ENVLOCK_OUTPUTS"
DIGEST_VARIABLE = "ENVLOCK_IMAGE_DIGEST"
MOST_LOG_KEPT = 64 * 2**10

Show = Callable[[Output], None]


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of this host, and where the container sees it, read-only."""

    source: Path
    target: str


@dataclass(frozen=True, slots=True)
class Experiment:
    """What to run and how. `outputs` is the folder in the container that results are taken from; `metrics` a JSON file below it."""

    command: tuple[str, ...]
    mounts: tuple[Mount, ...] = ()
    outputs: str = OUTPUTS
    repeat: int = 1
    gpus: tuple[str, ...] = ("auto",)
    shm_size: str | None = None
    user: str | None = None
    workdir: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    network: str = "none"
    timeout: float | None = None
    metrics: str | None = None


def run_experiment(
    engine: Engine, reference: str, experiment: Experiment, folder: Path, progress: Progress, show: Show, expected: Record | None = None
) -> tuple[Record, tuple[Metric, ...]]:
    """Run it, compare, and leave outputs, logs and record.json in `folder`.

    Raises `UsageError` for a folder that holds something, `Problems` where the host cannot run the image (exit 5) or where a
    variable given would undo the image's level (exit 2).
    """
    host = read_host(container_runtime(engine.info, engine.endpoint))
    return run_on(host, engine, reference, experiment, folder, progress, show, expected)


def run_on(
    host: Host,
    engine: Engine,
    reference: str,
    experiment: Experiment,
    folder: Path,
    progress: Progress,
    show: Show,
    expected: Record | None = None,
) -> tuple[Record, tuple[Metric, ...]]:
    """As `run_experiment`, on a host that was read already."""
    started = datetime.now(UTC)
    image = find_image(engine, reference)
    lock = read_lock(engine, image).lock
    needs = needs_of(image, lock)
    findings = examine(host, needs)
    refuse(findings, Exit.HOST)
    refuse(unsafe_variables(lock, experiment.environment), Exit.USAGE)
    prepare(folder)
    inputs = tuple(describe_input(mount) for mount in experiment.mounts)
    gpus = gpu_requests(experiment.gpus, host, needs)[0]
    runs: list[OneRun] = []
    remarks = [Remark.of(finding, "host") for finding in findings if finding.severity == "warning"]
    for number in range(1, experiment.repeat + 1):
        progress.say(f"run {number} of {experiment.repeat}: {shlex.join(experiment.command)}")
        one = _Run(engine, image, lock, experiment, gpus, folder, number, show)
        runs += one.go()
        remarks += one.remarks
        if one.remarks or (runs and runs[-1].status != 0):
            break
    differences = [
        difference
        for run in runs[1:]
        for difference in run_record.differences_of(compare_folders(folder / "1", folder / str(run.number)), f"run {run.number}")
    ]
    if expected is not None and runs:
        differences += run_record.held_against(runs[0].outputs, expected)
    metrics = metrics_of(experiment, folder, runs)
    verdict, summary = run_record.judge(runs, differences, remarks, expected is not None)
    record = Record(
        verdict=verdict,
        summary=summary,
        command=experiment.command,
        repeat_with=repeat_command(reference, experiment),
        image=reference,
        image_digest=image.digest,
        lock_digest=lock.digest if lock else None,
        level=image.environment.get("ENVLOCK_DETERMINISM", ""),
        host=host_of(host),
        environment=shown_variables(experiment.environment),
        started=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        inputs=inputs,
        runs=tuple(runs),
        differences=tuple(differences),
        metrics=tuple(as_json(metric) for metric in metrics),
        remarks=tuple(remarks),
    )
    write_atomically(folder / "record.json", run_record.to_json(record).encode())
    return record, metrics


def refuse(findings: Iterable[Finding], exit_code: Exit) -> None:
    """Raise `Problems` where there is an error among findings."""
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        raise Problems(errors, exit_code)


def unsafe_variables(lock: Lock | None, given: Mapping[str, str]) -> tuple[Finding, ...]:
    """Variables given for this run that would silently undo the level that the image was locked at."""
    if lock is None:
        return ()
    faults = settings.faults(given, level=lock.determinism.level, tf32=lock.determinism.tf32)
    return tuple(Finding(fault.id, "error", fault.what, f"--env {fault.name}", fault.why, fault.hint) for fault in faults)


def prepare(folder: Path) -> None:
    """An empty folder for the results. Raises `UsageError` for one that holds something."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty", why="results of two runs must not mix", hint="name another folder with --output")


def describe_input(mount: Mount) -> Input:
    """An input by the digest of everything in it. Raises `UsageError` where it does not exist."""
    if not mount.source.exists():
        raise UsageError(f"{mount.source} does not exist", hint="mount what exists: --mount FOLDER:/path/in/container")
    files = [mount.source] if mount.source.is_file() else regular_files(mount.source)
    hasher = hashlib.sha256()
    for file in files:
        name = file.relative_to(mount.source).as_posix() if file != mount.source else file.name
        hasher.update(f"{name}\0{sha256_of(file)}\n".encode("utf-8", "surrogateescape"))
    return Input(target=mount.target, files=len(files), size=sum(file.stat().st_size for file in files), sha256=hasher.hexdigest())


class _Run:
    """One container."""

    def __init__(
        self,
        engine: Engine,
        image: EngineImage,
        lock: Lock | None,
        experiment: Experiment,
        gpus: Gpus | None,
        folder: Path,
        number: int,
        show: Show,
    ) -> None:
        self._engine = engine
        self._image = image
        self._lock = lock
        self._experiment = experiment
        self._gpus = gpus
        self._folder = folder
        self._number = number
        self._show = show
        self._tail = b""
        self.remarks: tuple[Remark, ...] = ()

    def go(self) -> tuple[OneRun, ...]:
        """Run it; nothing where no container could be had, which is then a remark."""
        clock = time.monotonic()
        try:
            status, late = self._in_container()
        except EnvlockError as error:
            self.remarks = refusal(error)
            return ()
        seconds = round(time.monotonic() - clock, 3)
        self.remarks = tuple(self._diagnosed(status, late))
        outputs = tuple(run_record.output_of(file) for file in list_outputs(self._folder / str(self._number)))
        return (OneRun(number=self._number, status=status, seconds=seconds, outputs=outputs),)

    def _diagnosed(self, status: int, late: bool) -> Iterator[Remark]:
        if late:
            what = f"run {self._number} did not end within {self._experiment.timeout:.0f} s and was stopped"
            yield Remark(id="run-late", severity="error", what=what, hint="give it more with --timeout", fault="spec")
        elif status != 0:
            found = diagnose_exit(status, self._tail.decode("utf-8", "replace"))
            if found is not None:
                yield Remark.of(found.finding, found.fault)

    def _said(self) -> dict[str, str]:
        """What the command can read of its run: where outputs go, and which image it is in (`envlock.runtime.snapshot` records it)."""
        digest = self._image.digest
        return {OUTPUTS_VARIABLE: self._experiment.outputs, **({DIGEST_VARIABLE: digest} if digest else {})}

    def _in_container(self) -> tuple[int, bool]:
        experiment = self._experiment
        local = self._engine.endpoint.socket is not None
        binds = [Bind(str(mount.source.resolve()), mount.target) for mount in experiment.mounts] if local else []
        caches = {name: value for name, value in CACHES.items() if name not in self._image.environment}
        locked_shm = self._lock.run.shm_size if self._lock else None
        with self._engine.container(
            self._image.id,
            experiment.command,
            network=experiment.network,
            environment={**caches, **self._said(), **experiment.environment},
            user=experiment.user,
            workdir=experiment.workdir,
            shm_size=experiment.shm_size or locked_shm or DEFAULT_SHM,
            binds=binds,
            gpus=self._gpus,
        ) as container:
            container.put("/", [writable_folder(experiment.outputs)])
            for mount in experiment.mounts if not local else ():
                container.put("/", copy_of(mount))
            container.start()
            with (self._folder / f"{self._number}.log").open("wb") as log:
                for piece in container.output(experiment.timeout):
                    log.write(piece.data)
                    self._tail = (self._tail + piece.data)[-MOST_LOG_KEPT:]
                    self._show(piece)
            status = container.wait()
            take_out(container, experiment.outputs, self._folder / str(self._number))
            return status, container.timed_out


def writable_folder(path: str) -> bytes:
    """A tar with one folder that any user of the container can write to."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        header = tarfile.TarInfo(path.strip("/"))
        header.type, header.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(header)
    return buffer.getvalue()


def copy_of(mount: Mount) -> Iterator[bytes]:
    """A tar of an input, in pieces, for an engine that cannot see this host's files."""
    with tempfile.TemporaryFile() as scratch:
        with tarfile.open(fileobj=scratch, mode="w", format=tarfile.GNU_FORMAT, dereference=True) as tar:
            tar.add(mount.source, mount.target.strip("/"), filter=_anybody)
        scratch.seek(0)
        while piece := scratch.read(2**20):
            yield piece


def _anybody(header: tarfile.TarInfo) -> tarfile.TarInfo:
    """Readable by every user of the container, and without the names of this host's users."""
    header.uid = header.gid = 0
    header.uname = header.gname = ""
    header.mode = header.mode & 0o7777 | (0o555 if header.isdir() or header.mode & 0o100 else 0o444)
    return header


def take_out(container: Container, path: str, folder: Path) -> None:
    """The regular files below a folder of the container, into a folder of this host: whole, or not there at all."""
    half = folder.with_name(f".{folder.name}.{os.getpid()}")
    half.mkdir()
    try:
        with tarfile.open(fileobj=_Pieces(container.get(path)), mode="r|") as tar:
            for member in tar:
                target = _place(half, member.name)
                if target is None or not (member.isreg() or member.islnk()):
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                if member.islnk():
                    first = _place(half, member.linkname)
                    if first is not None and first.is_file():
                        shutil.copyfile(first, target)
                    continue
                source = tar.extractfile(member)
                if source is not None:
                    with target.open("wb") as stream:
                        shutil.copyfileobj(source, stream, 2**20)
        half.rename(folder)
    except BaseException:
        shutil.rmtree(half, ignore_errors=True)
        raise


def _place(folder: Path, member: str) -> Path | None:
    """Where a member of the container's tar goes: without the tar's uppermost folder; None where that leads out."""
    inside = PurePosixPath(*PurePosixPath(member).parts[1:])
    return None if ".." in inside.parts or inside.is_absolute() or not inside.parts else folder / inside


class _Pieces(io.RawIOBase):
    """Pieces of bytes as a stream that can be read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        parts, length = [self._rest], len(self._rest)
        while size < 0 or length < size:
            piece = next(self._pieces, b"")
            if not piece:
                break
            parts.append(piece)
            length += len(piece)
        data = b"".join(parts)
        data, self._rest = (data, b"") if size < 0 else (data[:size], data[size:])
        return data


def metrics_of(experiment: Experiment, folder: Path, runs: list[OneRun]) -> tuple[Metric, ...]:
    """Mean and spread of the figures that the runs wrote, where the experiment names a file for them."""
    if experiment.metrics is None:
        return ()
    return summarise([read_metrics(folder / str(run.number) / experiment.metrics) for run in runs if run.status == 0])


def host_of(host: Host) -> HostFacts:
    """The host as a record names it, GPUs as the driver has them."""
    said = [
        Transcript(
            device=f"cuda:{gpu.index}",
            facts={"gpus": [{"model": gpu.name, "capability": gpu.capability, "sm_count": gpu.sm_count, "memory": gpu.memory}]},
        )
        for gpu in host.nvidia.gpus
    ]
    return host_facts(host, said)


def repeat_command(reference: str, experiment: Experiment) -> str:
    """The command line that does the same again; what is mounted is named by its folder, as it was given."""
    words = ["envlock", "run"]
    words += [word for mount in experiment.mounts for word in ("--mount", f"{mount.source}:{mount.target}")]
    default = Experiment(())
    for flag, value, usual in (
        ("--outputs", experiment.outputs, default.outputs),
        ("--repeat", experiment.repeat, default.repeat),
        ("--gpus", ",".join(experiment.gpus), ",".join(default.gpus)),
        ("--shm-size", experiment.shm_size, None),
        ("--user", experiment.user, None),
        ("--workdir", experiment.workdir, None),
        ("--network", experiment.network, default.network),
        ("--metrics", experiment.metrics, None),
    ):
        if value != usual:
            words += [flag, str(value)]
    words += [word for name, value in shown_variables(experiment.environment).items() for word in ("--env", f"{name}={value}")]
    return shlex.join([*words, reference, "--", *experiment.command])
