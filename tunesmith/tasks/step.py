"""Around every step: check what it reads, price what it used, and record what it did, whether it succeeds or fails."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import rfc8785

import tunesmith
from tunesmith.clusters.base import ClusterError
from tunesmith.cost import Cost, load_card, price, total
from tunesmith.errors import TunesmithError
from tunesmith.launch import lifeline
from tunesmith.launch.loop import LaunchFailed, Outcome, Try
from tunesmith.launch.progress import emit, say
from tunesmith.lineage.digest import digest_path, digest_text
from tunesmith.lineage.record import (
    KEY_DIGEST,
    KEY_RECORD,
    KEY_RECORD_DIGEST,
    Attempt,
    Failure,
    Item,
    Record,
    public_parameters,
    secret_values,
    without_secrets,
)
from tunesmith.lineage.store import Place, Store, place_of
from tunesmith.resources import Footprint
from tunesmith.tasks.footprints import footprint_of

INTERRUPTED = "Interrupted"

_MOST_PREV, _MOST_METRICS = 40, 40

_MESSAGE_LIMIT = 2000  # characters of an error that a record keeps
_IDENTITY_HEX = 20


class StepFailed(SystemExit):
    """The step ends with a failure that is already in its log and in its record; no traceback adds to it."""

    def __init__(self, record: Record, exit_code: int):
        super().__init__(exit_code)
        self.record = record


class TamperedInput(TunesmithError):
    """An input is not what the step that wrote it recorded."""

    default_id = "tampered-input"
    fault = "system"


class TamperedOutput(TunesmithError):
    """An output is not what the job that wrote it told."""

    default_id = "tampered-output"
    fault = "system"


@dataclass
class Step:
    """One execution of a step, as its component's body sees it.

    Attributes:
        metrics: numbers that the record keeps.
        details: small JSON that the record keeps.
        inputs: what the step reads, by name.
        prev: digests of the records that this one follows.
        tries: every object that the step launched.
        expected: digests that outputs must have, by name.
        job_footprint: what each of them, or the service that it deployed, occupies.
    """

    component: str
    place: Place
    identity: str
    resume_key: str
    store: Store
    parameters: dict[str, Any]
    footprint: Footprint | None
    inputs: dict[str, Item] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    prev: set[str] = field(default_factory=set)
    tries: list[Try] = field(default_factory=list)
    expected: dict[str, str] = field(default_factory=dict)
    job_footprint: Footprint | None = None
    is_service: bool = False

    def leave(self, name: str, content: Any) -> None:
        """Leave a small JSON file for the run's report beside the record, which keeps its digest."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False)
        self.store.write(f"{self.place.task}/{name}", text)
        self.details.setdefault("files", {})[name] = digest_text(text)

    def expect(self, name: str, digest: str | None) -> None:
        """Say what a job wrote as output ``name``: what it told itself, else what was recorded when it ended."""
        digest = digest or self._recorded(name)
        if digest:
            self.expected[name] = digest

    def _recorded(self, name: str) -> str | None:
        """The output's digest in a record of this execution that saw the same job succeed."""
        mine = {one.object["metadata"]["uid"] for one in self.tries}
        for record in _records(self):
            if record.state == "SUCCEEDED" and mine & {attempt.uid for attempt in record.attempts}:
                return next((output.digest for output in record.outputs if output.name == name), None)
        return None

    def launched(self, outcome: Outcome) -> None:
        """Take over what a launch came to.

        Raises:
            LaunchFailed: it did not reach success.
        """
        if outcome.result:
            told = outcome.result.get("metrics") or {}
            self.metrics.update({name: float(value) for name, value in told.items() if isinstance(value, (int, float))})
        if outcome.observation.state.value != "SUCCEEDED":
            handle = outcome.tries[-1].object if outcome.tries else (outcome.snapshot.object or {})
            name = handle.get("metadata", {}).get("name", "")
            raise LaunchFailed(outcome, f"{handle.get('kind', 'object')} {name}".strip())


@contextlib.contextmanager
def step(
    record: Any,
    *,
    component: str,
    parameters: Mapping[str, Any],
    reads: Mapping[str, Any] | None = None,
    writes: Mapping[str, Any] | None = None,
    launches: bool = False,
) -> Iterator[Step]:
    """Run a component's body: verify what it reads, then record and price it, whatever happens.

    Args:
        record: the component's output artifact ``record``; its URI identifies this execution.
        component: name of the component.
        parameters: its arguments; secrets among them are redacted by name.
        reads: input artifacts by name; None values are left out.
        writes: output artifacts by name; they have content when the body ends.
        launches: the step only waits for what it launches, and is priced as that.

    Raises:
        StepFailed: the body failed; the record says why and who is at fault.
    """
    started = time.time()
    reads = {name: artifact for name, artifact in (reads or {}).items() if artifact is not None}
    writes = dict(writes or {})
    place = place_of(record.uri)
    store = Store(place.root)
    footprint = None if launches else footprint_of(component, parameters)
    this = Step(component, place, digest_text(place.key)[7 : 7 + _IDENTITY_HEX], "", store, dict(parameters), footprint)
    emit("started", place.task, component=component, root=place.root)
    failure: Failure | None = None
    exit_code, outputs = 0, {}
    lifeline.hold()
    before = _heed_termination()
    try:
        this.prev = {(artifact.metadata or {}).get(KEY_RECORD_DIGEST, "") for artifact in reads.values()} - {""}
        this.inputs = {name: _read(name, artifact) for name, artifact in reads.items()}
        this.resume_key = _resume_key(this)
        yield this
        outputs = {name: _written(name, artifact, this.expected.get(name)) for name, artifact in writes.items()}
    except BaseException as error:  # also sys.exit in a body: no way out leaves the step unrecorded
        failure, exit_code = _failure(error)
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
    if failure:
        outputs = {name: Item(name, artifact.uri, _type(artifact)) for name, artifact in writes.items()}
    done = _fitting(_record(this, started, _discreet(failure, this), outputs))
    failure = done.failure
    try:
        _publish(done, this, record, writes if not failure else {})
    except OSError as error:
        failure = failure or Failure("system", "RecordNotWritten", f"the step's record cannot be written: {error}")
        exit_code = exit_code or 1
        done = dataclasses.replace(done, state="FAILED", failure=failure)
    emit(
        "finished",
        place.task,
        state=done.state,
        seconds=done.seconds,
        cost=dict(done.cost),
        metrics=dict(done.metrics),
        failure=dataclasses.asdict(done.failure) if done.failure else None,
        exit_code=exit_code,
    )
    if failure:
        _show(done, failure)
        raise StepFailed(done, exit_code)


def _heed_termination() -> Any:
    """Let SIGTERM interrupt the step, so that it is recorded; returns the handler before, None if that is not possible.

    Best effort: KFP kills a step within a second of the signal. Nothing that must happen depends on it.
    """
    if threading.current_thread() is not threading.main_thread():
        return None

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    return signal.signal(signal.SIGTERM, interrupt)


def _read(name: str, artifact: Any) -> Item:
    """Recompute an input's digest; what its producer recorded must be what is there."""
    recorded = (artifact.metadata or {}).get(KEY_DIGEST, "")
    path = Path(artifact.path) if artifact.path else None
    if path is None or not path.exists():
        return Item(name, artifact.uri, _type(artifact), recorded)
    found = digest_path(path)
    if recorded and recorded != found.text:
        raise TamperedInput(
            f"the input {name} at {artifact.uri} has digest {found}, but the step that wrote it recorded {recorded}. "
            "Somebody changed it. Run the pipeline again from the step that writes it.",
            "tampered-input",
        )
    return Item(name, artifact.uri, _type(artifact), found.text, found.bytes)


def _written(name: str, artifact: Any, expected: str | None) -> Item:
    found = digest_path(artifact.path)
    if expected and expected != found.text:
        raise TamperedOutput(
            f"the output {name} at {artifact.uri} has digest {found}, but the job that wrote it told {expected}. "
            "Somebody changed it since. Run again with --fresh, or from the step that writes it.",
        )
    artifact.metadata[KEY_DIGEST] = found.text
    return Item(name, artifact.uri, _type(artifact), found.text, found.bytes)


def _type(artifact: Any) -> str:
    return str(getattr(artifact, "schema_title", "")) or type(artifact).__name__


def _resume_key(this: Step) -> str:
    """Names the work itself: the same component, parameters and inputs resume from the same checkpoints."""
    work = {
        "component": this.component,
        "parameters": json.loads(json.dumps(this.parameters, default=str)),
        "inputs": {name: item.digest or item.uri for name, item in this.inputs.items()},
        "salt": os.environ.get("TUNESMITH_FRESH", ""),
    }
    return digest_text(rfc8785.dumps(work).decode())[7 : 7 + _IDENTITY_HEX]


def _failure(error: BaseException) -> tuple[Failure, int]:
    if isinstance(error, SystemExit):
        return Failure("user", "Exited", f"the step's code called exit({error.code!r}) before its end"), 1
    if isinstance(error, KeyboardInterrupt):
        return Failure("user", INTERRUPTED, "the step was interrupted"), 130
    if isinstance(error, LaunchFailed):
        tail = tuple(_cut(line, 400) for line in error.log_tail)
        return Failure(error.fault, error.reason, _cut(str(error)), tail, error.id), 1
    if isinstance(error, TunesmithError):
        return Failure(error.fault, type(error).__name__, _cut(str(error)), (), error.id), error.exit_code
    if isinstance(error, ClusterError):
        return Failure("system", type(error).__name__, _cut(str(error))), 1
    trace = traceback.format_exception(error)
    lines = "".join(trace).rstrip().splitlines()
    return Failure("system", type(error).__name__, _cut(str(error)), tuple(_cut(line, 400) for line in lines[-20:])), 1


def _discreet(failure: Failure | None, this: Step) -> Failure | None:
    """The failure without the secrets that the step was given: programs print their environment when they break."""
    if failure is None:
        return None
    secrets = secret_values(this.parameters)
    tail = tuple(without_secrets(line, secrets) for line in failure.log_tail)
    return dataclasses.replace(failure, message=without_secrets(failure.message, secrets), log_tail=tail)


def _cut(text: str, limit: int = _MESSAGE_LIMIT) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _fitting(record: Record) -> Record:
    """The record, without its longest parts if it would be over the limit: a failure must never go unrecorded."""
    for shorten in (_without_log, _without_parameters, _without_details, _with_last_attempts, _bare):
        with contextlib.suppress(ValueError, RecursionError):
            record.text()
            return record
        record = shorten(record)
    return record


def _bare(record: Record) -> Record:
    """What always fits: of long lists the digest and the count."""
    failure = record.failure and dataclasses.replace(record.failure, message=_cut(record.failure.message, 400))
    prev = (digest_text("\n".join(record.prev)),) if len(record.prev) > _MOST_PREV else record.prev
    details = {"shortened": f"{len(record.prev)} earlier records, {len(record.metrics)} metrics", **record.details}
    metrics = dict(sorted(record.metrics.items())[:_MOST_METRICS])
    return dataclasses.replace(record, failure=failure, prev=prev, details=details, metrics=metrics, code={})


def _without_log(record: Record) -> Record:
    failure = record.failure and dataclasses.replace(record.failure, log_tail=())
    return dataclasses.replace(record, failure=failure)


def _without_parameters(record: Record) -> Record:
    digest = digest_text(json.dumps(record.parameters, sort_keys=True, default=str))
    return dataclasses.replace(record, parameters={"digest": digest})


def _without_details(record: Record) -> Record:
    return dataclasses.replace(record, details={"files": record.details.get("files", {})})


def _with_last_attempts(record: Record) -> Record:
    return dataclasses.replace(record, attempts=record.attempts[-3:])


def _record(this: Step, started: float, failure: Failure | None, outputs: Mapping[str, Item]) -> Record:
    seconds = time.time() - started
    attempts = _attempts(this)
    earlier, earlier_costs = _earlier(this, {attempt.uid for attempt in attempts})
    cost = total([_cost(this, seconds), *earlier_costs])
    return Record(
        task=this.place.task,
        component=this.component,
        identity=this.identity,
        attempt=_next_attempt(this),
        state=_state(failure),
        started=_stamp(started),
        ended=_stamp(started + seconds),
        seconds=round(seconds, 3),
        run={"root": this.place.root, "key": os.environ.get("TUNESMITH_RUN_KEY", "")},
        parameters=public_parameters(this.parameters),
        inputs=tuple(this.inputs.values()),
        outputs=tuple(outputs.values()),
        code={
            "tunesmith": tunesmith.__version__,
            "python": platform.python_version(),
            "image": os.environ.get("TUNESMITH_IMAGE", "none: ran as a process of this machine"),
        },
        metrics=this.metrics,
        details=this.details,
        attempts=(*earlier, *attempts),
        cost=cost.to_json(),
        failure=failure,
        prev=tuple(sorted(this.prev)),
    )


def _state(failure: Failure | None) -> str:
    if failure is None:
        return "SUCCEEDED"
    return "CANCELLED" if failure.reason == INTERRUPTED else "FAILED"


def _records(this: Step) -> list[Record]:
    """Records of this execution of the step, of processes before this one."""
    found = []
    for text in this.store.of_identity(this.place.task, this.identity):
        with contextlib.suppress(ValueError):  # not a record: what cannot be read is `verify`'s to report
            found.append(Record.parse(text))
    return found


def _earlier(this: Step, known: set[str]) -> tuple[list[Attempt], list[Cost]]:
    """Attempts and costs of executions of this step that were interrupted; a job attached to since counts once.

    The identity is the same for all of them; on a laptop each run that goes on has a folder of its own.
    """
    attempts: dict[str, Attempt] = {}
    costs: list[Cost] = []
    for record in _records(this):
        if record.state == "CANCELLED":
            attempts |= {attempt.uid: attempt for attempt in record.attempts if attempt.uid not in known}
            costs += [] if record.attempts else [Cost.from_json(record.cost)]
    return list(attempts.values()), costs + [Cost.from_json(attempt.cost) for attempt in attempts.values()]


def _attempts(this: Step) -> tuple[Attempt, ...]:
    if this.job_footprint is None:
        return ()
    card, secrets = load_card(None), secret_values(this.parameters)
    return tuple(
        Attempt(
            name=one.object["metadata"]["name"],
            kind=one.object["kind"],
            uid=one.object["metadata"]["uid"],
            state=one.observation.state.value,
            reason=one.observation.reason,
            message=_cut(without_secrets(one.observation.message, secrets), 400),
            exit_code=one.observation.exit_code,
            fault=one.observation.fault.value if one.observation.fault else "",
            started=one.started,
            ended=one.ended,
            seconds=one.seconds,
            restarts=one.restarts,
            cost=price(this.job_footprint, one.seconds, card).to_json(),
        )
        for one in this.tries
    )


def _cost(this: Step, seconds: float) -> Cost:
    """All attempts of the job, and the step itself where it is the one that works."""
    card = load_card(None)
    parts = []
    if this.footprint is not None:
        parts.append(price(this.footprint, seconds, card))
    if this.job_footprint is not None:
        # a service is not tried in attempts: it begins to cost with this step
        durations = [one.seconds for one in this.tries] or ([seconds] if this.is_service else [])
        parts += [price(this.job_footprint, duration, card) for duration in durations]
    return total(parts)


def _next_attempt(this: Step) -> int:
    mine = [path for path in this.store.paths() if path.startswith(f"{this.place.task}/{this.identity}.")]
    return len(mine) + 1


def _publish(done: Record, this: Step, record: Any, writes: Mapping[str, Any]) -> None:
    """The record's file is the source; the artifact's content and metadata are the convenience."""
    text = done.text()
    this.store.write(f"{this.place.task}/{this.identity}.{done.attempt}.json", text)
    if record.path:
        path = Path(record.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    record.metadata[KEY_RECORD] = text
    record.metadata[KEY_RECORD_DIGEST] = done.digest
    for artifact in writes.values():
        artifact.metadata[KEY_RECORD_DIGEST] = done.digest


def _show(done: Record, failure: Failure) -> None:
    say(f"{done.state} {done.task}: {failure.message}" + (f"  [{failure.id}]" if failure.id else ""))
    say(f"at fault: {failure.fault}; reason: {failure.reason}")
    for line in failure.log_tail:
        print(f"| {line}", file=sys.stdout, flush=True)


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
