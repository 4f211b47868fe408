"""What is told while training: the loss curve, how much was read, and the lines that Katib reads."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FILE = "progress.json"


@dataclass
class Progress:
    """The run so far, carried from one attempt to the next in every checkpoint.

    ``history`` holds ``[step, loss, seconds]`` of every logged step; ``tokens`` counts what went through the model with
    padding, ``useful_tokens`` without; ``seconds`` is time in training steps, lost work not included.
    """

    history: list[tuple[int, float, float]] = field(default_factory=list)
    tokens: int = 0
    useful_tokens: int = 0
    seconds: float = 0.0

    def save(self, folder: Path) -> None:
        """Write it into a checkpoint."""
        (folder / FILE).write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> Progress:
        """Read it from a checkpoint."""
        stored = json.loads((folder / FILE).read_text())
        return cls(
            [(int(step), float(loss), float(seconds)) for step, loss, seconds in stored["history"]],
            int(stored["tokens"]), int(stored["useful_tokens"]), float(stored["seconds"]),
        )  # fmt: skip

    def metrics(self, *, steps: int, resumed_from_step: int, ranks: int) -> dict[str, Any]:
        """The result's metrics; ``train_loss`` and ``first_loss`` are those of the last and first logged step."""
        return {
            "train_loss": self.history[-1][1] if self.history else None,
            "first_loss": self.history[0][1] if self.history else None,
            "steps": steps,
            "tokens": self.tokens,
            "useful_tokens": self.useful_tokens,
            "tokens_per_second": round(self.useful_tokens / self.seconds, 1) if self.seconds else None,
            "seconds": round(self.seconds, 2),
            "resumed_from_step": resumed_from_step,
            "ranks": ranks,
        }


class Stopwatch:
    """Seconds since it was started, on top of those of earlier attempts."""

    def __init__(self, before: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock() - before

    def seconds(self) -> float:
        """Seconds so far."""
        return self._clock() - self._start


def metric_line(values: dict[str, float], now: datetime | None = None) -> str:
    """One line in Katib's text format: a time, then ``name=value`` pairs.

    Katib orders by the time, so a line without one would make "latest" arbitrary.

    >>> metric_line({"step": 1, "loss": 2.5}, datetime(2026, 11, 30, 12, tzinfo=UTC))
    '2026-11-30T12:00:00.000Z step=1 loss=2.5'
    """
    stamp = (now or datetime.now(UTC)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return " ".join([stamp, *(f"{name}={value:.6g}" for name, value in values.items())])
