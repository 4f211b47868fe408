"""The summary of a run for programs: what ``tunesmith run --json FILE`` writes.

One JSON object of schema ``tunesmith.dev/run/v1``. Keys are only ever added within a version; unknown values are null.

==================== =====================================================================================
``schema``           ``tunesmith.dev/run/v1``
``pipeline``         name of the pipeline
``status``           a closed state (``SUCCEEDED``, ``FAILED``, ``CANCELLED`` ...), ``UNKNOWN`` without records
``started, ended``   RFC 3339, of the first and the last step
``seconds``          wall time between them
``steps``            by start: ``name``, ``component``, ``state``, ``seconds`` (all executions), ``cost`` (a number,
                     or null), ``currency``, ``unknown`` (why the cost is null, list of texts), ``restarts``,
                     ``metrics``, and for a failed step ``failure`` {``fault``, ``reason``, ``message``}
``metrics``          all steps' finite metrics; of two of the same name the later step's, ``restarts`` is the sum
``cost``             ``amount`` (a number, or null), ``known_amount``, ``currency``, ``unknown``, ``tier``,
                     ``card_digest``, ``text`` (for people)
``report``           URI of the report, if a step recorded one
``model_uri``        URI of the fine-tuned model, if training succeeded
``serving_url``      where the model is served, if it is
==================== =====================================================================================

Costs are rounded to a billionth here; the records keep them exactly.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from tunesmith.cost import Cost
from tunesmith.lineage.record import Item
from tunesmith.report.formats import finite, text
from tunesmith.report.reading import Run, Step

SCHEMA = "tunesmith.dev/run/v1"
_TRAINING = ("training/", "fine_tune", "pytorch_job")


def summarize(run: Run) -> dict[str, Any]:
    """The summary of a run, as the module's text documents it."""
    return {
        "schema": SCHEMA,
        "pipeline": run.pipeline,
        "status": run.state,
        "started": _stamp(run.started),
        "ended": _stamp(run.ended),
        "seconds": run.seconds,
        "steps": [_step(step) for step in run.steps],
        "metrics": _metrics(run),
        "cost": _cost(run.cost),
        "report": report_uri(run),
        "model_uri": model.uri if (model := trained_model(run)) else None,
        "serving_url": serving_url(run),
    }


def trained_model(run: Run) -> Item | None:
    """The output named ``model`` of the last training step that succeeded."""
    for step in reversed(run.steps):
        name = step.last.component.replace("-", "_")
        if step.last.state == "SUCCEEDED" and any(part in name for part in _TRAINING):
            return next((item for item in step.last.outputs if item.name == "model"), None)
    return None


def serving_url(run: Run) -> str | None:
    """The URL that the last deploying step recorded, if it succeeded."""
    urls = [step.last.details.get("serving_url") for step in run.steps if step.last.state == "SUCCEEDED"]
    return next((text(url, 500) for url in reversed(urls) if url and isinstance(url, str)), None)


def report_uri(run: Run) -> str | None:
    """The last HTML that a step recorded."""
    items = [item for step in run.steps for item in step.last.outputs if item.type == "system.HTML"]
    return items[-1].uri if items else None


def _step(step: Step) -> dict[str, Any]:
    last, cost = step.last, step.cost
    result: dict[str, Any] = {
        "name": step.task,
        "component": last.component,
        "state": last.state,
        "seconds": round(step.seconds, 3),
        "cost": _amount(cost.amount),
        "currency": cost.currency,
        "unknown": list(cost.unknown),
        "restarts": step.restarts,
        "metrics": _finite(last.metrics),
    }
    if last.failure and last.state != "SUCCEEDED":
        failure = last.failure
        result["failure"] = {"fault": failure.fault, "reason": failure.reason, "message": failure.message}
    return result


def _metrics(run: Run) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for step in run.steps:
        metrics |= _finite(step.last.metrics)
    return metrics | {"restarts": sum(step.restarts for step in run.steps)}


def _finite(metrics: Any) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if finite(value) is not None}


def _cost(cost: Cost) -> dict[str, Any]:
    return {
        "amount": _amount(cost.amount),
        "known_amount": _amount(cost.known_amount),
        "currency": cost.currency,
        "unknown": list(cost.unknown),
        "tier": cost.tier,
        "card_digest": cost.card_digest,
        "text": cost.show(),
    }


def _amount(amount: Decimal | None) -> float | None:
    return None if amount is None else round(float(amount), 9)


def _stamp(at: datetime | None) -> str | None:
    return at.isoformat() if at else None
