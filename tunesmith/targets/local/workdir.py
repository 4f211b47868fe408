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
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tunesmith.errors import BadInput
from tunesmith.lineage.digest import digest_text

_LOCK_TRIES, _LOCK_PAUSE_SECONDS = 10, 0.2
_PATH_LIMIT = 300


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
        problem = _unusable(str(self.folder))
        if problem:
            raise BadInput(f"--workdir: {str(self.folder)!r:.100} {problem}. Name another folder.", "unusable-workdir")
        try:
            # Records, logs and arguments are the user's own: nobody else need read them.
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self.cluster, self.runs, self.checkpoints, self.models, self._state):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                folder.chmod(0o700)
        except OSError as error:
            message = f"--workdir: {self.folder} cannot be used: {error.strerror}. Name another folder."
            raise BadInput(message, "unusable-workdir") from None

    def file(self, pipeline: str, suffix: str) -> Path:
        """A file of the newest run of ``pipeline``."""
        return self._state / f"{pipeline}.{suffix}"

    def begin(self, pipeline: str, arguments: dict[str, Any]) -> RunState:
        """The run to do now: the interrupted one that had the same arguments, or a new one."""
        digest = digest_text(json.dumps(arguments, sort_keys=True, default=str))
        before = self._read(pipeline)
        if before and not before.ended and before.arguments == digest:
            return before
        run = RunState(secrets.token_hex(8), digest)
        self.save(pipeline, run)
        return run

    def save(self, pipeline: str, run: RunState) -> None:
        """Keep the state of the newest run, whole or not at all."""
        file = self.file(pipeline, "run.json")
        partial = file.with_suffix(".partial")
        with partial.open("w", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(run)))
            stream.flush()
            os.fsync(stream.fileno())  # an empty file after a power cut would be a second run of the same work
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
            if not _locked(lock):
                raise BadInput(
                    f"another run of {pipeline} is going on in {self.folder}. Wait for it, or name another --workdir.",
                    "workdir-in-use",
                )
            yield


def _locked(lock: Any) -> bool:
    """Take the lock; what a killed run leaves behind ends within a moment, which is waited for."""
    for _ in range(_LOCK_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_LOCK_PAUSE_SECONDS)
    return False


def _unusable(folder: str) -> str | None:
    """Why a path cannot be a WORKDIR: kfp fills in placeholders, SQLite and sockets have limits."""
    if "{{" in folder:
        return "has '{{' in it, which kfp takes for a placeholder"
    if len(folder) > _PATH_LIMIT:
        return f"has {len(folder)} characters, more than {_PATH_LIMIT}"
    try:
        folder.encode("utf-8")
    except UnicodeEncodeError:
        return "is not valid UTF-8"
    return None
