"""Curves and histograms as SVG, with axes, units and ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from tunesmith.report.formats import duration, number
from tunesmith.report.reading import Curve, Histogram, Series
from tunesmith.report.svg import element, path, picture

_WIDTH, _HEIGHT = 580, 290
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 26, 44
_FEW_POINTS = 40
_HOVER_POINTS = 120
_COLOURS = 6
_EDGE_LABELS = 9
# Beyond these, spans between values would be no numbers any more.
_HUGE, _TINY = 1e300, 1e-300


@dataclass(frozen=True)
class Legend:
    """One entry: the class of its line, and its text."""

    kind: str
    text: str


@dataclass(frozen=True)
class Chart:
    """A picture, its legend, and what is not in it."""

    title: str
    svg: Markup
    legend: tuple[Legend, ...]
    note: str = ""


@dataclass(frozen=True)
class _Scale:
    """Maps ``low``..``high`` to ``start``..``end``, both inclusive; ``high`` is above ``low``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def curves(curve: Curve) -> list[Chart]:
    """One chart for each unit among the series, over the common x."""
    units = dict.fromkeys(series.unit for series in curve.series)
    charts = (_chart(curve, unit, [s for s in curve.series if s.unit == unit and s.points]) for unit in units)
    return [chart for chart in charts if chart]


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round values within a span, some ``about`` of them.

    >>> ticks(0, 60), ticks(1.93, 3.11)
    ([0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0], [2.0, 2.2, 2.4, 2.6, 2.8, 3.0])
    """
    rough = (high - low) / about
    if not (math.isfinite(rough) and rough > abs(low) * 1e-12):
        return [low]
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next((m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= rough * 0.8), 10 * magnitude)
    if not step:
        return [low]
    first = math.ceil(low / step - 1e-9)
    return [
        float(f"{(first + i) * step:.12g}") for i in range(about * 2 + 2) if (first + i) * step <= high + step * 1e-9
    ]


def _chart(curve: Curve, unit: str, series: Sequence[Series]) -> Chart | None:
    points = [point for one in series for point in one.points]
    if not points:
        return None
    x = _scale([point[0] for point in points], _LEFT, _WIDTH - _RIGHT, 0.0)
    y = _scale([point[1] for point in points], _HEIGHT - _BOTTOM, _TOP, 0.06)
    marks = {label: [at for at, other in curve.marks if other == label] for _, label in curve.marks}
    lines = [
        element("line", x1=x(at), x2=x(at), y1=_TOP, y2=_HEIGHT - _BOTTOM, class_=f"mark m{index % 3}")
        for index, places in enumerate(marks.values())
        for at in places
        if x.low <= at <= x.high
    ]
    drawn = [_line(one, index, x, y, curve.x) for index, one in enumerate(series)]
    names = ", ".join(one.name for one in series)
    label = f"{names} in {unit or 'no unit'} over {curve.x} {number(x.low)} to {number(x.high)}"
    are_whole = all(point[0] == int(point[0]) for point in points)
    svg = picture(_WIDTH, _HEIGHT, label, *_axes(x, y, curve.x, unit, are_whole), *lines, *drawn)
    legend = [Legend(f"line s{i % _COLOURS}", _last(one, curve.x)) for i, one in enumerate(series)]
    legend += [Legend(f"mark m{i % 3}", _marked(name, at, curve.x)) for i, (name, at) in enumerate(marks.items())]
    dropped = sum(one.dropped for one in curve.series if one.unit == unit)
    note = f"{dropped} points were not finite numbers and are not drawn." if dropped else ""
    return Chart(names[:1].upper() + names[1:], svg, tuple(legend), note)


def _scale(values: Sequence[float], start: float, end: float, margin: float) -> _Scale:
    """From the least to the greatest value and a margin, a share of the spread; never empty, never infinite."""
    low, high = (min(max(value, -_HUGE), _HUGE) for value in (min(values), max(values)))
    room = (high - low) * margin
    if high - low <= abs(low) * 1e-9:  # one value, or as good as one
        room = abs(low) * 0.1 if abs(low) > _TINY else 1.0
    return _Scale(low - room, high + room, start, end)


def _axes(x: _Scale, y: _Scale, x_name: str, unit: str, are_whole: bool) -> list[Markup]:
    bottom = _HEIGHT - _BOTTOM
    parts = []
    for value in ticks(y.low, y.high):
        parts.append(element("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y(value), y2=y(value), class_="grid"))
        parts.append(element("text", number(value), x=_LEFT - 8, y=y(value) + 4, text_anchor="end", class_="tick"))
    for value in ticks(x.low, x.high, 8):
        if are_whole and value != int(value):  # there is no half a step
            continue
        parts.append(element("line", x1=x(value), x2=x(value), y1=bottom, y2=bottom + 4, class_="axis"))
        parts.append(element("text", number(value), x=x(value), y=bottom + 18, text_anchor="middle", class_="tick"))
    parts.append(element("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=bottom, y2=bottom, class_="axis"))
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(element("text", x_name, x=middle, y=_HEIGHT - 6, text_anchor="middle", class_="name"))
    parts.append(element("text", unit, x=4, y=14, class_="name"))
    return parts


def _line(series: Series, index: int, x: _Scale, y: _Scale, x_name: str) -> Markup:
    """The line, broken where x goes back (a restart repeats steps); dots where the points are few."""
    colour = f"s{index % _COLOURS}"
    pieces: list[list[tuple[float, float]]] = [[]]
    for before, point in pairwise([series.points[0], *series.points]):
        if point[0] < before[0]:
            pieces.append([])
        pieces[-1].append((x(point[0]), y(point[1])))
    parts = [element("path", d=path(piece), class_=f"line {colour}") for piece in pieces if len(piece) > 1]
    if len(series.points) <= _FEW_POINTS:
        radius = 3.0 if len(series.points) <= _FEW_POINTS // 2 else 2.0
        parts += [element("circle", cx=x(p[0]), cy=y(p[1]), r=radius, class_=f"dot {colour}") for p in series.points]
    for point in series.points[:: -(-len(series.points) // _HOVER_POINTS)]:
        after = f", after {duration(point[2])}" if point[2] is not None else ""
        tip = f"{series.name} {number(point[1])} {series.unit} at {x_name} {number(point[0])}{after}"
        parts.append(element("circle", element("title", tip), cx=x(point[0]), cy=y(point[1]), r=7.0, class_="hover"))
    return element("g", *parts)


def _last(series: Series, x_name: str) -> str:
    x, y, _ = series.points[-1]
    return f"{series.name}: {number(y)} at {x_name} {number(x)}"


def _marked(label: str, places: list[float], x_name: str) -> str:
    shown = ", ".join(number(at) for at in places[:4])
    return f"{label} ({x_name} {shown}{', …' if len(places) > 4 else ''})"


def histogram(data: Histogram) -> Chart:
    """Counts over lengths: one bar an interval, all of one width, so that edges that double read well."""
    width, height = 460, 210
    x = _Scale(0.0, float(len(data.counts)), _LEFT, width - _RIGHT)
    highest = max(data.counts) or 1.0
    bottom = height - _BOTTOM
    y = _scale([0.0, highest], bottom, _TOP, 0.0)
    parts = []
    for value in ticks(0.0, highest, 4):
        parts.append(element("line", x1=_LEFT, x2=width - _RIGHT, y1=y(value), y2=y(value), class_="grid"))
        parts.append(element("text", number(value), x=_LEFT - 8, y=y(value) + 4, text_anchor="end", class_="tick"))
    for index, ((low, high), count) in enumerate(zip(pairwise(data.edges), data.counts, strict=True)):
        span = f"{number(low)} or more" if high is None else f"from {number(low)} to {number(high)}"
        tip = element("title", f"{number(count)} {span} {data.unit}")
        parts.append(element("rect", tip, x=x(index) + 0.5, y=y(count), width=max(x(index + 1) - x(index) - 1, 1.0),
                             height=bottom - y(count), class_="bar"))  # fmt: skip
    for index in range(0, len(data.edges), -(-len(data.edges) // _EDGE_LABELS)):
        shown = "\u221e" if data.edges[index] is None else number(data.edges[index])
        parts.append(element("text", shown, x=x(index), y=bottom + 18, text_anchor="middle", class_="tick"))
    parts.append(element("line", x1=_LEFT, x2=width - _RIGHT, y1=bottom, y2=bottom, class_="axis"))
    middle = (_LEFT + width - _RIGHT) / 2
    parts.append(element("text", data.unit, x=middle, y=height - 6, text_anchor="middle", class_="name"))
    parts.append(element("text", "samples", x=4, y=14, class_="name"))
    end = "" if data.edges[-1] is None else f" to {number(data.edges[-1])}"
    label = f"Samples by length: {number(sum(data.counts))} from {number(data.edges[0])}{end} {data.unit}"
    return Chart("Length of the samples", picture(width, height, label, *parts, class_="picture small"), ())
