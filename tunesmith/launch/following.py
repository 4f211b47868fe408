"""Following one object: watches of the object and of its pods, its log, and the snapshots that they add up to."""

from __future__ import annotations

import collections
import contextlib
import queue
import re
import threading
from types import TracebackType
from typing import Self

from tunesmith.clusters.base import Cluster, ClusterError, NotFound, WatchEvent
from tunesmith.launch.progress import emit
from tunesmith.resources import DEPLOYMENT, EVENT, POD, Kind
from tunesmith.workloads.base import Manifest, Snapshot, Workload

_WATCH_SECONDS = 300.0  # one request of a watch; the cluster resumes it without a gap
_TAIL_LINES = 20
_LOG_FLUSH_SECONDS = 5.0
_ENDED = ("Succeeded", "Failed")
_METRIC_LINE = re.compile(
    r"(?:^|\s)step=(?P<step>\d{1,15})\s(?:.*\s)?loss=(?P<loss>[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)(?:\s|$)"
)


class Follower:
    """Turns changes of an object and its pods into snapshots, and copies the log of its main pod to ours.

    Threads do the watching, since a watch blocks; they end with the object, or with the context.
    """

    def __init__(self, cluster: Cluster, workload: Workload, handle: Manifest, task: str):
        self._cluster, self._workload, self._handle, self._task = cluster, workload, handle, task
        self._name: str = handle["metadata"]["name"]
        self._namespace: str = handle["metadata"]["namespace"]
        self._object: Manifest | None = handle
        self._pods: dict[str, Manifest] = {}
        self._deployments: dict[str, Manifest] = {}
        self._changes: queue.Queue[tuple[Kind, WatchEvent] | ClusterError] = queue.Queue()
        self._stopped = threading.Event()
        self._log: threading.Thread | None = None
        self._tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)

    def __enter__(self) -> Self:
        labels = self._workload.pod_labels(self._name)
        self._watch(self._workload.KIND, name=self._name)
        self._watch(POD, labels=labels)
        if self._workload.LIFETIME == "service":
            self._watch(DEPLOYMENT, labels=labels)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()

    def next(self, timeout_s: float | None) -> Snapshot | None:
        """The next snapshot after one or several changes; None when nothing changed for ``timeout_s``."""
        try:
            self._apply(self._changes.get(timeout=timeout_s))
        except queue.Empty:
            return None
        with contextlib.suppress(queue.Empty):
            while True:  # what has piled up meanwhile is one snapshot
                self._apply(self._changes.get_nowait())
        self._start_log()
        return self._snapshot()

    def with_events(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the events about the object and its pods."""
        uids = {pod["metadata"]["uid"] for pod in snapshot.pods} | {self._handle["metadata"]["uid"]}
        events = self._cluster.list(EVENT, self._namespace)
        mine = tuple(event for event in events if (event.get("involvedObject") or {}).get("uid") in uids)
        return Snapshot(snapshot.object, snapshot.pods, mine, snapshot.deployments)

    def final_snapshot(self) -> Snapshot:
        """A snapshot read anew: the object's end may be seen before the last words of its pods."""
        self._pods = {pod["metadata"]["uid"]: pod for pod in self._list(POD) if self._is_ours(pod)}
        return self.with_events(self._snapshot())

    def log_tail(self, pod: str) -> tuple[str, ...]:
        """The last lines of ``pod``, or of the main pod."""
        main = self._workload.log_pod(self._name)
        if self._log and self._phases().get(main) in _ENDED:  # else its log goes on, and there is nothing to wait for
            self._log.join(_LOG_FLUSH_SECONDS)
        if pod and pod != main:
            with contextlib.suppress(ClusterError):
                return tuple(self._cluster.logs(self._namespace, pod, tail=_TAIL_LINES))
        return tuple(self._tail)

    def _snapshot(self) -> Snapshot:
        return Snapshot(self._object, tuple(self._pods.values()), (), tuple(self._deployments.values()))

    def _list(self, kind: Kind) -> list[Manifest]:
        return self._cluster.list(kind, self._namespace, self._workload.pod_labels(self._name))

    def _watch(self, kind: Kind, *, name: str | None = None, labels: dict[str, str] | None = None) -> None:
        def run() -> None:
            try:
                while not self._stopped.is_set():
                    watch = self._cluster.watch(
                        kind, self._namespace, name=name, labels=labels, timeout_s=_WATCH_SECONDS
                    )
                    for event in watch:
                        self._changes.put((kind, event))
                        if self._stopped.is_set():
                            return
            except ClusterError as error:
                self._changes.put(error)

        threading.Thread(target=run, name=f"watch-{kind.plural}", daemon=True).start()

    def _apply(self, change: tuple[Kind, WatchEvent] | ClusterError) -> None:
        if isinstance(change, ClusterError):
            raise change
        kind, event = change
        uid = event.object["metadata"]["uid"]
        if kind is POD and not self._is_ours(event.object):
            return  # of an earlier job of the same name, whose pods are still ending
        if kind is POD or kind is DEPLOYMENT:
            known = self._pods if kind is POD else self._deployments
            known.pop(uid, None) if event.type == "DELETED" else known.__setitem__(uid, event.object)
        elif uid == self._handle["metadata"]["uid"]:
            self._object = None if event.type == "DELETED" else event.object
        else:  # another object under our name: ours is gone
            self._object = None

    def _is_ours(self, pod: Manifest) -> bool:
        """Pods of a service belong to its Deployment; those of a job name the job itself."""
        owners = [owner.get("uid") for owner in pod["metadata"].get("ownerReferences") or []]
        return self._workload.LIFETIME == "service" or not owners or self._handle["metadata"]["uid"] in owners

    def _start_log(self) -> None:
        pod = self._workload.log_pod(self._name)
        if self._log or pod is None:
            return
        if self._phases().get(pod) in ("Running", *_ENDED):
            self._log = threading.Thread(target=self._copy_log, args=(pod,), name="log", daemon=True)
            self._log.start()

    def _phases(self) -> dict[str | None, str]:
        return {p["metadata"]["name"]: (p.get("status") or {}).get("phase") or "" for p in self._pods.values()}

    def _copy_log(self, pod: str) -> None:
        with contextlib.suppress(NotFound):  # the pod may be cleaned up before its last line is read
            for line in self._cluster.logs(self._namespace, pod, follow=True):
                self._tail.append(line)
                print(f"| {line}", flush=True)
                if metric := _METRIC_LINE.search(line):
                    emit("metric", self._task, step=int(metric["step"]), loss=float(metric["loss"]))
