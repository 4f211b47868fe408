"""Running a pipeline on this machine: start the engine, follow its steps, end what it started, sum it up."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunesmith.clusters.base import ClusterError
from tunesmith.clusters.local import LocalCluster
from tunesmith.launch import lifeline
from tunesmith.launch.loop import LABEL_PIPELINE, LABEL_RUN
from tunesmith.resources import INFERENCESERVICE, KINDS, POD, PYTORCHJOB, Kind
from tunesmith.targets.local.workdir import RunState, Workdir
from tunesmith.workloads import inferenceservice
from tunesmith.workloads.base import dns_label
from tunesmith.workloads.inferenceservice import LABEL_SERVICE

_INTERRUPTS = (signal.SIGTERM, signal.SIGHUP)
_LOOK_SECONDS = 0.1
_GRACE_SECONDS = 5.0
_DELETED_SECONDS = 40.0
_TAIL_LINES = 20


@dataclass
class StepView:
    """A step as somebody who follows the run sees it."""

    name: str
    state: str = "RUNNING"
    started: float = 0.0
    ended: float | None = None
    note: str = ""
    cost: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    failure: dict[str, Any] | None = None
    exit_code: int = 0
    losses: list[tuple[int, float]] = field(default_factory=list)

    def seconds(self, now: float) -> float:
        """How long it has run."""
        return (self.ended or now) - self.started


@dataclass
class RunView:
    """A run as somebody who follows it sees it; changed by events, in the order in which steps began."""

    steps: dict[str, StepView] = field(default_factory=dict)
    root: str = ""

    def apply(self, event: dict[str, Any]) -> None:
        """Take in one event of a step; unknown ones are ignored."""
        step = self.steps.get(event["task"])
        kind = event["event"]
        if kind == "started":
            self.steps[event["task"]] = StepView(event["task"], started=event["time"])
            self.root = event.get("root") or self.root
        elif step is None:
            return
        elif kind in ("created", "attached"):
            step.note = f"{kind} {event['kind']} {event['name']}"
        elif kind == "state":
            step.note = f"{event['state'].lower()} {event['message'] or event['reason']}".strip()
        elif kind == "relaunch":
            step.note = f"relaunching, attempt {event['attempt']}: {event['reason']}"
        elif kind == "metric":
            step.losses.append((event["step"], event["loss"]))
            step.note = f"step {event['step']}, loss {event['loss']:.3f}"
        elif kind == "finished":
            step.state, step.ended, step.cost = event["state"], event["time"], event["cost"]
            step.metrics, step.failure = event["metrics"], event["failure"]
            step.exit_code = event["exit_code"]

    @property
    def failed(self) -> StepView | None:
        """The first step that failed."""
        return next((step for step in self.steps.values() if step.state == "FAILED"), None)

    @property
    def unfinished(self) -> StepView | None:
        """A step that began and never said how it ended: its process was killed."""
        return next((step for step in self.steps.values() if step.ended is None), None)


@dataclass(frozen=True)
class RunResult:
    """How a run ended.

    Attributes:
        status: SUCCEEDED, FAILED or INTERRUPTED.
        view: the steps.
        root: the folder of its artifacts; None if no step began.
        seconds: from the start to the end of the run.
        log_tail: the last lines of the log.
        log: everything that the steps printed.
        serving: addresses of the services that run on in this WORKDIR.
        jobs: names of the run's jobs that run on.
    """

    status: str
    view: RunView
    root: Path | None
    seconds: float
    log_tail: tuple[str, ...]
    log: Path
    serving: tuple[str, ...]
    jobs: tuple[str, ...]


def run_pipeline(
    pipeline: str,
    reference: str,
    arguments: dict[str, Any],
    workdir: Workdir,
    *,
    keep_serving: bool = False,
    detach: bool = False,
    fresh: bool = False,
    show: Callable[[RunView], None] = lambda view: None,
) -> RunResult:
    """Run a pipeline with kfp.local and LocalCluster, and leave nothing running but what was asked for.

    Args:
        pipeline: its name, for files and messages.
        reference: ``module:function`` of the pipeline.
        arguments: of the pipeline, checked.
        workdir: where everything goes.
        keep_serving: leave deployed services running when the run has succeeded.
        detach: on Ctrl-C leave the jobs running, to be attached to by the next run.
        fresh: train from the start even if a checkpoint of the same work exists.
        show: called whenever something changed, and about ten times a second.

    Raises:
        BadInput: another run of the pipeline is going on in this folder.
    """
    workdir.make()
    with workdir.only(pipeline):
        run = workdir.begin(pipeline, arguments)
        cluster = LocalCluster(workdir.cluster)
        _end_others(cluster, pipeline, run.key)
        started = time.time()
        view, interrupted = RunView(), True
        progress, log = workdir.file(pipeline, "progress.jsonl"), workdir.file(pipeline, "log")
        progress.write_text("")
        engine: subprocess.Popen[bytes] | None = None
        try:
            with log.open("w", encoding="utf-8") as output:
                engine = _start(workdir, pipeline, reference, arguments, run, output, fresh=fresh)
                interrupted = _follow(engine, progress, view, show)
        finally:  # also when following itself breaks: nothing may run on unseen
            status = _status(engine, view, interrupted=interrupted)
            run.ended = status != "INTERRUPTED"
            if run.ended:
                end_objects(cluster, run.key, services=not (keep_serving and status == "SUCCEEDED"))
            elif interrupted and not detach:
                end_objects(cluster, run.key)
            workdir.save(pipeline, run)
        tail = tuple(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:])
        root = Path(view.root) if view.root else None
        serving = tuple(inferenceservice.url(one) for one in cluster.everywhere(INFERENCESERVICE))
        jobs = tuple(one["metadata"]["name"] for one in _objects(cluster, {LABEL_RUN: run.key}, PYTORCHJOB))
        return RunResult(status, view, root, time.time() - started, tail, log, serving, jobs)


def _status(engine: subprocess.Popen[bytes] | None, view: RunView, *, interrupted: bool) -> str:
    """Green only if the engine and every step say so."""
    cancelled = any(step.state == "CANCELLED" for step in view.steps.values())
    if interrupted or cancelled or view.unfinished:
        return "INTERRUPTED"
    green = engine is not None and engine.returncode == 0 and view.failed is None
    return "SUCCEEDED" if green else "FAILED"


def end_objects(cluster: LocalCluster, key: str, *, services: bool = True) -> None:
    """Delete what a run launched, in whichever namespace, and wait until its processes are gone."""
    kinds = (PYTORCHJOB, *((INFERENCESERVICE,) if services else ()))
    _delete(cluster, _objects(cluster, {LABEL_RUN: key}, *kinds))
    kept = set() if services else {one["metadata"]["name"] for one in cluster.everywhere(INFERENCESERVICE)}
    deadline = time.monotonic() + _DELETED_SECONDS
    while time.monotonic() < deadline:
        pods = _objects(cluster, {LABEL_RUN: key}, POD)
        if all(pod["metadata"]["labels"].get(LABEL_SERVICE) in kept for pod in pods):
            return
        time.sleep(_LOOK_SECONDS)


def _end_others(cluster: LocalCluster, pipeline: str, key: str) -> None:
    """End the jobs of earlier runs of this pipeline that this one does not go on with: two would do the same work."""
    mine = _objects(cluster, {LABEL_PIPELINE: dns_label(pipeline)}, PYTORCHJOB)
    for other in {one["metadata"]["labels"].get(LABEL_RUN, "") for one in mine} - {key, ""}:
        end_objects(cluster, other, services=False)


def _delete(cluster: LocalCluster, objects: list[dict[str, Any]]) -> None:
    for one in objects:
        metadata = one["metadata"]
        with contextlib.suppress(ClusterError):
            cluster.delete(KINDS[one["kind"]], metadata["namespace"], metadata["name"], uid=metadata["uid"])


def _objects(cluster: LocalCluster, labels: dict[str, str], *kinds: Kind) -> list[dict[str, Any]]:
    found = [one for kind in kinds for one in cluster.everywhere(kind)]
    return [one for one in found if labels.items() <= (one["metadata"].get("labels") or {}).items()]


def _start(
    workdir: Workdir,
    pipeline: str,
    reference: str,
    arguments: dict[str, Any],
    run: RunState,
    output: Any,
    *,
    fresh: bool,
) -> subprocess.Popen[bytes]:
    request = workdir.file(pipeline, "request.json")
    content = {"pipeline": reference, "arguments": arguments, "pipeline_root": str(workdir.runs)}
    request.write_text(json.dumps(content), encoding="utf-8")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TUNESMITH_")}
    environment = {
        **inherited,
        lifeline.VARIABLE: lifeline.mine(),
        "PYTHONSAFEPATH": "1",  # a kfp.py or tunesmith.py in the user's folder is not what is meant
        "PYTHONUNBUFFERED": "1",
        "TUNESMITH_TARGET": "local",
        "TUNESMITH_CLUSTER": f"local:{workdir.cluster}",
        "TUNESMITH_PIPELINE_ROOT": str(workdir.runs),
        "TUNESMITH_RUN_KEY": run.key,
        "TUNESMITH_PIPELINE": pipeline,
        "TUNESMITH_CHECKPOINT_ROOT": str(workdir.checkpoints),
        "TUNESMITH_MODEL_CACHE": str(workdir.models),
        "TUNESMITH_PROGRESS": str(workdir.file(pipeline, "progress.jsonl")),
        "TUNESMITH_FRESH": run.key if fresh else "",
    }
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "tunesmith.targets.local.engine", str(request)],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )


def _follow(engine: subprocess.Popen[bytes], progress: Path, view: RunView, show: Callable[[RunView], None]) -> bool:
    """Follow until the engine has ended; True if somebody interrupted it."""
    events = _events(progress)
    try:
        with _interruptible():
            while engine.poll() is None:
                _take(events, view)
                show(view)
                time.sleep(_LOOK_SECONDS)
        return False
    except KeyboardInterrupt:
        return True
    finally:
        _end_group(engine)
        _take(events, view)
        show(view)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP interrupt like Ctrl-C, so that nothing is left running.

    What is ignored stays so: nohup and a shell's background jobs rely on it.
    """

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    heeded = [number for number in _INTERRUPTS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_group(engine: subprocess.Popen[bytes]) -> None:
    """End the engine and the step that it runs, which kfp.local would leave running."""
    for number, patience in ((signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, _GRACE_SECONDS)):
        try:
            os.killpg(engine.pid, number)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and _group_lives(engine):
            time.sleep(0.05)
    engine.wait()


def _group_lives(engine: subprocess.Popen[bytes]) -> bool:
    engine.poll()  # reap it, or its group would seem alive for ever
    try:
        os.killpg(engine.pid, 0)
    except ProcessLookupError:
        return False
    return True


def _events(progress: Path) -> Iterator[dict[str, Any] | None]:
    """Events as they are appended; None when there is none for now. Half a line is read when it is whole."""
    rest = ""
    with progress.open(encoding="utf-8") as stream:
        while True:
            rest += stream.read()
            *lines, rest = rest.split("\n")
            for line in lines:
                with contextlib.suppress(ValueError):  # a line that a full disk or a kill has torn
                    if isinstance(event := json.loads(line), dict) and {"event", "task", "time"} <= event.keys():
                        yield event
            yield None


def _take(events: Iterator[dict[str, Any] | None], view: RunView) -> None:
    while (event := next(events)) is not None:
        with contextlib.suppress(KeyError, TypeError):  # of an event of another version
            view.apply(event)
