"""The trainer's command, and what it leaves behind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunesmith.launch.progress import say
from tunesmith.tasks.step import Step


def trainer_command(settings: Mapping[str, Any], nproc_per_node: str) -> list[str]:
    """The trainer's command, with one option a setting; the operator's variables say the rest.

    With one process a pod the operator's RANK and WORLD_SIZE are enough. With several, torchrun starts them; in between
    is our wrapper, since torchrun itself ends with 1 whatever its worker ended with.
    """
    command = ["python", "-m", "tunesmith.trainer"]
    if nproc_per_node != "1":
        command = ["python", "-m", "tunesmith.trainer.torchrun", "-m", "tunesmith.trainer"]
    for name, value in settings.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            command.append(f"--{option}" if value else f"--no-{option}")
        else:
            command += [f"--{option}", str(value)]
    return command


def leave_training(this: Step, model: Any, metrics: Any) -> None:
    """Metrics and loss curve of a training that tunesmith's trainer did, for KFP and for the run's report."""
    about = json.loads((Path(model.path) / "training.json").read_text(encoding="utf-8"))
    series = [{"name": "training loss", "unit": "nats/token", "points": about["history"]}]
    this.leave("curve.json", {"x": "step", "series": series, "marks": _marks(this)})
    this.metrics["restarts"] = float(len(this.tries) - 1 + sum(one.restarts for one in this.tries))
    first, last = this.metrics.get("first_loss"), this.metrics.get("train_loss")
    if first is not None and last is not None and last > 1.5 * first:
        say(f"warning: the training loss rose from {first:.3f} to {last:.3f}; a lower learning_rate may help")
    for name, value in sorted(this.metrics.items()):
        metrics.log_metric(name, value)
    Path(metrics.path).parent.mkdir(parents=True, exist_ok=True)
    Path(metrics.path).write_text(json.dumps(this.metrics, sort_keys=True), encoding="utf-8")


def _marks(this: Step) -> list[dict[str, Any]]:
    """Where the curve was taken up again from a checkpoint, and why."""
    resumed = int(this.metrics.get("resumed_from_step", 0))
    if not resumed:
        return []
    earlier = this.tries[:-1]
    why = f"attempt {earlier[-1].number} failed: {earlier[-1].observation.reason}" if earlier else "of an earlier run"
    return [{"step": resumed, "label": f"resumed from the checkpoint ({why})"}]
