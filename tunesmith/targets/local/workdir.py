"""WORKDIR: everything that runs of pipelines on this machine leave, and the key by which an interrupted run goes on.

The folder holds::

    cluster/            LocalCluster: jobs and services
    runs/<run>/         artifacts and records of a run, as kfp.local lays them out
    checkpoints/<key>/  checkpoints by resume key, whichever run wrote them
    cache/models/       converted base models
    state/<pipeline>.*  run key, request, progress and log of the newest run
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tunesmith.errors import BadInput
from tunesmith.lineage.digest import digest_text

DEFAULT = Path(".tunesmith")


@dataclass
class RunState:
    """The newest run of a pipeline in a WORKDIR. It has ended, or was interrupted and can go on under its key."""

    key: str
    arguments: str
    ended: bool = False


class Workdir:
    """The folder, and the paths in it."""

    def __init__(self, folder: Path):
        self.folder = folder.absolute()
        self.cluster = self.folder / "cluster"
        self.runs = self.folder / "runs"
        self.checkpoints = self.folder / "checkpoints"
        self.models = self.folder / "cache" / "models"
        self._state = self.folder / "state"

    def make(self) -> None:
        """Create the folders.

        Raises:
            BadInput: that is not possible there.
        """
        try:
            for folder in (self.cluster, self.runs, self.checkpoints, self.models, self._state):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"--workdir: {self.folder} cannot be used: {error.strerror}. Name another folder.") from None

    def file(self, pipeline: str, suffix: str) -> Path:
        """A file of the newest run of ``pipeline``."""
        return self._state / f"{pipeline}.{suffix}"

    def begin(self, pipeline: str, arguments: dict[str, Any]) -> tuple[RunState, RunState | None]:
        """The run to do now, and the interrupted one that it cannot continue because its arguments were others."""
        digest = digest_text(json.dumps(arguments, sort_keys=True, default=str))
        before = self._read(pipeline)
        if before and not before.ended and before.arguments == digest:
            return before, None
        run = RunState(secrets.token_hex(8), digest)
        self.save(pipeline, run)
        return run, before if before and not before.ended else None

    def save(self, pipeline: str, run: RunState) -> None:
        """Keep the state of the newest run, whole or not at all."""
        file = self.file(pipeline, "run.json")
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(run)), encoding="utf-8")
        os.replace(partial, file)

    def _read(self, pipeline: str) -> RunState | None:
        try:
            return RunState(**json.loads(self.file(pipeline, "run.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    @contextlib.contextmanager
    def only(self, pipeline: str) -> Iterator[None]:
        """Refuse a second run of the pipeline in this folder while one goes on; a dead one's lock is free."""
        with self.file(pipeline, "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadInput(
                    f"another run of {pipeline} is going on in {self.folder}. Wait for it, or name another --workdir.",
                    "workdir-in-use",
                ) from None
            yield
