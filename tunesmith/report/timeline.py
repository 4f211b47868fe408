"""The timeline of a run: when each step and each of its attempts ran, as shares of the whole."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tunesmith.lineage.record import Attempt
from tunesmith.report.formats import duration, moment
from tunesmith.report.reading import Run, Step

# Round spans for the axis, in seconds; beyond the last, whole days.
_TICKS = (0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400)
_MOST_TICKS = 7


@dataclass(frozen=True)
class Bar:
    """A span; ``left`` and ``width`` in percent of the run. ``again`` marks a start that is not the first."""

    left: float
    width: float
    state: str
    title: str
    again: bool = False


@dataclass(frozen=True)
class Row:
    """A step: its whole span, and within it what its attempts ran; the rest is launching, queueing and checking."""

    task: str
    state: str
    seconds: float
    restarts: int
    whole: Bar
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Timeline:
    """Rows by start, and the axis: percent and text of each tick."""

    rows: tuple[Row, ...]
    ticks: tuple[tuple[float, str], ...]
    tick: float

    @property
    def has_failed(self) -> bool:
        """Whether anything ended badly."""
        return any(bar.state != "SUCCEEDED" for bar in self._bars)

    @property
    def has_waited(self) -> bool:
        """Whether a step's span holds more than its attempts."""
        return any(row.bars != (row.whole,) for row in self.rows)

    @property
    def has_restarted(self) -> bool:
        """Whether anything started more than once."""
        return any(bar.again for bar in self._bars)

    @property
    def _bars(self) -> list[Bar]:
        return [bar for row in self.rows for bar in row.bars]


def timeline(run: Run) -> Timeline | None:
    """The timeline, or None if no step says when it ran."""
    start, span = run.started, run.seconds
    if start is None or span is None or span < 0:
        return None
    span = max(span, 0.1)
    rows = tuple(row for step in run.steps if (row := _row(step, start, span)))
    tick = next((tick for tick in _TICKS if span / tick <= _MOST_TICKS), 86400 * max(1, span // (86400 * _MOST_TICKS)))
    count = min(int(span / tick), 2 * _MOST_TICKS)
    ticks = tuple((100 * i * tick / span, _tick_text(i * tick)) for i in range(count + 1))
    return Timeline(rows, ticks, 100 * tick / span)


def _row(step: Step, start: datetime, span: float) -> Row | None:
    whole = _bar(step.started, step.ended, start, span, step.last.state, f"{step.task}: {duration(step.seconds)}")
    if whole is None:
        return None
    bars = tuple(bar for index, one in enumerate(step.attempts) if (bar := _attempt(one, index, start, span)))
    if not bars and len(step.records) > 1:
        bars = tuple(
            bar for index, record in enumerate(step.records)
            if (bar := _bar(moment(record.started), moment(record.ended), start, span, record.state,
                            f"execution {index + 1}: {record.state}, {duration(record.seconds)}", index > 0))
        )  # fmt: skip
    return Row(step.task, step.last.state, step.seconds, step.restarts, whole, bars or (whole,))


def _attempt(one: Attempt, index: int, start: datetime, span: float) -> Bar | None:
    again = index > 0
    restarts = f", restarted in place {one.restarts} times" if one.restarts else ""
    title = f"attempt {index + 1}, {one.name}: {one.state} {one.reason}, {duration(one.seconds)}{restarts}"
    return _bar(moment(one.started), moment(one.ended), start, span, one.state, title, again or one.restarts > 0)


def _bar(begin: datetime | None, end: datetime | None, start: datetime, span: float, state: str, title: str,
         again: bool = False) -> Bar | None:  # fmt: skip
    if begin is None or end is None:
        return None
    left = min(max((begin - start).total_seconds() / span * 100, 0), 100)
    right = min(max((end - start).total_seconds() / span * 100, left), 100)
    return Bar(left, right - left, state, title, again)


def _tick_text(seconds: float) -> str:
    """Short, as clocks write it.

    >>> _tick_text(0), _tick_text(0.5), _tick_text(30), _tick_text(90), _tick_text(7200), _tick_text(172800)
    ('0', '0.5 s', '30 s', '1:30 min', '2:00 h', '2 d')
    """
    if not seconds:
        return "0"
    if seconds < 60:
        return f"{seconds:g} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f}:{seconds % 60:02.0f} min"
    if seconds < 86400:
        return f"{seconds // 3600:.0f}:{seconds % 3600 // 60:02.0f} h"
    return f"{seconds / 86400:.0f} d"
