"""Install wheels into /opt/venv with PyPA's `installer`, and compile their modules; runs inside the image.

    python install_wheels.py VERSION INSTALLER LIST

VERSION is Python's major and minor version, INSTALLER the wheel of the library, LIST a file with a line `sha256  path` for each
wheel; paths are relative to the current folder. Where a file is there already, it must be the same file, and stays.
"""

import base64
import hashlib
import json
import os
import posixpath
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, sys.argv[2])

from installer import install
from installer.destinations import SchemeDictionaryDestination
from installer.records import Hash, RecordEntry
from installer.sources import WheelFile

VENV = "/opt/venv"
INSTALLER = b"envlock\n"


class Destination(SchemeDictionaryDestination):
    """Leaves alone what is there and equal; `written` has the paths of the files that were new."""

    def __init__(self, version, distribution):
        site = f"{VENV}/lib/python{version}/site-packages"
        headers = f"{VENV}/include/site/python{version}/{distribution}"
        schemes = {"purelib": site, "platlib": site, "scripts": VENV + "/bin", "data": VENV, "headers": headers}
        super().__init__(schemes, VENV + "/bin/python", "posix")
        self.written = []

    def write_to_fs(self, scheme, path, stream, is_executable):
        place = posixpath.normpath(posixpath.join(self.scheme_dict[scheme], path))
        if not os.path.lexists(place):
            self.written.append(place)
            return super().write_to_fs(scheme, path, stream, is_executable)
        digest, size = digest_of(stream)
        with Path(place).open("rb") as present:
            if digest_of(present)[0] != digest:
                sys.exit(f"{place} would be written twice, with different content")
        return RecordEntry(path, Hash("sha256", base64.urlsafe_b64encode(digest).decode().rstrip("=")), size)

    def modules(self):
        """The modules that hold anything among the new files, without the slash in front, sorted."""
        site = self.scheme_dict["purelib"] + "/"
        modules = [path for path in self.written if path.startswith(site) and path.endswith(".py")]
        return sorted(path[1:] for path in modules if Path(path).stat().st_size)


def digest_of(stream):
    """sha256 and length of what a stream holds."""
    hasher, size = hashlib.sha256(), 0
    for chunk in iter(lambda: stream.read(1 << 20), b""):
        hasher.update(chunk)
        size += len(chunk)
    return hasher.digest(), size


def compile_modules(modules):
    """Compile modules in place, by the program that does nothing else: what is imported here would show in the bytes."""
    compiler = str(Path(__file__).resolve().parent / "compile_modules.py")
    with tempfile.NamedTemporaryFile("w", suffix=".json", dir="/dev/shm") as jobs:
        json.dump([["", "", module] for module in modules], jobs)
        jobs.flush()
        program = [sys.executable, "-s", "-S", "-B", "-W", "ignore", compiler, jobs.name]
        subprocess.run(program, check=True)


def main(version, list_path):
    os.umask(0o022)
    for line in Path(list_path).read_text(encoding="utf-8").splitlines():
        sha256, path = line.split(None, 1)
        with Path(path).open("rb") as stream:
            if digest_of(stream)[0].hex() != sha256:
                sys.exit(f"{path} is not the file that the list names")
        with WheelFile.open(path) as source:
            destination = Destination(version, source.distribution)
            install(source, destination, {"INSTALLER": INSTALLER})
        compile_modules(destination.modules())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[3])
