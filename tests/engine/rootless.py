"""A rootless engine beside the host's: Debian's, run by an ordinary user in namespaces of his own, with rootlesskit.

Needs root, to make the user. The engine, its data, the user and his home go at the end.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from newer import stop, wait_for_engine

USER = "envlock-rootless"

# As contrib/dockerd-rootless.sh starts it, without the networks that it would set up.
BOOT = 'rm -f /run/docker /run/containerd /run/xtables.lock; exec dockerd "$@"'


def why_not() -> str | None:
    """Why this host cannot start one; None where it can."""
    if os.geteuid() != 0:
        return "a rootless engine's user is made by root"
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    absent = [tool for tool in ("rootlesskit", "dockerd", "newuidmap", "useradd", "setpriv") if shutil.which(tool, path=path) is None]
    return f"a rootless engine needs {', '.join(absent)}" if absent else None


@contextmanager
def rootless_engine() -> Iterator[str]:
    """The URL of a running engine with an empty image store."""
    with tempfile.TemporaryDirectory(prefix="envlock-rootless-", dir="/var/tmp") as work:
        home = Path(work, "home")
        subprocess.run(["useradd", "--home-dir", home, "--create-home", "--shell", "/bin/sh", USER], check=True)
        try:
            user = pwd.getpwnam(USER)
            run = home / "run"
            run.mkdir(mode=0o700)
            for folder in (work, run):
                os.chown(folder, user.pw_uid, user.pw_gid)
            yield from _started(user, run, Path(work, "dockerd.log"))
        finally:
            subprocess.run(["userdel", USER], check=True, capture_output=True)


def _started(user: pwd.struct_passwd, run: Path, log: Path) -> Iterator[str]:
    socket = run / "docker.sock"
    identity = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--init-groups", "--pdeathsig", "KILL"]
    kit = ["rootlesskit", "--state-dir", str(run / "kit"), "--net=host", "--copy-up=/etc", "--copy-up=/run", "--propagation=rslave"]
    options = ["--rootless", "--iptables=false", "--bridge=none", "--host", f"unix://{socket}"]
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": user.pw_dir, "USER": USER, "XDG_RUNTIME_DIR": str(run)}
    command = ["unshare", "--net", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "setpriv", *identity, *kit]
    with log.open("wb") as messages:
        process = subprocess.Popen([*command, "sh", "-c", BOOT, "sh", *options], env=environment, stdout=messages, stderr=messages)
        try:
            wait_for_engine(socket, process, log)
            yield f"unix://{socket}"
        finally:
            stop(process)
