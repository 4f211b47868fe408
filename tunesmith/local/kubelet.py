"""Runs the pods of one controller as processes, and writes what becomes of them into their status.

The node of a LocalCluster: it starts a supervisor (`tunesmith.local.shim`) for each attempt of a pod's container, reads
its report, restarts by the pod's ``restartPolicy`` with a back-off, and ends the processes of a deleted pod. All it
knows stands in the pod and in the files of ``pods/<uid>/``, so a new controller goes on with what still runs.

Of a real container these hold: command, args, env (also ``$(NAME)`` in them), working folder, signals, exit code,
termination message. These do not: the image (an event says so), limits of CPU and memory, network and mounts.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tunesmith.clusters.base import AlreadyExists, Manifest, NotFound
from tunesmith.clusters.local import LocalCluster, Stopwatch, clean_environment, merge, now
from tunesmith.local import shim
from tunesmith.resources import POD

TERMINATION_LOG = "TUNESMITH_TERMINATION_LOG"
MARK = "TUNESMITH_POD_UID"
MESSAGE_BYTES = 4096
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.5, 10.0
_CLAIM_S = 10.0  # a supervisor that has not claimed its attempt after this long is started again
_FORCE_S = 2.0  # a supervisor that has not ended a deleted pod this long after the grace period is killed
_KILL_S = 1.0  # how long to wait for what was killed, before other pods have their turn

_LOOK_S = 1.0  # a supervisor that was killed is noticed, and a deadline kept, after this long at the latest
_PROBE_S = 0.2

Ready = Callable[[Manifest], bool]


def stamp(seconds: float) -> str:
    """A moment, in seconds since the epoch, as Kubernetes writes it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def record(cluster: LocalCluster, about: Manifest, reason: str, message: str, *, warning: bool = False) -> None:
    """Write an Event about an object."""
    metadata = about["metadata"]
    involved = {key: metadata[key] for key in ("namespace", "name", "uid")}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
        "involvedObject": {"apiVersion": about["apiVersion"], "kind": about["kind"], **involved},
        "reason": reason,
        "message": message,
        "type": "Warning" if warning else "Normal",
        "firstTimestamp": now(),
        "lastTimestamp": now(),
        "count": 1,
        "source": {"component": "tunesmith-local"},
    }
    with contextlib.suppress(AlreadyExists):  # of a random name: twice in a lifetime, and then an event is missing
        cluster.create(event)


def container_of(pod: Manifest) -> Manifest:
    """The pod's only container."""
    container: Manifest = pod["spec"]["containers"][0]
    return container


class Kubelet:
    """The processes of all pods below one controlled object.

    Attributes:
        cluster: where the pods are.
        root: uid of the controlled object.
        ready: whether a running pod can serve; by default it can as soon as it runs.
    """

    def __init__(self, cluster: LocalCluster, root: str, ready: Ready = lambda pod: True):
        self.cluster = cluster
        self.root = root
        self.ready = ready
        self._children: list[subprocess.Popen[bytes]] = []
        self._launched: dict[tuple[str, int], float] = {}  # these two in monotonic seconds
        self._force_at: dict[str, float] = {}
        self._stopwatch = Stopwatch()
        self._awaited: set[Path] = set()
        self._wake_at = 0.0

    def stirred(self) -> bool:
        """Whether `sync` has something to do again; cheap enough to be asked many times a second."""
        return time.monotonic() >= self._wake_at or any(path.exists() for path in self._awaited)

    def sync(self) -> list[Manifest]:
        """Bring processes and statuses up to date once; returns the pods as they are then."""
        self._children = [child for child in self._children if child.poll() is None]
        self._awaited, self._wake_at = set(), time.monotonic() + _LOOK_S
        for pod in self.cluster.under(self.root, POD):
            if pod["metadata"].get("deletionTimestamp"):
                self._end(pod)
            elif pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
                self._advance(pod)
        return self.cluster.under(self.root, POD)

    # One pod.

    def _advance(self, pod: Manifest) -> None:
        attempt = self._attempt(pod)
        exited, claimed = self._read(pod, "exit", attempt), self._read(pod, "shim", attempt)
        if exited is None and claimed is not None and not _alive(claimed):
            # Its report is written before it ends, so look once more.
            exited = self._read(pod, "exit", attempt) or self._lost(pod, attempt)
        seen_running = _container_status(pod).get("restartCount") == attempt and "state" in _container_status(pod)
        if exited is not None and (seen_running or exited["reason"] == "StartError"):
            self._ended(pod, attempt, exited)
        elif claimed is not None:
            self._running(pod, attempt, claimed)  # also one that was too quick to be seen: an attempt starts, then ends
        elif time.monotonic() >= self._due(pod, attempt):
            self._launch(pod, attempt)
        else:
            self._awaited.add(self._file(pod, "shim", attempt))
        if not pod.get("status"):
            self._write(pod, {"phase": "Pending"})

    def _attempt(self, pod: Manifest) -> int:
        """The number of the newest attempt that was launched, or 0."""
        specs = self._folder(pod).glob("spec.*.json")
        return max((int(spec.name.split(".")[1]) for spec in specs), default=0)

    def _due(self, pod: Manifest, attempt: int) -> float:
        """When the attempt may be launched, in monotonic seconds."""
        launched = self._launched.get((pod["metadata"]["uid"], attempt))
        return 0.0 if launched is None else launched + _CLAIM_S

    def _launch(self, pod: Manifest, attempt: int) -> None:
        uid, folder = pod["metadata"]["uid"], self._folder(pod)
        folder.mkdir(exist_ok=True)
        environment = self._environment(pod, attempt)
        container = container_of(pod)
        words = [*container["command"], *(container.get("args") or [])]
        declared = {variable["name"]: environment[variable["name"]] for variable in container.get("env") or []}
        spec = {
            "argv": [_expand(word, declared) for word in words],
            "env": environment,
            "cwd": container.get("workingDir") or str(folder),
            "log": str(self.cluster.folder / "logs" / f"{uid}.{attempt}.log"),
            "grace_s": pod["spec"].get("terminationGracePeriodSeconds", 30),
            "database": str(self.cluster.folder / "cluster.db"),
            "lock": str(self.cluster.lock_file(self.root)),
            "controller": self.cluster.controller_command(self.root),
            "controller_env": clean_environment(),
            "controller_log": str(self.cluster.folder / "controllers" / f"{self.root}.log"),
        }
        shim.write_json(self._file(pod, "spec", attempt), spec)
        self._launched[uid, attempt] = time.monotonic()
        self._awaited.add(self._file(pod, "shim", attempt))
        command = [sys.executable, "-I", "-S", shim.__file__, str(folder), str(attempt)]
        with (folder / "shim.log").open("ab") as log:
            child = subprocess.Popen(
                command, cwd=folder, env=clean_environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self._children.append(child)

    def _environment(self, pod: Manifest, attempt: int) -> dict[str, str]:
        """A clean environment and the container's own; the last entry of a name counts, as in Kubernetes."""
        metadata = pod["metadata"]
        values = clean_environment() | {"HOSTNAME": metadata["name"], MARK: metadata["uid"]}
        values[TERMINATION_LOG] = str(self._folder(pod) / f"termination.{attempt}")
        own: dict[str, str] = {}
        for variable in container_of(pod).get("env") or []:
            if field := variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath"):
                own[variable["name"]] = metadata[field.removeprefix("metadata.")]
            else:
                own[variable["name"]] = _expand(variable.get("value") or "", own)
        return values | own

    def _running(self, pod: Manifest, attempt: int, claimed: Mapping[str, Any]) -> None:
        self._awaited.add(self._file(pod, "exit", attempt))
        before = _container_status(pod)
        if not before.get("state", {}).get("running") or before.get("restartCount") != attempt:
            record(self.cluster, pod, "Started", f"Started container {container_of(pod)['name']}")
            state = {"running": {"startedAt": stamp(claimed["at"])}}
            here = {"phase": "Running", "podIP": "127.0.0.1", "hostIP": "127.0.0.1"}
            started = {"startTime": pod.get("status", {}).get("startTime", stamp(claimed["at"]))}
            pod = self._write(pod, here | started | self._container(pod, attempt, state, ready=False))
            before = _container_status(pod)
        ready = before.get("ready") or self.ready(pod)  # once ready, a container is so as long as it runs
        if not ready:
            self._wake_at = min(self._wake_at, time.monotonic() + _PROBE_S)
        if ready != before.get("ready"):
            self._write(pod, self._container(pod, attempt, before["state"], ready=ready))

    def _ended(self, pod: Manifest, attempt: int, exited: Mapping[str, Any]) -> None:
        before = _container_status(pod)
        waiting = before.get("state", {}).get("waiting")
        if waiting is None:
            # The supervisor has ended all below it; what came from under it meanwhile is found by its mark.
            if self._kill_left(pod, attempt):
                self._note_end(pod, attempt, exited)
            return
        left_s = self._pause(attempt) - self._stopwatch.since((pod["metadata"]["uid"], attempt), exited["finished"])
        if left_s <= 0:
            self._launch(pod, attempt + 1)
        else:
            self._wake_at = min(self._wake_at, time.monotonic() + left_s)

    def _note_end(self, pod: Manifest, attempt: int, exited: Mapping[str, Any]) -> None:
        """Write the end of an attempt: for good, or until the next one."""
        policy = pod["spec"].get("restartPolicy", "Always")
        terminated = {"terminated": self._terminated(pod, attempt, exited)}
        name = container_of(pod)["name"]
        if exited["reason"] == "StartError":
            record(self.cluster, pod, "Failed", f"Error: failed to start {name}: {exited['message']}", warning=True)
        if policy == "Always" or (policy == "OnFailure" and exited["code"] != 0):
            pause = self._pause(attempt)
            place = f"{name} pod={pod['metadata']['name']}_{pod['metadata']['namespace']}({pod['metadata']['uid']})"
            message = f"back-off {pause:g}s restarting failed container={place}"
            record(self.cluster, pod, "BackOff", f"Back-off restarting failed container {place}", warning=True)
            state = {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
            self._write(pod, {"phase": "Running"} | self._container(pod, attempt, state, last=terminated))
        else:
            phase = "Succeeded" if exited["code"] == 0 else "Failed"
            self._write(pod, {"phase": phase} | self._container(pod, attempt, terminated))

    def _terminated(self, pod: Manifest, attempt: int, exited: Mapping[str, Any]) -> Manifest:
        state = {"exitCode": exited["code"], "reason": exited["reason"]}
        if message := exited["message"] or self._message(pod, attempt, exited["code"]):
            state["message"] = message
        times = {"startedAt": stamp(exited["started"]), "finishedAt": stamp(exited["finished"])}
        return state | times

    def _message(self, pod: Manifest, attempt: int, code: int) -> str:
        """The termination message: what the container wrote for it, else (if it asks for that) the end of its log."""
        written = _tail(self._folder(pod) / f"termination.{attempt}")
        fallback = container_of(pod).get("terminationMessagePolicy") == "FallbackToLogsOnError"
        if written or code == 0 or not fallback:
            return written
        lines = _tail(self.cluster.folder / "logs" / f"{pod['metadata']['uid']}.{attempt}.log", 2048)
        return "\n".join(lines.splitlines()[-80:])

    def _lost(self, pod: Manifest, attempt: int) -> Manifest | None:
        """The supervisor was killed: end what it has left, and say so; None while something still lives."""
        if not self._kill_left(pod, attempt):
            return None
        moment = time.time()
        message = "the supervisor of this container was killed"
        return {"code": 137, "reason": "Error", "message": message, "started": moment, "finished": moment}

    def _end(self, pod: Manifest) -> None:
        """Bring a deleted pod to its end: a signal, then force, and its removal when nothing runs any more."""
        uid, attempt = pod["metadata"]["uid"], self._attempt(pod)
        folder, claimed = self._folder(pod), self._read(pod, "shim", attempt)
        if claimed is None and folder.exists():
            shim.claim(folder, attempt, 0, None)  # a supervisor that is about to start finds this, and leaves
            claimed = self._read(pod, "shim", attempt)
        if claimed is not None and _alive(claimed):
            grace_s = pod["metadata"].get("deletionGracePeriodSeconds", 30)
            force_at = self._force_at.setdefault(uid, time.monotonic() + grace_s + _FORCE_S)
            if time.monotonic() < force_at:
                self._awaited.add(self._file(pod, "exit", attempt))
                shim.kill([claimed["pid"]], signal.SIGTERM)
                return
            if not _killed_with_all_below(claimed):
                return
        if not self._kill_left(pod, attempt):
            return
        with contextlib.suppress(OSError):
            for private in folder.glob("spec.*.json"):
                private.unlink()
        self.cluster.finalize(pod)

    def _kill_left(self, pod: Manifest, attempt: int) -> bool:
        """Kill what carries the pod's mark or is of its command's group; whether all of it has gone."""
        mark, command = f"{MARK}={pod['metadata']['uid']}", self._read(pod, "command", attempt)

        def left() -> list[int]:
            of_group = shim.group(command["pid"], command["start_time"]) if command else []
            return [*shim.marked(mark), *of_group]

        return _killed(left)

    # Files and statuses.

    def _folder(self, pod: Manifest) -> Path:
        return self.cluster.folder / "pods" / str(pod["metadata"]["uid"])

    def _file(self, pod: Manifest, what: str, attempt: int) -> Path:
        return self._folder(pod) / f"{what}.{attempt}.json"

    def _read(self, pod: Manifest, what: str, attempt: int) -> Manifest | None:
        try:
            value: Manifest = json.loads(self._file(pod, what, attempt).read_text())
        except FileNotFoundError:
            return None
        return value

    @staticmethod
    def _pause(attempt: int) -> float:
        return float(min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2**attempt))

    def _container(
        self, pod: Manifest, attempt: int, state: Manifest, *, ready: bool = False, last: Manifest | None = None
    ) -> Manifest:
        """The parts of a pod's status that speak of its container."""
        container, before = container_of(pod), _container_status(pod)
        status = {
            "name": container["name"],
            "image": container.get("image", ""),
            "imageID": "",
            "restartCount": attempt,
            "ready": ready,
            "started": "running" in state,
            "state": state,
            "lastState": last or before.get("lastState", {}),
        }
        truth = "True" if ready else "False"
        conditions = [{"type": kind, "status": truth} for kind in ("ContainersReady", "Ready")]
        return {"containerStatuses": [status], "conditions": conditions}

    def _write(self, pod: Manifest, status: Manifest) -> Manifest:
        whole = merge(pod.get("status", {}), status)
        with contextlib.suppress(NotFound):
            name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
            return self.cluster.patch(POD, namespace, name, {"status": whole}, subresource="status")
        return pod


def _container_status(pod: Manifest) -> Manifest:
    statuses = pod.get("status", {}).get("containerStatuses") or [{}]
    status: Manifest = statuses[0]
    return status


def _alive(claimed: Mapping[str, Any]) -> bool:
    started = shim.start_time(claimed["pid"])
    return started is not None and started == str(claimed["start_time"])


def _killed_with_all_below(claimed: Mapping[str, Any]) -> bool:
    """Kill a supervisor, last: as long as it is there, what runs below it cannot get away. Whether all has gone."""
    below_gone = _killed(lambda: shim.descendants(claimed["pid"]))
    return below_gone and _killed(lambda: [claimed["pid"]] if _alive(claimed) else [])


def _killed(left: Callable[[], list[int]]) -> bool:
    """Kill what ``left`` finds until it finds nothing, for `_KILL_S` at most; whether that was reached."""
    end = time.monotonic() + _KILL_S
    while found := left():
        if time.monotonic() > end:
            return False
        shim.kill(found)
        time.sleep(0.01)
    return True


def _tail(path: Path, limit: int = MESSAGE_BYTES) -> str:
    """The last ``limit`` bytes of a file as text; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - limit))
            return file.read(limit).decode(errors="replace")
    except OSError:
        return ""


def _expand(text: str, values: Mapping[str, str]) -> str:
    """``$(NAME)`` replaced as Kubernetes does; an unknown name stays as it is, and ``$$`` stands for ``$``.

    A name is all up to the first closing bracket, as in its third_party/forked/golang/expansion: so of a shell's
    ``$(ps $$)`` nothing changes.
    """
    return re.sub(
        r"\$\$|\$\(([^)]*)\)",
        lambda match: "$" if match[0] == "$$" else values.get(match[1], match[0]),
        text,
    )
