"""Run a function in a process of its own: as another user, on a host with another name, to be killed."""

from __future__ import annotations

import ctypes
import os
import pickle
import socket
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

NEW_HOSTNAMES = 0x04000000  # CLONE_NEWUTS, unshare(2)


@dataclass(frozen=True)
class Surroundings:
    """What the process finds: user, group and further groups, host name, umask and environment."""

    user: int | None = None
    host: str = ""
    umask: int = 0o022
    environment: dict[str, str] = field(default_factory=dict)
    groups: tuple[int, ...] = ()

    def enter(self) -> None:
        if self.host:
            if ctypes.CDLL(None, use_errno=True).unshare(NEW_HOSTNAMES):
                raise OSError(ctypes.get_errno(), "unshare")
            socket.sethostname(self.host)
        if self.user is not None:
            os.setgroups(list(self.groups))
            os.setresgid(self.user, self.user, self.user)
            os.setresuid(self.user, self.user, self.user)
        os.umask(self.umask)
        os.environ.update(self.environment)
        os.chdir("/")


class Child:
    """A forked process that calls `function`. Forked, so that it needs no files that another user may not read."""

    def __init__(self, function: Callable[[], Any], surroundings: Surroundings) -> None:
        self._read, write = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            os.close(self._read)
            status = 1
            try:
                surroundings.enter()
                answer: Any
                try:
                    answer = function()
                except Exception as error:
                    answer = error
                with os.fdopen(write, "wb") as pipe:
                    pickle.dump(answer, pipe)
                status = 0
            finally:
                os._exit(status)
        os.close(write)

    def result(self) -> Any:
        """What the function returned; what it raised is raised."""
        with os.fdopen(self._read, "rb") as pipe:
            answer = pickle.load(pipe)
        os.waitpid(self.pid, 0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self, signal: int) -> None:
        os.kill(self.pid, signal)
        os.waitpid(self.pid, 0)
        os.close(self._read)


def run(function: Callable[[], Any], surroundings: Surroundings) -> Any:
    """The function's result from a process in these surroundings."""
    return Child(function, surroundings).result()
