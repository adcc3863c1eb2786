"""Does an image compute the same bits here: runs the self-test in a container of it and makes a report of what it says.

The image is taken as it is: its lock, environment and digests are read out of it and out of the engine, never assumed.
"""

from __future__ import annotations

import io
import shlex
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

import envlock
from envlock import lock as locks
from envlock.config import LOCK_LABEL
from envlock.doctor import Needs, examine, needs_of_image, needs_of_lock
from envlock.engine import Container, Engine, EngineImage, Gpus
from envlock.errors import EnvlockError, ImageMissing
from envlock.host import ContainerRuntime, Host, container_runtime, read_host
from envlock.lock import Lock
from envlock.progress import Progress
from envlock.reference import Reference, held_against
from envlock.report import Check, Fault, GpuFacts, HostFacts, ImageFacts, Remark, Report, Run, Status, Variable, judge
from envlock.secrecy import shown_variables
from envlock.selftest_run import Options, SelfTestRun, shm_size
from envlock.transcript import Transcript

LOCK_IN_IMAGE = "/opt/envlock/lock.json"
MOST_LOCK = 16 * 2**20


def verify(engine: Engine, reference: str, options: Options, progress: Progress) -> Report:
    """Verify one image on the engine's host.

    What the image or the host does wrong is in the report; raises `ImageMissing` and `NoEngine` where there is nothing to report on.
    """
    return verify_on(read_host(container_runtime(engine.info, engine.endpoint)), engine, reference, options, progress)


def verify_on(host: Host, engine: Engine, reference: str, options: Options, progress: Progress) -> Report:
    """The same, on a host that was read already."""
    started, clock = datetime.now(UTC), time.monotonic()
    image = find_image(engine, reference)
    inside = read_lock(engine, image)
    needs = needs_of(image, inside.lock)
    findings = examine(host, needs)
    remarks = [*inside.remarks, *(Remark.of(finding, "host") for finding in findings)]
    checks = [*inside.checks, *configured(image, inside.lock)]
    runs: list[SelfTestRun] = []
    if not any(finding.severity == "error" for finding in findings):
        for gpus in gpu_requests(options.gpus, host, needs):
            runs.append(SelfTestRun(engine, image, inside.lock, gpus, options, progress, needs))
            runs[-1].run()
            remarks += runs[-1].remarks
        checks += merged([run.checks(image.digest or image.id) for run in runs])
    verdict, summary = judge(checks, remarks)
    first = runs[0] if runs else None
    return Report(
        verdict=verdict,
        summary=summary,
        image=image_facts(reference, image, inside.lock, first.transcript if first else Transcript()),
        host=host_facts(host, [run.transcript for run in runs]),
        run=Run(
            command=repeat_command(reference, options),
            envlock=envlock.__version__,
            selftest=first.transcript.started.selftest if first and first.transcript.started else "",
            started=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
            seconds=round(time.monotonic() - clock, 3),
            user=options.user or image.user,
            shm_size=shm_size(options, inside.lock),
            read_only=inside.lock is not None,
            gpus=first.gpus.by if first and first.gpus else "none",
            nproc=options.nproc or 1,
        ),
        checks=tuple(checks),
        measurements=first.transcript.measurements if first else {},
        environment=environment_rows(image, inside.lock),
        remarks=tuple(remarks),
    )


def with_reference(report: Report, reference: Reference) -> Report:
    """The report with its fingerprints held against a reference; the verdict follows anew."""
    checks = (*report.checks, *held_against(report, reference))
    verdict, summary = judge(checks, report.remarks)
    return report.model_copy(update={"checks": checks, "verdict": verdict, "summary": summary})


def find_image(engine: Engine, reference: str) -> EngineImage:
    """The image of that name. Raises `ImageMissing`."""
    image = engine.image(reference)
    if image is None:
        what, hint = f"the engine has no image {reference}", "see `envlock images`, or make it with `envlock build`"
        raise ImageMissing(what, where=str(engine.endpoint), hint=hint)
    return image


def needs_of(image: EngineImage, lock: Lock | None) -> Needs:
    """What an image in an engine asks of its host: by its lock where it has one, with the environment that it really has."""
    needs = needs_of_lock(lock) if lock else needs_of_image(image.platform, image.environment)
    return replace(needs, environment=image.environment)


@dataclass(frozen=True, slots=True)
class Inside:
    """What was read out of the image about itself; no lock for an image that envlock did not build."""

    lock: Lock | None
    checks: tuple[Check, ...] = ()
    remarks: tuple[Remark, ...] = ()


def read_lock(engine: Engine, image: EngineImage) -> Inside:
    """The lock in the image, held against the digest in its label."""
    label = image.labels.get(LOCK_LABEL)
    with engine.container(image.id, ("true",), network="none") as container:
        raw = read_file(container, LOCK_IN_IMAGE, MOST_LOCK)
    if raw is None:
        if label is None:
            return Inside(None)
        why = f"the label says {label} and {LOCK_IN_IMAGE} is not there"
        return Inside(None, (_own("image.lock", "the image carries its lock", "fail", why, "build the image again"),))
    try:
        lock = locks.parse(raw, LOCK_IN_IMAGE).lock
    except EnvlockError as error:
        return Inside(None, (_own("image.lock", "the image carries its lock", "fail", error.what, error.hint),))
    title = "the lock in the image is the one that its label names"
    if lock.digest != label:
        why = f"the label says {label}, the lock in the image is {lock.digest}"
        return Inside(lock, (_own("image.lock", title, "fail", why, "build the image again from its lock"),))
    return Inside(lock, (_own("image.lock", title, "pass", lock.digest),))


def configured(image: EngineImage, lock: Lock | None) -> tuple[Check, ...]:
    """Whether the image's config has exactly the environment that the lock says."""
    if lock is None:
        return ()
    title = "the image's environment is exactly as locked"
    odd = [row.name for row in environment_rows(image, lock) if row.locked != row.configured]
    if odd:
        why = "; ".join(f"{name}: locked {lock.environment.get(name)!r}, is {image.environment.get(name)!r}" for name in odd)
        return (_own("image.environment", title, "fail", why, "the image was changed after it was built: build it again"),)
    return (_own("image.environment", title, "pass", f"{len(lock.environment)} variables"),)


def environment_rows(image: EngineImage, lock: Lock | None) -> tuple[Variable, ...]:
    """Every variable of lock and config, by name."""
    locked: Mapping[str, str] = lock.environment if lock is not None else {}
    names = sorted({*locked, *image.environment})
    return tuple(Variable(name=name, locked=locked.get(name), configured=image.environment.get(name)) for name in names)


def gpu_requests(wanted: tuple[str, ...], host: Host, needs: Needs) -> tuple[Gpus | None, ...]:
    """The GPUs of each container to run, one after the other; None is a container without.

    What is asked for by name is requested from the engine in any case, so that it says itself why it cannot be had.
    """
    runtime = host.runtime
    if wanted == ("none",) or runtime is None:
        return (None,)
    by = by_what(runtime)
    if wanted == ("all",):
        return (Gpus(wanted, by),)
    if wanted != ("auto",):
        return tuple(Gpus((device,), by) for device in wanted)
    if not runtime.gives_gpus:
        return (None,)
    useful = needs.cuda or (not needs.architectures and not needs.driver_floor)
    seen = host.gpus_are_here or runtime.remote
    same_platform = not needs.platform or needs.platform.split("/")[:2] == host.platform.split("/")[:2]
    return (Gpus(("all",), by),) if useful and seen and same_platform else (None,)


def by_what(runtime: ContainerRuntime) -> Literal["nvidia", "cdi"]:
    """NVIDIA's runtime hook where there is one, since it is found on more hosts; CDI where that is the only way."""
    return "cdi" if runtime.cdi_devices and not runtime.nvidia_runtime else "nvidia"


def merged(runs: Sequence[list[Check]]) -> list[Check]:
    """The checks of all containers: those on the CPU once, those on a GPU for each."""
    if not runs:
        return []
    return [*runs[0], *(check for run in runs[1:] for check in run if check.device != "cpu")]


def read_file(container: Container, path: str, most: int) -> bytes | None:
    """A regular file out of a container; None where there is none, or one larger than `most` bytes."""
    buffer = io.BytesIO()
    try:
        for piece in container.get(path):
            buffer.write(piece)
            if buffer.tell() > most:
                return None
    except FileNotFoundError:
        return None
    buffer.seek(0)
    try:
        with tarfile.open(fileobj=buffer) as tar:
            member = tar.next()
            stream = tar.extractfile(member) if member is not None and member.isreg() else None
            return stream.read() if stream is not None else None
    except tarfile.TarError:
        return None


def image_facts(reference: str, image: EngineImage, lock: Lock | None, said: Transcript) -> ImageFacts:
    """The image as the report names it; versions are those found in the container."""
    names = ("python", "torch", "cuda", "numpy")
    versions = {name: str(said.facts[name]) for name in names if said.facts.get(name)}
    level = str(said.started.settings.get("level", "")) if said.started else ""
    return ImageFacts(
        reference=reference,
        image_digest=image.digest,
        lock_digest=lock.digest if lock is not None else None,
        name=lock.name if lock is not None else None,
        platform=image.platform,
        level=level or (lock.determinism.level if lock is not None else ""),
        versions=versions,
    )


def host_facts(host: Host, said: Sequence[Transcript]) -> HostFacts:
    """The host as the report names it; GPUs as the containers saw them, else as the host has them."""
    seen = [(transcript.device, gpu) for transcript in said for gpu in transcript.facts.get("gpus") or () if isinstance(gpu, dict)]
    gpus = [_gpu_facts(device, gpu, host) for device, gpu in seen]
    runtime = host.runtime
    remote = runtime is not None and runtime.remote
    driver = next((str(t.facts["driver"]) for t in said if t.facts.get("driver")), None)
    return HostFacts(
        name=host.name,
        system=host.system,
        kernel=host.kernel,
        cpu=host.cpu.model,
        cpu_vendor=host.cpu.vendor,
        isa_level=host.cpu.isa_level,
        cores=host.cpu.cores,
        driver=driver if remote else host.nvidia.driver or driver,
        cuda=None if remote else host.nvidia.cuda,
        gpus=tuple(gpus),
        engine=runtime.version if runtime is not None else "",
        remote=remote,
    )


def _gpu_facts(device: str, seen: Mapping[str, Any], host: Host) -> GpuFacts:
    def whole(value: Any) -> int | None:
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    name, index = str(seen.get("model", "")), seen.get("index")
    place = device if index in (None, 0) else f"cuda:{index}"
    here = [gpu for gpu in host.nvidia.gpus if gpu.name == name] if host.gpus_are_here else []
    own = next((gpu for gpu in here if f"cuda:{gpu.index}" == place), here[0] if len(here) == 1 else None)
    return GpuFacts(
        device=place,
        name=name,
        uuid=own.uuid if own else None,
        capability=str(seen["capability"]) if seen.get("capability") else None,
        sm_count=whole(seen.get("sm_count")),
        memory=whole(seen.get("memory")),
        mig=str(seen["mig"]) if seen.get("mig") not in (None, "none") else None,
        ecc=own.ecc if own else None,
        sm_clock=own.sm_clock if own else None,
        max_sm_clock=own.max_sm_clock if own else None,
        persistence=own.persistence if own else None,
    )


def repeat_command(reference: str, options: Options) -> str:
    """The command line that does the same again."""
    words = ["envlock", "verify", reference]
    default = Options()
    for flag, value, usual in (
        ("--gpus", ",".join(options.gpus), ",".join(default.gpus)),
        ("--shm-size", options.shm_size, None),
        ("--user", options.user, None),
        ("--level", options.level, None),
        ("--nproc", options.nproc, None),
        ("--repeats", options.repeats, None),
        ("--timeout", options.timeout, default.timeout),
    ):
        if value not in (usual, None):
            words += [flag, str(value)]
    words += [word for group in options.groups for word in ("--group", group)]
    words += list(options.extra)
    words += [word for name, value in shown_variables(options.environment).items() for word in ("--env", f"{name}={value}")]
    return shlex.join(words)


def _own(id_: str, title: str, status: Status, why: str, hint: str = "") -> Check:
    """A check that was made from outside the container."""
    fault: Fault | None = "image" if status == "fail" else None
    return Check(id=id_, group="image", title=title, status=status, why=why, hint=hint, fault=fault)
