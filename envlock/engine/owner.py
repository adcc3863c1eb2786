"""Who made a temporary thing in an engine, so that a later run can tell what a killed one left behind."""

from __future__ import annotations

import os
import time
from pathlib import Path

LABEL = "dev.envlock.temporary"
FORGOTTEN = 24 * 3600  # seconds after which what another host or namespace made is taken for left behind
_UNKNOWN = "0"  # where there is no /proc to tell processes apart


def stamp() -> str:
    """This process and the time, as `boot-namespace-pid-start-now` in hex: no other process has or will have the same. Also a valid tag."""
    return f"{_place()}-{os.getpid():x}-{_started(os.getpid()):x}-{int(time.time()):x}"


def is_forgotten(text: str) -> bool:
    """Whether the process that made this stamp is gone.

    Processes of this boot and namespace are looked up; another host may share the engine, and of those only age can tell. A text that
    is no stamp belongs to nobody that is still there.
    """
    try:
        boot, namespace, pid, started, then = text.split("-")[:5]
        if f"{boot}-{namespace}" == _place() and boot != _UNKNOWN:
            return _started(int(pid, 16)) != int(started, 16)
        return time.time() - int(then, 16) > FORGOTTEN
    except ValueError:
        return True


def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "")[:12]
        return f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino:x}"
    except OSError:
        return f"{_UNKNOWN}-{_UNKNOWN}"


def _started(pid: int) -> int:
    """Start time of a process in clock ticks since boot (proc(5), field 22 of stat); 0 where there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[19])
