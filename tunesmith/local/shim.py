"""The supervisor of one attempt to run a container: what containerd's shim and the PID namespace are to a real pod.

Run as a script, with the standard library only, so that it starts at once and stays small::

    python -I -S shim.py <pod folder> <attempt>

It reads ``spec.<attempt>.json``, claims the attempt by making ``shim.<attempt>.json`` (a second supervisor finds it and
leaves), runs the command in a process group of its own and writes ``exit.<attempt>.json`` when nothing of it is left:

- Every process that the command leaves behind is killed with it, also one that made itself a daemon: on Linux this
  process is their subreaper, so they cannot escape to init.
- On SIGTERM the group gets SIGTERM, and SIGKILL when the grace period is over.
- The shim outlives the controller, so its death neither ends the job nor loses an exit code. When the controller is
  gone the shim starts it again; when the cluster's folder is gone it kills its command and leaves.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TICK_S = 0.05
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def start_time(pid: int) -> str | None:
    """When the process started, in a form only good for comparing; None if it is gone or a zombie.

    With it a recycled pid is not taken for the process that had it before.
    """
    if not sys.platform.startswith("linux"):
        command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
        shown = subprocess.run(command, capture_output=True, text=True, check=False)
        state, _, started = shown.stdout.strip().partition(" ")
        return None if not state or state.startswith("Z") else started.strip()
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if fields[0] in "ZX" else fields[19]


def descendants(pid: int) -> list[int]:
    """All living processes below ``pid``, parents before children (Linux; elsewhere none are found)."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = stat.read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = list(children.get(pid, []))
    for parent in found:
        found += children.get(parent, [])
    return found


def marked(mark: str) -> list[int]:
    """All processes whose environment has the entry ``mark`` (Linux; elsewhere none are found)."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
    return found


def group(leader: int, started: str) -> list[int]:
    """The living processes of the group that ``leader`` leads or, being dead, led.

    Args:
        leader: its pid, which nobody else gets as long as one of the group lives.
        started: its `start_time`, so that no group which got the same number later is taken for it.
    """
    if start_time(leader) not in (None, started):
        return []
    if not sys.platform.startswith("linux"):
        shown = subprocess.run(["ps", "-A", "-o", "pid=,pgid=,stat="], capture_output=True, text=True, check=False)
        rows = [line.split() for line in shown.stdout.splitlines()]
        return [int(pid) for pid, of, state, *_ in rows if int(of) == leader and not state.startswith("Z")]
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = stat.read_text().rpartition(")")[2].split()
            if fields[0] not in "ZX" and int(fields[2]) == leader and int(fields[19]) >= int(started):
                found.append(int(stat.parent.name))
    return found


def claim(folder: Path, attempt: int, pid: int, started: str | None) -> bool:
    """Take an attempt for the supervisor ``pid``; False if another has it. Pid 0: it shall never start."""
    me = folder / f".shim.{attempt}.{os.getpid()}"
    me.write_text(json.dumps({"pid": pid, "start_time": started, "at": time.time()}))
    try:
        os.link(me, folder / f"shim.{attempt}.json")
    except FileExistsError:
        return False
    finally:
        me.unlink()
    return True


def kill(pids: list[int], number: int = signal.SIGKILL) -> None:
    """Send the signal to each process that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` so that a reader sees all or nothing, and only the user does: it may hold secrets."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(value, file)
    draft.rename(path)


def _prctl(option: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class Shim:
    """One attempt: ``run`` returns when it is over."""

    def __init__(self, folder: Path, attempt: int):
        self.folder = folder
        self.attempt = attempt
        self.spec: dict[str, Any] = json.loads((folder / f"spec.{attempt}.json").read_text())
        self.term_at: float | None = None
        self.controller_at = time.monotonic() + 2  # when to look next whether the controller lives
        self.controller_pause = 2.0
        self.status: int | None = None

    def run(self) -> None:
        """Claim the attempt, run the command to its end, and report it."""
        if not claim(self.folder, self.attempt, os.getpid(), start_time(os.getpid())):
            return
        signal.signal(signal.SIGTERM, lambda *_: self._asked_to_end())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        started = time.time()
        try:
            child = self._start()
        except OSError as error:
            self._report({"code": 128, "reason": "StartError", "message": str(error), "started": started})
            return
        while self.status is None:
            self._reap(child.pid)
            self._press(child.pid)
            self._look_after_the_controller()
            time.sleep(TICK_S if self.status is None else 0)
        self._sweep(child.pid)
        code = self.status if self.status >= 0 else 128 - self.status
        self._report({"code": code, "reason": "Completed" if code == 0 else "Error", "message": "", "started": started})

    def _start(self) -> subprocess.Popen[bytes]:
        with open(self.spec["log"], "ab") as log:
            child = subprocess.Popen(
                self.spec["argv"],
                env=self.spec["env"],
                cwd=self.spec["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                # If the shim itself is killed, its command goes with it and the controller ends the rest.
                preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
            )
        # For the controller, should it have to end the group without this process. One that is over already has no
        # start time any more; what it has left began after this process.
        about = {"pid": child.pid, "start_time": start_time(child.pid) or start_time(os.getpid())}
        with contextlib.suppress(OSError):  # the disk is full: the command runs all the same
            write_json(self.folder / f"command.{self.attempt}.json", about)
        return child

    def _asked_to_end(self) -> None:
        self.term_at = self.term_at or time.monotonic()

    def _reap(self, main: int) -> None:
        """Collect every child that has ended; orphans of the command are children, too."""
        while True:
            try:
                pid, raw = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == main:
                self.status = os.waitstatus_to_exitcode(raw)

    def _press(self, main: int) -> None:
        """Pass on a wish to end, once, and enforce it after the grace period."""
        if self.term_at is None or self.status is not None:
            return
        if not self.spec.get("told"):
            self.spec["told"] = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(main, signal.SIGTERM)
        elif time.monotonic() - self.term_at >= self.spec["grace_s"]:
            self._kill_all(main)

    def _kill_all(self, main: int) -> None:
        """On Linux everything below this process, elsewhere at least the command's group."""
        if sys.platform.startswith("linux"):
            kill(descendants(os.getpid()))
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(main, signal.SIGKILL)

    def _sweep(self, main: int) -> None:
        """Kill what the command left behind, until nothing is."""
        while True:
            self._kill_all(main)
            try:
                ended, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not ended:
                time.sleep(TICK_S / 5)

    def _look_after_the_controller(self) -> None:
        """Start the controller again if it has died, ever more seldom if it keeps dying."""
        if time.monotonic() < self.controller_at:
            return
        if not Path(self.spec["database"]).exists():
            self._asked_to_end()
            self.spec["grace_s"] = 0
        elif self._controller_is_gone():
            self.controller_pause = min(60.0, self.controller_pause * 2)
            self._start_controller()
        else:
            self.controller_pause = 2.0
        self.controller_at = time.monotonic() + self.controller_pause

    def _start_controller(self) -> None:
        """Start it, and wait until it has detached itself: not below this process, or it would end with the command."""
        _prctl(_PR_SET_CHILD_SUBREAPER, 0)
        with open(self.spec["controller_log"], "ab") as log, contextlib.suppress(OSError):
            subprocess.run(
                self.spec["controller"],
                env=self.spec["controller_env"],
                cwd=Path(self.spec["database"]).parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                check=False,
            )
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def _controller_is_gone(self) -> bool:
        try:
            with open(self.spec["lock"], "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def _report(self, outcome: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the folder is gone: nobody is left to tell
            write_json(self.folder / f"exit.{self.attempt}.json", outcome | {"finished": time.time()})
            if Path(self.spec["database"]).exists() and self._controller_is_gone():
                self._start_controller()  # somebody must read the report


if __name__ == "__main__":
    Shim(Path(sys.argv[1]), int(sys.argv[2])).run()
