"""A tiny Debian archive, signed with a key of its own, as routes for the loopback server."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

RELEASED = "Sat, 28 Nov 2026 20:11:00 UTC"
BUILT = 1_790_000_000


@dataclass(frozen=True)
class Package:
    """One package to make; `fields` go into its control file as they are, `files` are text by path, `script` runs once it is there."""

    name: str
    version: str = "1.0"
    built: int = BUILT
    architecture: str = "all"
    fields: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    script: str = ""


# As little as a base takes: something essential, something required, apt, and what every base has beside.
SYSTEM = (
    Package("base-files", fields={"Essential": "yes"}),
    Package("tzdata", version="2026f-0+deb12u1", fields={"Priority": "required"}),
    Package("apt", version="1:2.6.1~a", fields={"Depends": "init | other-init"}),
    Package("init", built=BUILT + 500),
    Package("other-init"),
    Package("python3", fields={"Depends": "libpython3"}),
    Package("libpython3", architecture="amd64"),
    Package("ca-certificates", fields={"Recommends": "unwanted"}),
    Package("unwanted"),
)


def make_deb(package: Package, folder: Path) -> Path:
    """The package file, made at the package's date."""
    tree = folder / f"{package.name}-tree"
    (tree / "DEBIAN").mkdir(parents=True)
    described = {
        "Package": package.name,
        "Version": package.version,
        "Architecture": package.architecture,
        "Maintainer": "Nobody <nobody@example.org>",
        "Priority": "optional",
        "Description": "a package for tests",
    }
    control = {**described, **package.fields}
    (tree / "DEBIAN/control").write_text("".join(f"{key}: {value}\n" for key, value in control.items()))
    for path, text in package.files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
    if package.script:
        (tree / "DEBIAN/postinst").write_text(f"#!/bin/sh\nset -e\n{package.script}\n")
        (tree / "DEBIAN/postinst").chmod(0o755)
    deb = folder / f"{package.name}_{package.version.partition(':')[2] or package.version}_{package.architecture}.deb"
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(package.built)}
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", tree, deb], env=environment, check=True, capture_output=True)
    shutil.rmtree(tree)
    return deb


@dataclass(frozen=True)
class SigningKey:
    """An OpenPGP key: its home, and the file with the public part that apt is to trust."""

    home: Path
    public: Path

    def sign(self, text: str) -> bytes:
        """The text with its signature around it, as InRelease files are."""
        command = [*_gpg(self.home), "--clearsign"]
        return subprocess.run(command, input=text.encode(), check=True, capture_output=True).stdout


@contextmanager
def signing_key() -> Iterator[SigningKey]:
    """A new key. In a folder with a short name: the agent's socket lies in it."""
    home = Path(tempfile.mkdtemp(prefix="key-"))
    try:
        make = ["--passphrase", "", "--quick-gen-key", "Archive of tests <tests@example.org>", "ed25519", "sign", "never"]
        subprocess.run([*_gpg(home), *make], check=True, capture_output=True)
        subprocess.run([*_gpg(home), "--output", home / "public.gpg", "--export"], check=True, capture_output=True)
        yield SigningKey(home, home / "public.gpg")
    finally:
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False, capture_output=True)
        shutil.rmtree(home, ignore_errors=True)


def _gpg(home: Path) -> list[str]:
    return ["gpg", "--homedir", str(home), "--batch", "--quiet", "--no-tty", "--yes"]


def archive_routes(
    key: SigningKey, folder: Path, suite: str, packages: tuple[Package, ...] = SYSTEM, root: str = "/debian"
) -> dict[str, bytes]:
    """What the archive's server serves: the packages in the release itself, nothing in its other pockets."""
    routes: dict[str, bytes] = {}
    rows = []
    for package in packages:
        deb = make_deb(package, folder)
        content = deb.read_bytes()
        path = f"pool/main/{package.name[0]}/{package.name}/{deb.name}"
        control = subprocess.run(["dpkg-deb", "--field", deb], check=True, capture_output=True, text=True).stdout
        rows.append(f"{control}Filename: {path}\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n")
        # apt and envlock escape different signs, and both may
        for spelled in (path, path.replace("+", "%2B"), path.replace("+", "%2b").replace("~", "%7e")):
            routes[f"{root}/{spelled}"] = content
    for release, index in ((suite, "\n".join(rows)), (f"{suite}-updates", ""), (f"{suite}-security", "")):
        routes |= _release(key, f"{root}/dists/{release}", release, index.encode())
    return routes


def _release(key: SigningKey, root: str, release: str, index: bytes) -> dict[str, bytes]:
    path = "main/binary-amd64/Packages"
    files = {path: index, f"{path}.gz": gzip.compress(index, mtime=0)}
    head = f"Origin: Debian\nSuite: {release}\nCodename: {release}\nDate: {RELEASED}\nArchitectures: amd64\nComponents: main\nSHA256:\n"
    rows = "".join(f" {hashlib.sha256(content).hexdigest()} {len(content)} {name}\n" for name, content in files.items())
    return {f"{root}/InRelease": key.sign(head + rows), **{f"{root}/{name}": content for name, content in files.items()}}
