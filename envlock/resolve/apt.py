"""Apt: what the spec's `apt` list takes, chosen by the base's own apt in a container, from lists fetched and verified outside.

The base says which archives it trusts and which keys they are held to; a base made by envlock names none, and takes Debian's. The
host's apt fetches the lists, through the host's proxies and certificates; the container has no network.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, cast

import yaml

from envlock import debfile
from envlock.errors import Exit, FetchError, Finding, HostNotReady, Problems
from envlock.fetch import Wanted, fetch_all
from envlock.layers.canonical import Entry, read_tar, write_layer
from envlock.layers.sandbox import Sandbox, pieces_of, stream_of
from envlock.lock import Apt, Deb, DebianBase, ImageBase
from envlock.progress import Progress
from envlock.resolve import aptget, archives
from envlock.resolve.closure import choose
from envlock.resolve.debian import ARCHITECTURES, deb_sources, identities
from envlock.store import Store

BASE = "base"
"""Alias of the archives that an image base itself names."""

OpenSandbox = Callable[[], AbstractContextManager[Sandbox]]

_LISTS = "var/lib/apt/lists"
_OWN_LIST = "etc/apt/sources.list.d/envlock.list"
_TRUSTED = ("etc/apt", "usr/share/keyrings")
_KEY_PATH = re.compile(r"(?<=[\s=])/(?:etc/apt|usr/share)/[^\s\]]+\.(?:gpg|asc|pgp)")


@dataclass(frozen=True, slots=True)
class BaseArchive:
    """An archive that an image base names; its URL ends in a slash."""

    url: str
    alias: str = BASE


@dataclass(frozen=True, slots=True)
class _Said:
    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class _AptInside:
    """The base's own apt."""

    sandbox: Sandbox

    def run(self, program: str, *arguments: str) -> _Said:
        ended = self.sandbox.exec([program, *arguments], environment={"LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"})
        text = ended.output.decode("utf-8", "replace")
        return _Said(ended.status, text, text)


def resolve_apt(
    asked: Sequence[str],
    base: DebianBase | ImageBase,
    platform: str,
    open_sandbox: OpenSandbox,
    newest: int,
    store: Store,
    progress: Progress,
    keep: Apt | None = None,
) -> Apt:
    """The packages that `asked` takes on top of a base, with all they depend on, each fetched into the store.

    `open_sandbox` starts a container of the base; `newest` is the newest time in the base's files (seconds since 1970): no time in
    the layer may lie before it. Where the outcome is that of `keep`, `keep` is returned as it is.

    Raises `Problems` (package-unknown, apt-driver), `NoSolution`, `HostNotReady` (the base has no apt), `ToolMissing` (the host has none)
    and `FetchError`s.
    """
    with store.scratch() as folder, open_sandbox() as sandbox, progress.track(f"apt: {', '.join(asked)}"):
        world, places = _lists_for(sandbox, base, platform, folder)
        _hand_over(world.lists, _source_lines(base), sandbox)
        debs = choose(_AptInside(sandbox), places, asked, "the base")
    refuse_drivers(debs, asked)
    if keep is not None and keep.asked == tuple(asked) and identities(keep.debs) == identities(debs) and keep.date >= newest:
        return keep
    fetch_apt(debs, base, platform, [place.url for place in places], store, progress)
    dates = [debfile.date_of(store.path(deb.sha256)) for deb in debs]
    return Apt(asked=tuple(asked), date=max([newest, *dates]), debs=debs)


def fetch_apt(
    debs: Iterable[Deb], base: DebianBase | ImageBase, platform: str, base_urls: Sequence[str], store: Store, progress: Progress
) -> None:
    """Bring locked packages into the store. `base_urls` are the archives that an image base names, see `urls_of_base`.

    Raises what `fetch_all` raises.
    """
    hint = "lock again for the current version, or put the file into the store from a mirror that still has it"

    def wanted(deb: Deb) -> Wanted:
        def sources() -> Iterator[str | Path]:
            if isinstance(base, DebianBase):
                yield from deb_sources(deb, base.suite, platform, base.snapshot)
            else:
                yield from (url + deb.path for url in base_urls)

        return Wanted(f"{deb.name} {deb.version}", deb.sha256, deb.size, sources, hint)

    fetch_all([wanted(deb) for deb in debs], store, progress)


def urls_of_base(sandbox: Sandbox) -> tuple[str, ...]:
    """The URLs of the archives that an image base names, each with a slash at the end."""
    said = _AptInside(sandbox).run("apt-get", "indextargets", "--no-release-info", "--format", "$(REPO_URI)")
    return tuple(dict.fromkeys(line for line in said.stdout.split() if "://" in line))


def refuse_drivers(debs: Iterable[Deb], asked: Sequence[str]) -> None:
    """Raises `Problems` (exit 3) naming every package that would bring NVIDIA's driver into the image."""
    found = [deb.name for deb in debs if any(fnmatch.fnmatchcase(deb.name, pattern) for pattern in _driver_packages())]
    what = "would bring NVIDIA's driver into the image"
    why = "the driver is the host's: a second one in the image that differs from the kernel's part fails when CUDA starts"
    hint = f"ask for the libraries or tools alone instead of what pulls it in: {', '.join(asked)}"
    if found:
        raise Problems([Finding("apt-driver", "error", f"{name} {what}", "apt", why, hint) for name in found], Exit.NO_STACK)


@cache
def _driver_packages() -> tuple[str, ...]:
    return tuple(yaml.safe_load(files("envlock.resolve").joinpath("driver_packages.yaml").read_text(encoding="utf-8"))["refused"])


def _source_lines(base: DebianBase | ImageBase, keyring: str = "/usr/share/keyrings/debian-archive-keyring.gpg") -> tuple[str, ...]:
    """What is added to the base's own sources: Debian's archives, where the base is ours and names none."""
    if isinstance(base, ImageBase):
        return ()
    return tuple(line for archive in archives.find_archives(base.suite) for line in archive.source_lines(keyring))


def _lists_for(
    sandbox: Sandbox, base: DebianBase | ImageBase, platform: str, folder: Path
) -> tuple[aptget.Apt, Sequence[archives.Archive | BaseArchive]]:
    """The base's package lists, fetched and verified by the host's apt with the keys that the base trusts; and the archives."""
    root = folder / "base"
    for path in _TRUSTED:
        with suppress(FileNotFoundError):
            _copy_out(sandbox, path, root)
    if not (root / "etc/apt").is_dir():
        hint = "use a base of Debian or Ubuntu, or leave `apt` out of the spec"
        raise HostNotReady("the base has no apt", where="base", hint=hint)
    own = _source_lines(base, f"{root}/usr/share/keyrings/debian-archive-keyring.gpg")
    world = aptget.Apt.set_up(folder / "apt", ARCHITECTURES[platform], own, aptget.host_transport())
    if isinstance(base, ImageBase):
        _take_over(root / "etc/apt", world.folder / "etc/apt", root)
    done = world.run("apt-get", "update", "--error-on=any")
    if done.returncode != 0:
        errors = [line[3:] for line in aptget.without_secrets(done.stderr).splitlines() if line.startswith("E: ")]
        hint = "check the network; an archive that moved or a key that expired must be mended in the base itself"
        raise FetchError("the package lists of the base's archives cannot be had", where="base", why="; ".join(errors[:3]), hint=hint)
    if isinstance(base, DebianBase):
        return world, archives.find_archives(base.suite)
    listed = world.run("apt-get", "indextargets", "--no-release-info", "--format", "$(REPO_URI)").stdout
    return world, [BaseArchive(url) for url in dict.fromkeys(listed.split())]


def _take_over(source: Path, target: Path, root: Path) -> None:
    """The base's sources, pins and keys, with the paths of keys leading to their copies."""
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        name = path.relative_to(source)
        if name.parts[0] in ("sources.list", "sources.list.d"):
            text = path.read_text(encoding="utf-8", errors="replace")
            content = _KEY_PATH.sub(lambda found: f"{root}{found[0]}", text).encode()
        elif name.parts[0] in ("preferences", "preferences.d", "trusted.gpg", "trusted.gpg.d", "keyrings"):
            content = path.read_bytes()
        else:
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(content)


def _copy_out(sandbox: Sandbox, path: str, root: Path) -> None:
    """The plain files below a folder of the container; a link to another of them becomes a copy."""
    above = path.rpartition("/")[0]
    links: dict[str, str] = {}
    for entry in read_tar(stream_of(sandbox.get(f"/{path}")), path):
        name = f"{above}/{entry.path}".lstrip("/")
        if entry.kind == "file" and entry.open is not None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(entry.open().read())
        elif entry.kind == "directory":
            (root / name).mkdir(parents=True, exist_ok=True)
        elif entry.kind == "symlink":
            links[name] = posixpath.normpath(posixpath.join("/", posixpath.dirname(name), entry.target)).lstrip("/")
    for name, target in links.items():
        if target.startswith(f"{path}/") and (root / target).is_file():
            (root / name).write_bytes((root / target).read_bytes())


def _hand_over(lists: Path, sources: Sequence[str], sandbox: Sandbox) -> None:
    """Put the lists, and the sources that were added, where the base's apt looks."""
    paths = {f"{_LISTS}/{path.name}": path for path in lists.iterdir() if path.is_file() and path.name != "lock"}
    entries = [Entry(name, "file", size=path.stat().st_size, open=_opener(path)) for name, path in paths.items()]
    extra: Mapping[str, bytes] = {_OWN_LIST: "".join(f"{line}\n" for line in sources).encode()} if sources else {}
    with TemporaryFile(dir=lists) as tar:
        write_layer([*entries, *(_small(name, content) for name, content in extra.items())], cast(BinaryIO, tar), "")
        tar.seek(0)
        sandbox.put("/", pieces_of(cast(BinaryIO, tar)))


def _opener(path: Path) -> Callable[[], BinaryIO]:
    return lambda: path.open("rb")


def _small(name: str, content: bytes) -> Entry:
    return Entry(name, "file", size=len(content), open=lambda: BytesIO(content))
