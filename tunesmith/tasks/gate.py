"""Thresholds on metrics, and the verdict on each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from tunesmith.errors import BadInput, TunesmithError
from tunesmith.launch.progress import say


class Threshold(BaseModel):
    """Bounds on one metric; at least one is given.

    Attributes:
        min: the value must be at least this.
        max: the value must be at most this.
        max_ratio_to_base: the value divided by ``<metric>_base`` must be at most this.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)

    min: float | None = None
    max: float | None = None
    max_ratio_to_base: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _bounds(self) -> Threshold:
        if self.min is None and self.max is None and self.max_ratio_to_base is None:
            raise ValueError("give at least one of min, max and max_ratio_to_base")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}: no value can pass")
        return self


@dataclass(frozen=True)
class Verdict:
    """One comparison. ``value`` is None if the metric was not measured; such a verdict never passes."""

    metric: str
    value: float | None
    comparison: str
    threshold: float
    passed: bool

    def to_json(self) -> dict[str, Any]:
        """As the report reads it."""
        return asdict(self)

    def __str__(self) -> str:
        value = "not measured" if self.value is None else f"{self.value:.4g}"
        return f"{self.metric} is {value}, wanted {self.comparison} {self.threshold:.4g}"


class GateClosed(TunesmithError):
    """A metric is not within its thresholds."""

    default_id = "gate-closed"
    fault = "user"


def judge(metrics: Mapping[str, Any], thresholds: Mapping[str, Any]) -> list[Verdict]:
    """A verdict on every bound.

    Raises:
        BadInput: ``thresholds`` is not what `Threshold` takes; the metric and the field are named.
    """
    try:
        bounds = TypeAdapter(dict[str, Threshold]).validate_python(thresholds)
    except ValidationError as error:
        where = "; ".join(f"thresholds.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise BadInput(f'{where}. Write for example {{"eval_loss": {{"max": 3.0}}}}.', "invalid-threshold") from None
    return [verdict for name, bound in sorted(bounds.items()) for verdict in _verdicts(name, bound, metrics)]


def require(verdicts: Iterable[Verdict]) -> None:
    """Raise `GateClosed`, with the numbers, unless every verdict passed."""
    verdicts = list(verdicts)
    for verdict in verdicts:
        say(f"{'passed' if verdict.passed else 'FAILED'}: {verdict}")
    failed = [str(verdict) for verdict in verdicts if not verdict.passed]
    if failed:
        raise GateClosed(f"{len(failed)} of {len(verdicts)} thresholds are not met: {'; '.join(failed)}")


def _verdicts(name: str, bound: Threshold, metrics: Mapping[str, Any]) -> Iterable[Verdict]:
    value = _number(metrics.get(name))
    if bound.min is not None:
        yield Verdict(name, value, ">=", bound.min, value is not None and value >= bound.min)
    if bound.max is not None:
        yield Verdict(name, value, "<=", bound.max, value is not None and value <= bound.max)
    if bound.max_ratio_to_base is not None:
        base = _number(metrics.get(f"{name}_base"))
        # of a base that is zero or below, a ratio says nothing: a worse loss would make it smaller
        ratio = value / base if value is not None and base is not None and base > 0 else None
        passed = ratio is not None and ratio <= bound.max_ratio_to_base
        yield Verdict(f"{name} / {name}_base", ratio, "<=", bound.max_ratio_to_base, passed)


def _number(value: Any) -> float | None:
    """A finite number, or None: a loss that became NaN was not measured."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)
