"""One training run from its environment to its result."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tunesmith.errors import BadInput
from tunesmith.lineage.digest import digest_path
from tunesmith.trainer import storage
from tunesmith.trainer.checkpoints import CheckpointStore
from tunesmith.trainer.conversations import find_jsonl, read_conversations
from tunesmith.trainer.environment import Rank, run_paths, threads
from tunesmith.trainer.output import Trained, require_free, write_model
from tunesmith.trainer.progress import metric_line
from tunesmith.trainer.result import write_success
from tunesmith.trainer.settings import TrainSettings
from tunesmith.trainer.stopping import StopSignal


def run(settings: TrainSettings, place: Rank, stop: StopSignal) -> dict[str, Any] | None:
    """Train and write the model.

    Returns:
        The result's metrics, or None if the run was stopped by SIGTERM (its checkpoint is complete).

    Raises:
        BadInput: settings, model or data cannot be used.
    """
    begin = time.monotonic()
    paths = run_paths(os.environ)
    settings.accumulation(place.ranks, gpu=False)  # refuses what no number of passes would mend
    require_free(paths.output)
    model = storage.fetch(paths.model)
    if not (model / "config.json").is_file() or not list(model.glob("*.safetensors")):
        raise BadInput(f"{paths.model} holds no model in safetensors (config.json and *.safetensors)")
    data = find_jsonl(storage.fetch(paths.train))
    conversations = read_conversations(data)
    store = CheckpointStore(paths.checkpoints) if paths.checkpoints else None
    claimed = store.claimed() if store and place.speaks else contextlib.nullcontext()
    _tell(place, f"{len(conversations)} conversations; loading torch")

    os.environ["OMP_NUM_THREADS"] = str(threads(os.environ, place))  # read when torch is imported
    from tunesmith.trainer.sft import train

    with claimed, tempfile.TemporaryDirectory(prefix="tunesmith-trainer-") as scratch:
        outcome = train(
            settings, model, conversations, digest_path(data).text, store, place, stop,
            report=lambda values: print(metric_line(values), flush=True), scratch=Path(scratch),
        )  # fmt: skip
        if outcome.weights is None:
            kept = "with the same checkpoints it will resume" if store else "no checkpoints were asked for: it is lost"
            _tell(place, f"stopped by SIGTERM after step {outcome.step}; {kept}")
            return None
        trained = Trained(settings, outcome.progress, outcome.step, outcome.resumed_from_step, place.ranks)
        if place.speaks:
            _tell(place, f"{outcome.step} steps done; writing the model")
            digest = write_model(model, outcome.weights, paths.output, trained)
            outputs = {"model": {"digest": digest.text, "bytes": digest.bytes}}
            write_success(paths.termination_log, trained.metrics(), outputs)
            _tell(place, f"wrote {digest.bytes / 1e6:.0f} MB to {paths.output} after {time.monotonic() - begin:.0f} s")
    return trained.metrics()


def _tell(place: Rank, sentence: str) -> None:
    """A line for people, on stderr: never in the form of a metric."""
    if place.speaks:
        print(f"trainer: {sentence}", file=sys.stderr, flush=True)
