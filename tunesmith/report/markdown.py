"""The report in short, as Markdown for the KFP UI, which shows it beside a step.

The UI does not parse HTML inside Markdown, but other readers do: everything that came from a model or a user is escaped
for both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from tunesmith.report import formats
from tunesmith.report.reading import Check, Run
from tunesmith.report.summary import serving_url, trained_model

_MAX_STEPS = 60
_MAX_SAMPLES = 3
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#!|~:@$^])")


def plain(value: Any, limit: int = 300) -> str:
    r"""Text that Markdown shows as it is, on one line: no markup, no link, no HTML, no end of a table's cell.

    >>> print(plain("<b>|`x`|</b> [a](http://b)"))
    &lt;b&gt;\|\`x\`\|&lt;/b&gt; \[a\]\(http\://b\)
    """
    escaped = _SPECIAL.sub(r"\\\1", " ".join(formats.text(value, limit).split()))
    escaped = escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"(?i)www\.", r"www\\.", escaped)


def markdown(run: Run) -> str:
    """The report in short."""
    parts = [f"# {plain(run.pipeline)}: {plain(run.state)}", _overview(run)]
    parts += [f"> {plain(notice)}" for notice in run.notices]
    parts += _failures(run)
    if run.steps:
        parts += ["## Steps", _steps(run)]
    else:
        parts.append("No step left a record.")
    checks = [check for step in run.steps for check in step.checks]
    if checks:
        rows = [_check(check) for check in checks]
        parts += ["## Quality gate", _table(("Metric", "Value", "Required", "Result"), rows)]
    samples = [sample for step in run.steps for sample in step.samples]
    if samples:
        answers = [(plain(one.prompt), plain(one.base), plain(one.tuned)) for one in samples[:_MAX_SAMPLES]]
        parts += ["## Answers before and after", _table(("Prompt", "Base model", "Tuned model"), answers)]
    return "\n\n".join(parts) + "\n"


def _check(check: Check) -> tuple[str, ...]:
    required = f"{check.comparison} {formats.number(check.threshold)}"
    result = "passed" if check.passed else "**failed**"
    return plain(check.metric), plain(formats.number(check.value)), plain(required), result


def _overview(run: Run) -> str:
    facts = [("Wall time", formats.duration(run.seconds)), ("Cost", run.cost.show())]
    before, after = run.metric("eval_loss_base"), run.metric("eval_loss")
    if after is not None:
        first = f"{formats.number(before)} → " if before is not None else ""
        facts.append(("Held-out loss", f"{first}{formats.number(after)} nats/token"))
    if (model := trained_model(run)) is not None:
        facts.append(("Model", model.uri))
    if url := serving_url(run):
        facts.append(("Served during the run at", url))
    return _table(("", ""), [(name, plain(value)) for name, value in facts])


def _failures(run: Run) -> list[str]:
    parts = []
    for step in run.steps:
        failure = step.last.failure
        if failure and step.last.state != "SUCCEEDED":
            parts.append(f"## {plain(step.task)} failed: {plain(failure.reason)}")
            parts.append(f"At fault: {plain(failure.fault) or 'unknown'}. {plain(failure.message, 1000)}")
    return parts


def _steps(run: Run) -> str:
    rows = [
        (plain(step.task), plain(step.last.state), formats.duration(step.seconds), str(step.restarts),
         plain(step.cost.show()))
        for step in run.steps[:_MAX_STEPS]
    ]  # fmt: skip
    more = f"\n\n{len(run.steps) - _MAX_STEPS} more steps." if len(run.steps) > _MAX_STEPS else ""
    return _table(("Step", "State", "Time", "Restarts", "Cost"), rows) + more


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
