"""Put the report together: read the records, draw, and fill the template.

The HTML is one file without scripts and without anything to load, so that it opens from a disk, from a bucket and in
the KFP UI's sandboxed frame. Everything in it that came from a model or a user is escaped by jinja2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tunesmith.cost import STALE_AFTER_DAYS, Cost, show_amount
from tunesmith.report import formats
from tunesmith.report.charts import curves, histogram
from tunesmith.report.graph import lineage
from tunesmith.report.markdown import markdown
from tunesmith.report.reading import Run, cost_of, read
from tunesmith.report.summary import report_uri, serving_url, summarize, trained_model
from tunesmith.report.timeline import timeline

# The KFP UI fetches the whole file into a frame; more than this is slow there.
MAX_HTML_BYTES = 1_000_000

FAULTS = {
    "user": "the user: code, data or settings",
    "system": "the system: not the code that ran",
    "capacity": "capacity: there was no room for it",
}
_PAIRS = (
    ("eval_loss_base", "eval_loss", "Held-out loss", "nats/token"),
    ("perplexity_base", "perplexity", "Held-out perplexity", ""),
)


@dataclass(frozen=True)
class Rendered:
    """The report as HTML, as Markdown, and the summary that ``--json`` writes."""

    html: str
    markdown: str
    summary: dict[str, Any]


@dataclass(frozen=True)
class _Limits:
    """How much of what can be long is shown."""

    cards: int
    samples: int
    characters: int


_LIMITS = (_Limits(60, 12, 2000), _Limits(12, 6, 800), _Limits(0, 3, 300))


def render(root: str | Path, *, pipeline: str, state: str | None = None, now: datetime | None = None) -> Rendered:
    """Make the report of the run below ``root`` from the records and files that its steps left there.

    Args:
        root: the run's root, a folder or a URI that fsspec knows.
        pipeline: the pipeline's name.
        state: how the run ended, if the caller knows; else the worst state among the steps.
        now: when the report is made; the clock's time without it.
    """
    run = read(root, pipeline=pipeline, state=state)
    now = now or datetime.now(UTC)
    html = ""
    for limits in _LIMITS:
        html = _html(run, now, limits)
        if len(html.encode()) <= MAX_HTML_BYTES:
            break
    else:  # not with records of 16 KiB each; but then too, a page that opens is better than none
        few = replace(run, steps=run.steps[:20], notices=(*run.notices, "Only the first 20 steps are shown."))
        html = _html(few, now, _LIMITS[-1])
    return Rendered(html, markdown(run), summarize(run))


def _html(run: Run, now: datetime, limits: _Limits) -> str:
    style = (resources.files("tunesmith.report") / "templates" / "report.css").read_text(encoding="utf-8")
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            run=run,
            style=Markup(style),
            now=now,
            limits=limits,
            faults=FAULTS,
            tiles=_tiles(run),
            failed=[step for step in run.steps if step.last.state != "SUCCEEDED" and step.last.state],
            timeline=timeline(run),
            curves=[(step.task, chart) for step in run.steps if step.curve for chart in curves(step.curve)],
            pairs=_pairs(run),
            histograms=[(step.task, histogram(step.histogram)) for step in run.steps if step.histogram],
            lineage=lineage(run),
            cost_rows=_cost_rows(run),
            sources=_sources(run.cost),
            stale=_stale(run.cost, now),
            model=trained_model(run),
            report=report_uri(run),
            serving_url=serving_url(run),
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(loader=PackageLoader("tunesmith.report"), autoescape=True, undefined=StrictUndefined,
                              trim_blocks=True, lstrip_blocks=True)  # fmt: skip
    environment.filters |= {
        "number": formats.number,
        "duration": formats.duration,
        "size": formats.size,
        "short": formats.short_digest,
        "clip": formats.text,
        "moment": formats.moment,
        "clock": formats.clock,
        "cost_of": cost_of,
    }
    return environment


def _tiles(run: Run) -> list[tuple[str, str, str]]:
    """Label, value and remark of the figures at the top; only what is known, but cost and time always."""
    done = sum(step.last.state == "SUCCEEDED" for step in run.steps)
    restarts = sum(step.restarts for step in run.steps)
    remark = f"{restarts} restart{'s' if restarts != 1 else ''}" if restarts else ""
    tiles = [
        ("Steps", f"{done} of {len(run.steps)}", "succeeded"),
        ("Wall time", formats.duration(run.seconds), remark),
    ]
    cost = run.cost
    if cost.amount is None:
        known = f"known part {show_amount(cost.known_amount, cost.currency)}" if cost.known_amount else ""
        tiles.append(("Cost", "unknown", "; ".join((*cost.unknown, known)).strip("; ")))
    else:
        tiles.append(("Cost", cost.show(), "all steps and attempts"))
    before, after = run.metric("eval_loss_base"), run.metric("eval_loss")
    samples = run.metric("eval_samples")
    basis = f", {samples:.0f} samples" if samples is not None else ""
    if before is not None and after is not None:
        value = f"{formats.number(before, 3)} \u2192 {formats.number(after, 3)}"
        tiles.append(("Held-out loss", value, _change(before, after) + basis))
    elif after is not None:
        tiles.append(("Held-out loss", formats.number(after, 3), "base not measured"))
    if (speed := run.metric("tokens_per_second")) is not None:
        steps = run.metric("steps")
        earlier = steps is not None and run.metric("resumed_from_step") == steps
        tiles.append(("Training", f"{formats.number(speed, 3)} tokens/s", "of an earlier run" if earlier else ""))
    return tiles


def _pairs(run: Run) -> list[dict[str, Any]]:
    """Before and after, as shares of the larger one."""
    pairs = []
    for base, tuned, title, unit in _PAIRS:
        before, after = run.metric(base), run.metric(tuned)
        if before is None or after is None or min(before, after) < 0 or not max(before, after):
            continue
        shares = [100 * (value / max(before, after)) for value in (before, after)]
        pairs.append({"title": title, "unit": unit, "change": _change(before, after),
                      "rows": list(zip(("base", "tuned"), (before, after), shares, strict=True))})  # fmt: skip
    return pairs


def _change(before: float, after: float) -> str:
    share = (after - before) / abs(before) * 100 if before else float("nan")
    if not abs(share) < 1e6:
        return ""
    sign = "\u2212" if share < 0 else "+"
    return f"{sign}{abs(share):.0f} %"


def _sources(cost: Cost) -> list[tuple[str, str, str, str]]:
    """Resource, rate with unit, source and date of each rate."""
    return [
        (line.resource, f"{line.rate:f} {cost.currency} per {line.unit}", line.source, line.date)
        if line.rate is not None
        else (line.resource, f"unknown per {line.unit}", "", "")
        for line in cost.lines
    ]


def _stale(cost: Cost, now: datetime) -> str:
    """A warning if a rate is older than a card should be."""
    ages = []
    for line in cost.lines:
        try:
            ages.append((now.date() - date.fromisoformat(line.date)).days)
        except ValueError:
            continue
    oldest = max(ages, default=0)
    return f"The rates are {oldest} days old; prices may have changed." if oldest > STALE_AFTER_DAYS else ""


@dataclass(frozen=True)
class _CostRow:
    """A line of the cost table; an ``inner`` one is an attempt, whose cost is in its step's."""

    name: str
    inner: bool
    state: str
    seconds: float
    footprint: str
    used: str
    cost: Cost


def _cost_rows(run: Run) -> list[_CostRow]:
    rows = []
    for step in run.steps:
        attempts = [(one, cost_of(one.cost)) for one in step.attempts]
        whole, seconds = step.cost, step.seconds
        if not attempts:
            of_one = _footprint(whole, seconds)
        elif len(attempts) == 1:
            of_one = _footprint(attempts[0][1], attempts[0][0].seconds)
        else:
            of_one = ""
        rows.append(_CostRow(step.task, False, step.last.state, seconds, of_one, _used(whole), whole))
        if len(attempts) > 1:
            for index, (one, cost) in enumerate(attempts, start=1):
                of_one = _footprint(cost, one.seconds)
                rows.append(_CostRow(f"attempt {index}", True, one.state, one.seconds, of_one, _used(cost), cost))
    return rows


# With hyphens at which no line breaks.
_SHORT_UNITS = {"core-hour": "core\u2011h", "GiB-hour": "GiB\u2011h", "GPU-hour": "GPU\u2011h"}
# Recorded seconds are rounded; of less than this, the footprint read back would be off.
_TOO_SHORT = 0.5
_AMOUNTS = {"core-hour": ("core", "cores"), "GiB-hour": ("GiB", "GiB")}


def _used(cost: Cost) -> str:
    return ", ".join(f"{formats.number(float(line.quantity), 3)}\u00a0{_SHORT_UNITS.get(line.unit, line.unit)}"
                     for line in cost.lines)  # fmt: skip


def _footprint(cost: Cost, seconds: float) -> str:
    """What was occupied all the time, read back from the quantities: hours of it, divided by the hours."""
    if seconds < _TOO_SHORT:
        return ""
    parts = []
    for line in cost.lines:
        amount = float(line.quantity) * 3600 / seconds
        one, many = _AMOUNTS.get(line.unit, (line.resource, line.resource))
        shown = formats.number(amount, 3)
        parts.append(f"{shown}\u00a0{one if shown == '1' else many}")
    return ", ".join(parts)
