"""Base layer: Debian bootstrapped from locked packages, as root or as an ordinary user, to the same bytes.

mmdebstrap installs the packages out of a folder inside the new system, so that neither the store nor a mirror is reached from
there; what it makes is written anew by the layer rules. Nothing of the host gets in: the environment is a fixed one, apt and
dpkg see no configuration of the host, and what only this run could know is left out.
"""

from __future__ import annotations

import os
import platform
import pwd
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

from envlock import debfile
from envlock.errors import BuildFailed, DamagedArchive, DiskFull, EnvlockError, HostNotReady
from envlock.layers import Layer
from envlock.layers.canonical import Entry, Tree, difference, write_layer
from envlock.layers.volatile import without_volatile
from envlock.lock import Deb, DebianBase
from envlock.memory import spare_memory
from envlock.progress import Progress
from envlock.resolve.archives import mmdebstrap_missing
from envlock.resolve.debian import fetch_debs
from envlock.store import Store, explained_when_full

NO_SOURCES = "# the packages of this system come from an envlock lock; it names no mirror\n"

_OWNER = ".belongs-to"
_SYSTEM = "system"
_HERE = "/envlock-packages"
_NEEDED_BYTES = 1_500_000_000
_MEMORY_KEPT_FREE = 3_000_000_000
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/nonexistent",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
}
# Shell, with the new system's folder as $1, which no one knows beforehand; in a sources list, a space ends a URL.
_NAME_SOURCE = (
    """printf 'deb [trusted=yes] copy:%s/envlock-packages ./\\n' "$(printf %s "$1" | sed 's/%/%25/g; s/ /%20/g')" """
    """> "$1/etc/apt/sources.list\""""
)
# What dpkg writes need not survive a power cut before it is packed: a third of its waits for the disk.
_HURRY = 'mkdir -p "$1/etc/dpkg/dpkg.cfg.d" && echo force-unsafe-io > "$1/etc/dpkg/dpkg.cfg.d/envlock"'
_SLOW_DOWN = 'rm "$1/etc/dpkg/dpkg.cfg.d/envlock"'
_FORGET_SOURCE = f"""rm -rf "$1{_HERE}" && printf %s {shlex.quote(NO_SOURCES)} > "$1/etc/apt/sources.list\""""
# The system lies in memory while it is made, in the namespace of mmdebstrap, and goes with it: dpkg waits for a disk some hundred times.
_IN_MEMORY = f'mount -t tmpfs -o size={_NEEDED_BYTES},mode=711 envlock {_SYSTEM} 2>/dev/null; exec "$@"'
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
# Folders that are links into /usr since Debian 12; bootstrapping programs make them before the first package comes.
_MERGED = {"amd64": ("bin", "sbin", "lib", "lib64"), "arm64": ("bin", "sbin", "lib")}
_UNMERGED_SUITES = frozenset({"bullseye"})


def bootstrap(base: DebianBase, store: Store, progress: Progress, target: BinaryIO) -> Layer:
    """Write the canonical layer of a Debian base to `target`; packages that the store lacks are fetched first.

    The bytes are a function of `base` alone. Folders have the date of the base: which package made one first is chance.

    Raises `ToolMissing` (no mmdebstrap), `HostNotReady` (neither root nor user namespaces, foreign architecture), `DiskFull`,
    `BuildFailed` with the end of mmdebstrap's output, and what `fetch_debs` raises.
    """
    architecture = _architecture(base.debs)
    mode = _mode()
    _require_host(architecture, mode)
    if time.time() < base.date:
        hint = "set the clock; files made now would be older than the packages, and the layer another one"
        raise HostNotReady("the clock of this host is behind", why=f"a locked package was made at {base.date}", hint=hint)
    fetch_debs(base.debs, base.suite, f"linux/{architecture}", store, progress, base.snapshot)
    store.require_space(_NEEDED_BYTES)
    title = f"Debian {base.suite}, {len(base.debs)} packages"
    with store.scratch() as folder, _room(folder, mode) as room, progress.track(f"bootstrap {title}") as advance:
        packages = folder / "packages"
        _lay_out(base.debs, store, packages)
        command = _command(base, architecture, mode, packages)
        with explained_when_full(folder, _NEEDED_BYTES), (folder / "content").open("w+b") as content:
            tree = _run(command, mode, base.date, room, folder / "log", content)
            entries = [_dated(entry, base.date) for entry in without_volatile(tree)]
            return write_layer(entries, target, title, advance=advance)


def _dated(entry: Entry, date: int) -> Entry:
    return replace(entry, mtime=date) if entry.kind == "directory" else entry


def _architecture(debs: Iterable[Deb]) -> str:
    return next((deb.architecture for deb in debs if deb.architecture != "all"), "all")


def _mode() -> str:
    return "root" if os.geteuid() == 0 else "unshare"


def _require_host(architecture: str, mode: str) -> None:
    if shutil.which("mmdebstrap", path=_ENVIRONMENT["PATH"]) is None:
        raise mmdebstrap_missing()
    machine = _MACHINES.get(architecture, architecture)
    if platform.machine() != machine and not any(Path("/proc/sys/fs/binfmt_misc").glob(f"qemu-{machine}*")):
        why = f"this host is {platform.machine()}, and the packages' own scripts must run"
        hint = "build on such a host, or install Debian's packages `qemu-user-static` and `binfmt-support`"
        raise HostNotReady(f"a base for {architecture} cannot be made here", why=why, hint=hint)
    if mode == "unshare":
        _require_user_namespaces()


def _require_user_namespaces() -> None:
    """An ordinary user needs rows in subuid(5) and subgid(5), the setuid helpers, and a kernel that lets him."""
    user = pwd.getpwuid(os.getuid()).pw_name if _is_known_user() else str(os.getuid())
    what = "the base layer cannot be made as an ordinary user here"
    lacking = [file for file in ("/etc/subuid", "/etc/subgid") if not _has_row(Path(file), user)]
    if lacking:
        hint = f"as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}; or build as root"
        raise HostNotReady(what, why=f"{' and '.join(lacking)} have no row for {user}", hint=hint)
    if shutil.which("newuidmap") is None:
        raise HostNotReady(what, why="newuidmap is not installed", hint="install Debian's package `uidmap`, or build as root")
    switch = Path("/proc/sys/kernel/unprivileged_userns_clone")
    if switch.exists() and switch.read_text().strip() == "0":
        hint = "as root: sysctl kernel.unprivileged_userns_clone=1; or build as root"
        raise HostNotReady(what, why="the kernel lets only root make user namespaces", hint=hint)


def _is_known_user() -> bool:
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True


def _has_row(file: Path, user: str) -> bool:
    try:
        rows = [line.split(":") for line in file.read_text().splitlines()]
    except OSError:
        return False
    return any(len(row) == 3 and row[0] in (user, str(os.getuid())) and row[2].isdigit() and int(row[2]) >= 65536 for row in rows)


@contextmanager
def _room(folder: Path, mode: str) -> Iterator[Path]:
    """Where the new system stands while it is made: in the scratch folder, or, in unshare mode, where its root may walk.

    In unshare mode its root is another user, who cannot enter a private home. A room names the scratch folder that it belongs
    to, and is swept when that is gone.
    """
    if mode == "root":
        room = folder / "room"
        (room / _SYSTEM).mkdir(parents=True)
        yield room
        return
    above = Path(os.environ.get("TMPDIR") or "/var/tmp")
    prefix = f"envlock-{os.getuid()}-"
    for left in above.glob(f"{prefix}*"):
        _sweep(left)
    room = above / f"{prefix}{folder.name}"
    for made in (room, room / _SYSTEM):
        made.mkdir()
        made.chmod(0o711)
    try:
        (room / _OWNER).symlink_to(folder)
        yield room
    finally:
        _remove(room)


def _sweep(room: Path) -> None:
    owner = room / _OWNER
    if not owner.is_symlink() or not owner.exists():
        _remove(room)


def _remove(room: Path) -> None:
    """Remove a room, also what belongs to the users of its namespace after mmdebstrap was killed."""
    shutil.rmtree(room, ignore_errors=True)
    if room.exists():
        subprocess.run(["mmdebstrap", "--unshare-helper", "rm", "-rf", room], capture_output=True, check=False)
        shutil.rmtree(room, ignore_errors=True)


def _lay_out(debs: Iterable[Deb], store: Store, folder: Path) -> None:
    """A flat repository of exactly these packages, each by its hash."""
    folder.mkdir()
    index = []
    for deb in debs:
        blob = store.path(deb.sha256)
        file = folder / f"{deb.sha256}.deb"
        try:
            os.link(blob, file)
        except OSError:
            shutil.copyfile(blob, file)
        index.append(f"{debfile.control_of(file)}Filename: ./{file.name}\nSize: {deb.size}\nSHA256: {deb.sha256}\n")
    (folder / "Packages").write_text("\n".join(index), encoding="utf-8")


def _command(base: DebianBase, architecture: str, mode: str, packages: Path) -> list[str]:
    links = () if base.suite in _UNMERGED_SUITES else _MERGED.get(architecture, ())
    prepare = [f'mkdir "$1{_HERE}"', *(f'mkdir -p "$1/usr/{name}" && ln -s "usr/{name}" "$1/{name}"' for name in links)]
    hooks = {
        "setup": [" && ".join(prepare), f"sync-in {shlex.quote(str(packages))} {_HERE}", _NAME_SOURCE, _HURRY],
        "customize": [_FORGET_SOURCE, _SLOW_DOWN],
    }
    return [
        "mmdebstrap",
        f"--mode={mode}",
        "--format=tar",
        "--variant=essential",
        f"--architectures={architecture}",
        f"--include={','.join(deb.name for deb in base.debs)}",
        *(f"--{when}-hook={hook}" for when, scripts in hooks.items() for hook in scripts),
        "",
        "-",
        "",
    ]


@dataclass(frozen=True, slots=True)
class _Guard:
    """What mmdebstrap is started by, so that it ends with this process and leaves nothing mounted; `ending` is the signal that ends it."""

    command: tuple[str, ...]
    ending: signal.Signals


def _guard(mode: str) -> _Guard:
    """As root, mounts and processes live in namespaces that the kernel takes down (a container may lack the right to make them;
    it then has none to mount either). In unshare mode mmdebstrap has namespaces of its own, and removes on SIGTERM what an
    ordinary user could not.
    """
    if mode == "unshare":
        return _Guard(("setpriv", "--pdeathsig", "TERM"), signal.SIGTERM)
    isolated = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
    if subprocess.run([*isolated, "true"], stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode != 0:
        return _Guard(("setpriv", "--pdeathsig", "KILL"), signal.SIGTERM)
    in_memory = ("sh", "-c", _IN_MEMORY, "sh") if spare_memory() > _NEEDED_BYTES + _MEMORY_KEPT_FREE else ()
    return _Guard(("setpriv", "--pdeathsig", "KILL", *isolated, *in_memory), signal.SIGKILL)


def _run(command: Sequence[str], mode: str, date: int, room: Path, log: Path, content: BinaryIO) -> tuple[Entry, ...]:
    """Run mmdebstrap and take in the tree that it writes; the files' bytes go to `content`."""
    guard = _guard(mode)
    environment = {**_ENVIRONMENT, "SOURCE_DATE_EPOCH": str(date), "TMPDIR": str(room / _SYSTEM)}
    with (
        log.open("w+b") as messages,
        subprocess.Popen(
            [*guard.command, *command],
            env=environment,
            cwd=room,
            umask=0o022,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=messages,
        ) as process,
    ):
        try:
            entries = difference(Tree(), lambda: cast(BinaryIO, process.stdout), content, date, "mmdebstrap's tar")
        except DamagedArchive:
            entries = ()
        except BaseException:
            process.send_signal(guard.ending)
            raise
        if process.wait() != 0:
            raise _failed(log.read_text(encoding="utf-8", errors="replace"), room)
    return entries


def _failed(output: str, room: Path) -> EnvlockError:
    lines = output.strip().splitlines()
    if "No space left on device" in output or "enough free space" in output:
        hint = "free some space, or set ENVLOCK_STORE (and TMPDIR) to a folder on a larger disk"
        return DiskFull("the disk is full where the base layer is made", where=str(room), hint=hint)
    errors = [line for line in lines if line.startswith(("E: ", "dpkg: error", "tar: "))]
    why = "; ".join(errors[:3] or lines[-3:])
    if any(word in output for word in ("newuidmap", "unshare(", "user namespace", "Operation not permitted")):
        hint = "build as root, or let users make namespaces: rows in /etc/subuid and /etc/subgid, the package `uidmap`"
        return HostNotReady("this host does not let mmdebstrap make a system", where="base layer", why=why, hint=hint)
    hint = "lock the spec again; if that does not help, keep the output of `mmdebstrap` and report it"
    return BuildFailed("mmdebstrap could not install the locked packages", where="base layer", why=why, hint=hint)
