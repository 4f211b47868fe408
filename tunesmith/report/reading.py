"""Read what the steps of a run left under its root, for the report.

All of it may be wrong, old, cut off or hostile: what cannot be read becomes a notice and never an exception, and every
field has its type afterwards, so that the code that draws need not ask.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tunesmith.cost import Cost, total
from tunesmith.lineage.digest import digest_text
from tunesmith.lineage.record import Attempt, Failure, Item, Record
from tunesmith.lineage.store import Store
from tunesmith.report.formats import finite, moment, text

MAX_STEPS = 200
MAX_POINTS = 400
_MAX_ROWS = 200
_MAX_FILE_BYTES = 8_000_000
_UNREADABLE = (OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError, OverflowError)

# Worst first: the state of a run whose end nobody told is that of its worst step.
_ENDED_BADLY = ("FAILED", "LOST", "PREEMPTED", "CANCELLED")


@dataclass(frozen=True)
class Series:
    """One curve: points are (x, y, seconds since the start or None); ``dropped`` points were not finite."""

    name: str
    unit: str
    points: tuple[tuple[float, float, float | None], ...]
    dropped: int = 0


@dataclass(frozen=True)
class Curve:
    """Curves over a common x, and marks (x, label) on it."""

    x: str
    series: tuple[Series, ...]
    marks: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class Histogram:
    """Counts between edges; there is one edge more than counts. The last edge is None if its interval has no end."""

    edges: tuple[float | None, ...]
    counts: tuple[float, ...]
    unit: str


@dataclass(frozen=True)
class Sample:
    """One prompt, the expected answer, and what base model and tuned model answered."""

    prompt: str
    reference: str
    base: str
    tuned: str


@dataclass(frozen=True)
class Reply:
    """What the served model answered, and how long it took."""

    question: str
    answer: str
    seconds: float | None
    ok: bool


@dataclass(frozen=True)
class Check:
    """One condition of the quality gate."""

    metric: str
    value: Any
    threshold: Any
    comparison: str
    passed: bool


@dataclass(frozen=True)
class Step:
    """A step: its records, oldest first, with their digests, what they cost together, and what it left beside them."""

    records: tuple[Record, ...]
    digests: tuple[str, ...]
    cost: Cost
    curve: Curve | None = None
    histogram: Histogram | None = None
    samples: tuple[Sample, ...] = ()
    replies: tuple[Reply, ...] = ()
    checks: tuple[Check, ...] = ()

    @property
    def last(self) -> Record:
        """The record of the last execution, which decides."""
        return self.records[-1]

    @property
    def task(self) -> str:
        """The task's name in the pipeline."""
        return self.last.task

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """All objects that all executions launched."""
        return tuple(attempt for record in self.records for attempt in record.attempts)

    @property
    def seconds(self) -> float:
        """The time of all executions."""
        return sum(record.seconds for record in self.records)

    @property
    def restarts(self) -> int:
        """How often its work began again: relaunches and restarts in place, or what the trainer itself counted."""
        launches = max(len(self.attempts), len(self.records)) - 1 + sum(one.restarts for one in self.attempts)
        return max(launches, int(finite(self.last.metrics.get("restarts")) or 0))

    @property
    def started(self) -> datetime | None:
        """When the first execution started."""
        return min((at for record in self.records if (at := moment(record.started))), default=None)

    @property
    def ended(self) -> datetime | None:
        """When the last execution ended."""
        return max((at for record in self.records if (at := moment(record.ended))), default=None)


@dataclass(frozen=True)
class Run:
    """A run as its records tell it. ``notices`` say what could not be read or is not shown."""

    root: str
    pipeline: str
    state: str
    steps: tuple[Step, ...]
    notices: tuple[str, ...]

    @property
    def cost(self) -> Cost:
        """The sum over all steps and attempts."""
        return add(step.cost for step in self.steps)

    @property
    def started(self) -> datetime | None:
        """When the first step started."""
        return min((step.started for step in self.steps if step.started), default=None)

    @property
    def ended(self) -> datetime | None:
        """When the last step ended."""
        return max((step.ended for step in self.steps if step.ended), default=None)

    @property
    def seconds(self) -> float | None:
        """Wall time from the first step's start to the last one's end."""
        return (self.ended - self.started).total_seconds() if self.started and self.ended else None

    def metric(self, name: str) -> float | None:
        """A metric of the last step that recorded it as a finite number."""
        values = [finite(step.last.metrics.get(name)) for step in self.steps]
        return next((value for value in reversed(values) if value is not None), None)


def read(root: str | Path, *, pipeline: str, state: str | None = None) -> Run:
    """Read the run below ``root``, a folder or a URI that fsspec knows."""
    store, notices = Store(root), list[str]()
    try:
        present, paths = set(store.paths()), store.record_paths()
    except _UNREADABLE as error:
        present, paths, notices = set(), [], [f"The records could not be listed: {text(str(error), 200)}"]
    if len(paths) > MAX_STEPS:
        notices.append(f"Only the first {MAX_STEPS} of {len(paths)} records are shown.")
    grouped: dict[tuple[str, str], list[tuple[Record, str]]] = {}
    for path in paths[:MAX_STEPS]:
        try:
            content = store.read(path)
            record = _clean(Record.parse(content))
        except _UNREADABLE as error:
            notices.append(f"{text(path, 200)} could not be read: {text(str(error), 200)}")
        else:
            grouped.setdefault((record.task, record.identity), []).append((record, digest_text(content)))
    steps = [
        _step(store, present, sorted(records, key=lambda one: one[0].attempt), notices) for records in grouped.values()
    ]
    steps.sort(key=lambda step: (step.last.started, step.task))
    return Run(str(root), text(pipeline, 200), _state(state, steps), tuple(steps), tuple(notices))


def add(costs: Any) -> Cost:
    """The sum, which is unknown over different currencies."""
    costs = list(costs)
    try:
        return total(costs)
    except ValueError as error:
        return Cost(None, unknown=(str(error),))


def _state(told: str | None, steps: list[Step]) -> str:
    if told:
        return {"COMPLETE": "SUCCEEDED"}.get(told.upper(), text(told.upper(), 20))
    states = {step.last.state for step in steps}
    return next((state for state in _ENDED_BADLY if state in states), "SUCCEEDED" if states else "UNKNOWN")


def _step(store: Store, present: set[str], records: list[tuple[Record, str]], notices: list[str]) -> Step:
    last = records[-1][0]
    files = _map(last.details.get("files"))

    def beside(name: str, parse: Any) -> Any:
        path = f"{last.task}/{name}"
        if path not in present:
            return None
        try:
            content = store.read(path)
            if len(content) > _MAX_FILE_BYTES:
                raise ValueError("too large")
            if name in files and digest_text(content) != files[name]:
                notices.append(f"{text(path, 200)} is not the file that the step recorded: somebody changed it.")
            return parse(json.loads(content))
        except _UNREADABLE as error:
            notices.append(f"{text(path, 200)} could not be read: {text(str(error), 200)}")
            return None

    return Step(
        records=tuple(record for record, _ in records),
        digests=tuple(digest for _, digest in records),
        cost=add(cost_of(record.cost) for record, _ in records),
        curve=beside("curve.json", _curve),
        histogram=beside("length_histogram.json", _histogram),
        samples=beside("samples.json", _samples) or (),
        replies=beside("smoke.json", _replies) or (),
        checks=beside("gate.json", _checks) or (),
    )


def cost_of(data: Mapping[str, Any]) -> Cost:
    """A recorded cost; one that is missing or broken is unknown."""
    try:
        return Cost.from_json(data)
    except ValueError:
        return Cost(None, unknown=("no cost was recorded",))


def _curve(data: Any) -> Curve:
    series = []
    for one in data["series"][:8]:
        points = []
        for point in one["points"]:
            x, y = finite(point[0]), finite(point[1])
            if x is not None and y is not None:
                points.append((x, y, finite(point[2]) if len(point) > 2 else None))
        dropped = len(one["points"]) - len(points)
        series.append(Series(text(one["name"], 60), text(one.get("unit"), 40), _thin(points), dropped))
    marks = [(x, text(mark.get("label"), 60)) for mark in data.get("marks", ())[:100]
             if (x := finite(mark.get("step"))) is not None]  # fmt: skip
    return Curve(text(data.get("x", "step"), 40), tuple(series), tuple(marks))


def _thin(points: list[tuple[float, float, float | None]]) -> tuple[tuple[float, float, float | None], ...]:
    """At most about `MAX_POINTS` points: of each stretch the lowest and the highest, so that no spike is lost."""
    if len(points) <= MAX_POINTS:
        return tuple(points)
    stride = -(-len(points) * 2 // MAX_POINTS)
    kept = {0, len(points) - 1}
    for start in range(0, len(points), stride):
        stretch = range(start, min(start + stride, len(points)))
        kept |= {min(stretch, key=lambda i: points[i][1]), max(stretch, key=lambda i: points[i][1])}
    return tuple(points[i] for i in sorted(kept))


def _histogram(data: Any) -> Histogram:
    edges = [edge for one in data["edges"] if (edge := finite(one)) is not None]
    counts = [max(0.0, finite(one) or 0.0) for one in data["counts"]]
    is_open = len(edges) == len(counts)
    if not 0 < len(counts) <= _MAX_ROWS or len(edges) not in (len(counts), len(counts) + 1):
        raise ValueError("a histogram has as many edges as counts, or one more, and at most 200 counts")
    if edges != sorted(set(edges)):
        raise ValueError("the edges of a histogram ascend")
    ends: list[float | None] = [*edges, None] if is_open else [*edges]
    while len(counts) > 1 and not counts[-1]:  # what is empty at the end says nothing
        counts.pop()
        ends.pop()
    return Histogram(tuple(ends), tuple(counts), text(data.get("unit"), 40))


def _samples(data: Any) -> tuple[Sample, ...]:
    return tuple(Sample(*(text(one.get(name), 20_000) for name in ("prompt", "reference", "base", "tuned")))
                 for one in data[:_MAX_ROWS])  # fmt: skip


def _replies(data: Any) -> tuple[Reply, ...]:
    return tuple(Reply(text(one.get("question"), 20_000), text(one.get("answer"), 20_000), finite(one.get("seconds")),
                       one.get("ok") is True) for one in data[:_MAX_ROWS])  # fmt: skip


def _checks(data: Any) -> tuple[Check, ...]:
    return tuple(
        Check(
            text(one.get("metric"), 200),
            one.get("value"),
            one.get("threshold"),
            text(one.get("comparison"), 20),
            one.get("passed") is True,
        )
        for one in data[:_MAX_ROWS]
    )


def _clean(record: Record) -> Record:
    """The record with every field of the type that its class promises."""
    failure = record.failure
    return Record(
        task=text(record.task, 200),
        component=text(record.component, 200),
        identity=text(record.identity, 80),
        attempt=int(finite(record.attempt) or 0),
        state=text(record.state, 20),
        started=text(record.started, 40),
        ended=text(record.ended, 40),
        seconds=_seconds(record.seconds),
        run=_texts(record.run),
        parameters=_map(record.parameters),
        inputs=tuple(map(_item, record.inputs)),
        outputs=tuple(map(_item, record.outputs)),
        code=_texts(record.code),
        metrics=_map(record.metrics),
        details=_map(record.details),
        attempts=tuple(map(_attempt, record.attempts)),
        cost=_map(record.cost),
        failure=failure and Failure(text(failure.fault, 20), text(failure.reason, 200), text(failure.message, 4000),
                                    tuple(text(line, 500) for line in failure.log_tail[-40:])),
        prev=tuple(text(digest, 100) for digest in record.prev),
    )  # fmt: skip


def _item(item: Item) -> Item:
    return Item(text(item.name, 200), text(item.uri), text(item.type, 80), text(item.digest, 100),
                int(finite(item.bytes) or 0))  # fmt: skip


def _attempt(one: Attempt) -> Attempt:
    code = finite(one.exit_code)
    return Attempt(text(one.name, 253), text(one.kind, 80), text(one.uid, 80), text(one.state, 20),
                   text(one.reason, 200), text(one.message, 1000), None if code is None else int(code),
                   text(one.fault, 20), text(one.started, 40), text(one.ended, 40), _seconds(one.seconds),
                   max(0, int(finite(one.restarts) or 0)), _map(one.cost))  # fmt: skip


def _seconds(value: Any) -> float:
    seconds = finite(value) or 0.0
    return seconds if 0 <= seconds < 1e12 else 0.0


def _map(value: Any) -> dict[str, Any]:
    return {text(key, 200): inner for key, inner in value.items()} if isinstance(value, Mapping) else {}


def _texts(value: Any) -> dict[str, str]:
    return {key: text(inner, 300) for key, inner in _map(value).items()}
