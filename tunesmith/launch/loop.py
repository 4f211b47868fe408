"""The one launch loop: preflight, attach or create, watch, result. Kinds never appear in it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from tunesmith.clusters.base import AlreadyExists, Cluster, ClusterError, NotFound
from tunesmith.errors import BadInput, TunesmithError
from tunesmith.launch.following import Follower
from tunesmith.launch.progress import emit, say
from tunesmith.resources import POD
from tunesmith.workloads.base import (
    LABEL_ATTEMPT,
    LABEL_IDENTITY,
    LABEL_MANAGED_BY,
    LABEL_TASK,
    Fault,
    Manifest,
    Observation,
    Problem,
    Snapshot,
    State,
    Workload,
    dns_label,
)
from tunesmith.workloads.pods import endings, restarts

LABEL_RESUME = "tunesmith.dev/resume-key"
LABEL_RUN = "tunesmith.dev/run"
LABEL_PIPELINE = "tunesmith.dev/pipeline"
MANAGED_BY = "tunesmith"

TIMEOUT = "Timeout"

_SLUG_LIMIT = 30  # leaves room for the identity, the attempt and the longest suffix that an operator appends
_PODS_GONE_SECONDS = 60


class Clock(Protocol):
    """Time, so that tests need not wait."""

    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class Refused(BadInput):
    """The manifest was not created, because it would be refused or never finish."""

    default_id = "refused-before-creation"

    def __init__(self, manifest: Manifest, problems: list[Problem]):
        name = f"{manifest['kind']} {manifest['metadata']['name']}"
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = "\n  ".join(str(problem) for problem in problems)
        super().__init__(f"{name} was not created: {count}\n  {lines}", "refused-before-creation")
        self.problems = tuple(problems)


class LaunchFailed(TunesmithError):
    """The job or service did not reach success."""

    default_id = "launch-failed"

    def __init__(self, outcome: Outcome, what: str):
        observation = outcome.observation
        code = f", exit code {observation.exit_code}" if observation.exit_code is not None else ""
        pod = f" in pod {observation.pod}" if observation.pod else ""
        super().__init__(
            f"{what} ended {observation.state}: {observation.reason}{code}{pod}. {observation.message}".rstrip(),
            "launch-failed",
        )
        self.fault = (observation.fault or Fault.SYSTEM).value
        self.reason = observation.reason
        self.exit_code_of_pod = observation.exit_code
        self.log_tail = outcome.log_tail


@dataclass(frozen=True)
class Request:
    """What a step asks to be launched.

    Attributes:
        workload: the module of the kind.
        build: makes the manifest from name, namespace, labels and annotations.
        identity: names this execution of the step; its objects are found by it.
        resume_key: names the work itself; objects of the same identity but other work are ended, not attached to.
        retries: relaunches allowed after failures of system or capacity.
        timeout_seconds: give up when the object has not ended by then; None leaves it to the kind's own deadline.
        before_create: called before each object is created, not before one is attached to.
    """

    workload: Workload
    build: Callable[..., Manifest]
    task: str
    namespace: str
    identity: str
    resume_key: str
    retries: int = 0
    timeout_seconds: float | None = None
    before_create: Callable[[], None] = lambda: None

    def labels(self, attempt: int) -> dict[str, str]:
        """Labels by which the objects of this step are found again."""
        run, pipeline = os.environ.get("TUNESMITH_RUN_KEY"), os.environ.get("TUNESMITH_PIPELINE")
        return {
            **({LABEL_RUN: run} if run else {}),
            **({LABEL_PIPELINE: dns_label(pipeline)} if pipeline else {}),
            LABEL_MANAGED_BY: MANAGED_BY,
            LABEL_TASK: dns_label(self.task),
            LABEL_IDENTITY: self.identity,
            LABEL_RESUME: self.resume_key,
            LABEL_ATTEMPT: str(attempt),
        }

    def manifest(self, attempt: int) -> Manifest:
        """The object of one attempt; its name is readable, unique, and the same whoever builds it."""
        name = f"{dns_label(self.task, limit=_SLUG_LIMIT)}-{self.identity[:10]}-{attempt}"
        return self.build(name=name, namespace=self.namespace, labels=self.labels(attempt), annotations={})


@dataclass(frozen=True)
class Try:
    """One object that was launched, and how it ended."""

    number: int
    object: Manifest
    observation: Observation
    started: str
    ended: str
    seconds: float
    restarts: int


@dataclass
class Outcome:
    """How a launch ended: the last attempt's observation, and every attempt."""

    observation: Observation
    snapshot: Snapshot
    tries: list[Try] = field(default_factory=list)
    log_tail: tuple[str, ...] = ()

    @property
    def result(self) -> dict[str, Any] | None:
        """The result that the job's pods left as termination message, if any did."""
        return next((e.result for e in endings(self.snapshot.pods) if e.result and "metrics" in e.result), None)


def launch(request: Request, cluster: Cluster, clock: Clock | None = None, tries: list[Try] | None = None) -> Outcome:
    """Run the request's job to its end, relaunching it after failures of system or capacity.

    Args:
        request: what to launch.
        cluster: where.
        clock: the machine's, but in tests.
        tries: a list to which each attempt is added, so that the caller knows of them even if this raises.

    Returns:
        The outcome, successful or not; `LaunchFailed` is the caller's to raise, after recording it.

    Raises:
        Refused: the manifest has problems; nothing was created.
        ClusterError: the cluster refused a request; the job of this step, if it was created, has been deleted.
    """
    clock = clock or SystemClock()
    tries = [] if tries is None else tries
    current, earlier = _attach(request, cluster)
    for old in earlier:
        tries.append(_recall(request, old, cluster))
    number = _number(current) if current else 1 + max((t.number for t in tries), default=0)
    while True:
        handle = current or _create(request, number, cluster)
        number = _number(handle)
        outcome = _guarded(request, handle, cluster, clock, tries)
        tries.append(_ended(number, handle, outcome, clock))
        outcome.tries = tries
        if outcome.observation.reason == TIMEOUT:
            _delete(request, handle, cluster)
            return outcome
        if outcome.observation.state is State.SUCCEEDED:
            # A replica may still be writing what the output is to be; ending it is the operator's, waiting ours.
            _pods_ended(request, handle, cluster, clock)
            return outcome
        if not _worth_another(outcome.observation, number, request.retries):
            return outcome
        say(
            f"{_name(handle)} failed for a {outcome.observation.fault} reason ({outcome.observation.reason}); "
            f"relaunching from the checkpoint, attempt {number + 1} of {request.retries + 1}"
        )
        emit("relaunch", request.task, attempt=number + 1, reason=outcome.observation.reason)
        if not _pods_ended(request, handle, cluster, clock):
            say(f"{_name(handle)} has pods that do not end; not relaunching beside them")
            return outcome
        current, number = None, number + 1


def preflight(request: Request, manifest: Manifest, cluster: Cluster) -> Manifest:
    """The manifest, if nothing speaks against it. Raises `Refused` with every problem."""
    if found := request.workload.problems(manifest):
        raise Refused(manifest, found)
    cluster.create(manifest, dry_run=True)
    return manifest


def _attach(request: Request, cluster: Cluster) -> tuple[Manifest | None, list[Manifest]]:
    """The newest object of this step that may still become something, and its failed predecessors."""
    kind = request.workload.KIND
    found = sorted(cluster.list(kind, request.namespace, {LABEL_IDENTITY: request.identity}), key=_number)
    mine: list[Manifest] = []
    for candidate in found:
        if candidate["metadata"].get("deletionTimestamp"):
            continue
        if candidate["metadata"]["labels"].get(LABEL_RESUME) != request.resume_key:
            say(f"{_name(candidate)} was launched for other inputs or parameters; ending it")
            _delete(request, candidate, cluster)
            _pods_ended(request, candidate, cluster, SystemClock())
            continue
        mine.append(candidate)
    if not mine:
        return None, []
    *earlier, newest = mine
    say(f"attached to {_name(newest)}, which this step launched before")
    emit("attached", request.task, kind=kind.kind, name=newest["metadata"]["name"])
    return newest, earlier


def _create(request: Request, number: int, cluster: Cluster) -> Manifest:
    while True:
        manifest = preflight_and_name(request, number, cluster)
        request.before_create()
        try:
            created = cluster.create(manifest)
        except AlreadyExists:
            existing = _get(request, manifest, cluster)
            if existing is None or existing["metadata"].get("deletionTimestamp"):
                number += 1  # its predecessor is still being deleted: another name, never two at once
                continue
            if existing["metadata"].get("labels", {}).get(LABEL_IDENTITY) == request.identity:
                return existing  # our own create, whose answer was lost
            raise BadInput(
                f"{_name(manifest)} exists in namespace {request.namespace} and does not belong to this step. "
                "Rename the step, or delete that object.",
                "foreign-object",
            ) from None
        say(f"created {_name(created)}")
        emit("created", request.task, kind=created["kind"], name=created["metadata"]["name"], attempt=number)
        return created


def preflight_and_name(request: Request, number: int, cluster: Cluster) -> Manifest:
    """The checked manifest of one attempt; a name that is taken is the caller's to resolve."""
    manifest = request.manifest(number)
    with contextlib.suppress(AlreadyExists):
        return preflight(request, manifest, cluster)
    return manifest


def _get(request: Request, manifest: Manifest, cluster: Cluster) -> Manifest | None:
    with contextlib.suppress(NotFound):
        return cluster.get(request.workload.KIND, request.namespace, manifest["metadata"]["name"])
    return None


def _guarded(request: Request, handle: Manifest, cluster: Cluster, clock: Clock, tries: list[Try]) -> Outcome:
    """Follow the object; if following breaks, the object must not run on without anybody watching.

    An interruption is different: who interrupts decides what becomes of the object.
    """
    try:
        return follow(request, handle, cluster, clock)
    except Exception as error:
        lost = Observation(State.LOST, type(error).__name__, str(error), Fault.SYSTEM)
        tries.append(_cut_short(request, handle, cluster, clock, lost))
        with contextlib.suppress(ClusterError):
            _delete(request, handle, cluster)
        raise
    except BaseException:
        cancelled = Observation(State.CANCELLED, "Interrupted", "the step was interrupted while this ran")
        tries.append(_cut_short(request, handle, cluster, clock, cancelled))
        raise


def _cut_short(request: Request, handle: Manifest, cluster: Cluster, clock: Clock, observation: Observation) -> Try:
    """What an attempt came to until now, as far as the cluster still answers."""
    with contextlib.suppress(ClusterError):
        handle = cluster.get(request.workload.KIND, request.namespace, handle["metadata"]["name"])
    return _ended(_number(handle), handle, Outcome(observation, Snapshot(handle)), clock)


def _delete(request: Request, handle: Manifest, cluster: Cluster) -> None:
    metadata = handle["metadata"]
    cluster.delete(request.workload.KIND, request.namespace, metadata["name"], uid=metadata["uid"])


def follow(request: Request, handle: Manifest, cluster: Cluster, clock: Clock) -> Outcome:
    """Watch one object until it has ended or ``timeout_seconds`` have passed."""
    last: tuple[State, str, str] | None = None
    deadline = None if request.timeout_seconds is None else clock.now() + request.timeout_seconds
    with Follower(cluster, request.workload, handle, request.task) as follower:
        for snapshot in _until(follower, deadline, clock):
            observation = _observe(request.workload, snapshot, follower)
            seen = (observation.state, observation.reason, observation.message)
            if seen != last:
                _tell(request, handle, observation)
                last = seen
            if observation.state.terminal:
                final = follower.final_snapshot() if snapshot.object else snapshot
                observation = request.workload.observe(final) if snapshot.object else observation
                return Outcome(observation, final, log_tail=follower.log_tail(observation.pod))
        message = f"not ready after {request.timeout_seconds:.0f} s"
        late = Observation(State.FAILED, TIMEOUT, f"{message}: {last[2] if last else ''}".rstrip(": "), Fault.SYSTEM)
        return Outcome(late, follower.final_snapshot(), log_tail=follower.log_tail(""))


def _until(follower: Follower, deadline: float | None, clock: Clock) -> Iterator[Snapshot]:
    while True:
        remaining = None if deadline is None else deadline - clock.now()
        if remaining is not None and remaining <= 0:
            return
        snapshot = follower.next(remaining)
        if snapshot is not None:
            yield snapshot


def _observe(workload: Workload, snapshot: Snapshot, follower: Follower) -> Observation:
    """Events are read only while something holds the work up: a running job needs no request of ours."""
    observation = workload.observe(snapshot)
    if observation.state in (State.PENDING, State.QUEUED, State.PREEMPTED) and snapshot.object is not None:
        return workload.observe(follower.with_events(snapshot))
    return observation


def _tell(request: Request, handle: Manifest, observation: Observation) -> None:
    detail = ": ".join(part for part in (observation.reason, observation.message) if part)
    say(f"{_name(handle)} {observation.state}" + (f" ({detail})" if detail else ""))
    emit("state", request.task, state=observation.state.value, reason=observation.reason, message=observation.message)


def _worth_another(observation: Observation, number: int, retries: int) -> bool:
    if observation.state not in (State.FAILED, State.LOST) or number > retries:
        return False
    # An object that somebody deleted was ended on purpose: bringing it back would be stubborn.
    return observation.state is State.FAILED and observation.fault in (Fault.SYSTEM, Fault.CAPACITY)


def _pods_ended(request: Request, handle: Manifest, cluster: Cluster, clock: Clock) -> bool:
    """Wait until no pod of an attempt runs; its job is deleted if they take too long. False if that does not help.

    Two attempts must never write to one checkpoint or output at once.
    """
    labels = request.workload.pod_labels(handle["metadata"]["name"])
    waited = 0.0
    while any(_active(pod) for pod in cluster.list(POD, request.namespace, labels)):
        if waited == _PODS_GONE_SECONDS:
            _delete(request, handle, cluster)
        if waited >= 2 * _PODS_GONE_SECONDS:
            return False
        clock.sleep(0.5)
        waited += 0.5
    return True


def _active(pod: Manifest) -> bool:
    return (pod.get("status") or {}).get("phase", "Pending") in ("Pending", "Running")


def _recall(request: Request, old: Manifest, cluster: Cluster) -> Try:
    """An attempt that ended before this process began."""
    pods = tuple(cluster.list(POD, request.namespace, request.workload.pod_labels(old["metadata"]["name"])))
    snapshot = Snapshot(old, pods)
    return _ended(_number(old), old, Outcome(request.workload.observe(snapshot), snapshot), SystemClock())


def _ended(number: int, handle: Manifest, outcome: Outcome, clock: Clock) -> Try:
    status = ((outcome.snapshot.object or handle).get("status")) or {}
    finished = [ending.finished for ending in endings(outcome.snapshot.pods) if ending.finished]
    started = status.get("startTime") or handle["metadata"].get("creationTimestamp") or ""
    ended = status.get("completionTime") or max(finished, default="") or _rfc3339(clock.now())
    seconds = max(0.0, _seconds(ended) - _seconds(started)) if started else 0.0
    return Try(number, handle, outcome.observation, started, ended, seconds, restarts(outcome.snapshot.pods))


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _number(manifest: Manifest) -> int:
    return int(manifest["metadata"].get("labels", {}).get(LABEL_ATTEMPT, "1"))


def _name(manifest: Manifest) -> str:
    return f"{manifest['kind']} {manifest['metadata']['name']}"
