"""What a run looks like in a terminal: the plan, the steps as they go, and the end. Progress goes to stderr."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape as escape_markup
from rich.panel import Panel
from rich.table import Table

from tunesmith.targets.local.run import RunResult, RunView, StepView
from tunesmith.targets.local.workdir import Workdir

_MARKS = {"RUNNING": "[cyan]>[/]", "SUCCEEDED": "[green]ok[/]", "FAILED": "[red]x[/]"}
_PAUSE_SECONDS = 10.0
_BARS = "▁▂▃▄▅▆▇█"

_out = Console(highlight=False)
_err = Console(stderr=True, highlight=False)


def show_plan(pipeline: str, arguments: dict[str, Any], workdir: Workdir) -> None:
    """What is about to run, and where it goes."""
    _err.print(f"[bold]{pipeline}[/] on this machine")
    for name in ("data", "base_model", "method", "max_steps", "replicas"):
        if name in arguments:
            _err.print(f"  {name:<11} {escape(str(arguments[name]))}")
    _err.print(f"  workdir     {escape(str(workdir.folder))}")


class Follower:
    """Shows a run while it goes: a table that redraws in a terminal, a line for each change elsewhere."""

    def __init__(self, *, quiet: bool):
        self._quiet = quiet
        self._live = Live(console=_err, refresh_per_second=4) if _err.is_terminal and not quiet else None
        self._told: dict[str, tuple[str, str]] = {}
        self._when: dict[str, float] = {}

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, view: RunView) -> None:
        """Take in the present state."""
        if self._live:
            self._live.update(_table(view))
        elif not self._quiet:
            for step in view.steps.values():
                self._tell(step)

    def _tell(self, step: StepView) -> None:
        now = (step.state, step.note)
        if self._told.get(step.name) == now:
            return
        ended = step.ended is not None
        pause = time.time() - self._when.get(step.name, 0.0)
        if not ended and step.losses and step.note.startswith("step ") and pause < _PAUSE_SECONDS:
            return  # a line for each step of a training would bury the others
        self._when[step.name] = time.time()
        note = f"{step.seconds(time.time()):.1f} s" if ended else step.note.removeprefix(f"{step.state.lower()} ")
        self._told[step.name] = now
        stamp = time.strftime("%H:%M:%S")
        _err.print(f"{stamp} {step.name:<22} {step.state.lower():<9} {escape(note)}".rstrip(), soft_wrap=True)


def escape(text: str) -> str:
    """Text of others as text: neither rich's markup nor the terminal's control sequences in it are obeyed."""
    return escape_markup("".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text))


def _table(view: RunView) -> Table:
    table = Table(box=None, padding=(0, 1), expand=True)
    for title, options in (
        ("", {"width": 3}),
        ("step", {"min_width": 20}),
        ("time", {"justify": "right"}),
        ("", {"ratio": 1}),
    ):
        table.add_column(title, no_wrap=True, **options)
    for step in view.steps.values():
        note = _note(step)
        seconds = f"{step.seconds(time.time()):.0f} s"
        table.add_row(_MARKS.get(step.state, "?"), step.name, seconds, note)
    return table


def _note(step: StepView) -> str:
    if step.failure:
        return f"[red]{escape(step.failure['message'].splitlines()[0])}[/]"
    line = sparkline([loss for _, loss in step.losses])
    note = "" if step.ended and not step.losses else step.note
    return f"{line} {escape(note)}".strip()


def sparkline(values: list[float], width: int = 24) -> str:
    """The course of values in one line of text."""
    if len(values) < 2:
        return ""
    picked = (
        [values[round(i * (len(values) - 1) / (width - 1))] for i in range(width)] if len(values) > width else values
    )
    low, high = min(picked), max(picked)
    return "".join(_BARS[round((value - low) / ((high - low) or 1) * (len(_BARS) - 1))] for value in picked)


def show_end(result: RunResult, summary: dict[str, Any], *, workdir: Path) -> None:
    """Each step's time and cost, what became of the model, and where things lie."""
    table = Table(box=None, padding=(0, 2), title=f"{summary['pipeline']}: {result.status}", title_justify="left")
    table.add_column("step")
    table.add_column("state")
    table.add_column("time", justify="right")
    table.add_column("cost", justify="right")
    for step in result.view.steps.values():
        table.add_row(
            step.name, step.state if step.ended else "KILLED", f"{step.seconds(time.time()):.1f} s", _money(step.cost)
        )
    _out.print(table)
    if result.view.failed and result.view.failed.failure:
        _show_failure(result.view.failed)
    elif result.status == "FAILED":
        _out.print(Panel(escape("\n".join(result.log_tail)), title="the end of the log", title_align="left"))
    _show_figures(summary)
    for label, value in (
        ("report", summary.get("report")),
        ("model", summary.get("model_uri")),
        ("log", result.log),
    ):
        if value:
            _out.print(f"{label:<9}{value}", soft_wrap=True, markup=False)
    if summary.get("serving_url"):
        _out.print(
            f"serving  {summary['serving_url']}/v1   (end it: tunesmith local delete --workdir {workdir} --all)",
            soft_wrap=True,
            markup=False,
        )
    if result.status == "INTERRUPTED":
        if result.jobs:
            _out.print(f"{', '.join(result.jobs)} runs on. Run the same command again to attach to it.")
        else:
            _out.print("Its jobs were ended. Run the same command again: training goes on from its checkpoint.")


def _show_failure(step: StepView) -> None:
    failure = step.failure or {}
    known = f"   [{failure['id']}] is explained in docs/errors.md" if failure.get("id") else ""
    lines = [failure.get("message", ""), f"at fault: {failure.get('fault')}   reason: {failure.get('reason')}{known}"]
    lines += [f"| {line}" for line in failure.get("log_tail") or ()]
    _out.print(Panel(escape("\n".join(lines)), title=f"{step.name} failed", title_align="left", border_style="red"))


def _show_figures(summary: dict[str, Any]) -> None:
    metrics = summary.get("metrics") or {}
    if "eval_loss" in metrics and "eval_loss_base" in metrics:
        change = 100 * (metrics["eval_loss"] / metrics["eval_loss_base"] - 1) if metrics["eval_loss_base"] else 0
        _out.print(
            f"held-out loss  {metrics['eval_loss_base']:.3f} -> {metrics['eval_loss']:.3f} nats/token ({change:+.1f} %)"
        )
    if metrics.get("steps") and metrics.get("resumed_from_step") == metrics["steps"]:
        _out.print(f"training       found finished at step {metrics['steps']:.0f}; --fresh trains anew")
    elif metrics.get("tokens_per_second"):
        _out.print(f"training       {metrics['tokens_per_second']:.0f} useful tokens/s")
    if text := (summary.get("cost") or {}).get("text"):
        _out.print(f"cost           {text}", markup=False)


def _money(cost: dict[str, Any]) -> str:
    """A cost as people read it; what is not known says why."""
    from tunesmith.cost import Cost

    return Cost.from_json(cost).show() if cost else ""
