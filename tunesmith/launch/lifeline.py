"""Ending with somebody: a process that works for another ends when that one is gone, however it went.

Who it is, is handed over by pid and start time in ``TUNESMITH_LIFELINE``. Reading one's own parent instead would be too
late when the parent was killed before the reading, and a pid alone may belong to somebody else by now.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

VARIABLE = "TUNESMITH_LIFELINE"

_LOOK_SECONDS = 0.3


def mine() -> str:
    """This process, for the variable of those that it starts."""
    return f"{os.getpid()}:{_started(os.getpid())}"


def hold(*, group: bool = False) -> None:
    """End this process, or its group, as soon as the process that the variable names is gone.

    Without the variable nothing happens: on a cluster a pod ends by itself.
    """
    pid, _, started = os.environ.get(VARIABLE, "").partition(":")
    if pid.isdigit():
        watch = threading.Thread(target=_watch, args=(int(pid), started, group), name="lifeline", daemon=True)
        watch.start()


def _watch(pid: int, started: str, group: bool) -> None:
    while _started(pid) == started:
        time.sleep(_LOOK_SECONDS)
    if group:
        os.killpg(os.getpgid(0), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _started(pid: int) -> str:
    """When a process began, in ticks since boot; empty if there is none, or only its zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return _started_elsewhere(pid)
    return "" if fields[0] in ("Z", "X") else fields[19]


def _started_elsewhere(pid: int) -> str:
    """Without /proc only that a process lives can be told."""
    if Path("/proc/self").exists():
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "alive"
