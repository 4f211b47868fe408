"""Checkpoints that are either complete or not there.

A checkpoint is written under another name; then its files are flushed, a marker with the digest of every file is added,
and only then it gets its name. The marker is the proof: a folder without one was cut off and is removed, and nothing
in a checkpoint (optimizer state is a pickle) is opened before its digest has matched the marker.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tunesmith.errors import BadInput
from tunesmith.lineage.digest import digest_file
from tunesmith.trainer import storage

MARKER = "complete.json"
SCHEMA = "tunesmith.dev/checkpoint/v1"
_PREFIX = "checkpoint-"
_STAGING = ".writing"
_CLAIM_SECONDS = 20.0


class CheckpointRefused(BadInput):
    """A checkpoint whose bytes are not those that were written, or which belongs to another run."""

    default_id = "checkpoint-refused"


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: the optimizer step after which it was taken, and what its marker says."""

    path: Path
    step: int
    fingerprint: dict[str, Any]
    files: dict[str, str]  # POSIX path below the folder -> digest

    def verify(self) -> None:
        """Compare every file with the marker.

        Raises:
            CheckpointRefused: a file was changed, added or removed.
        """
        there = {p.relative_to(self.path).as_posix() for p in self.path.rglob("*") if not p.is_dir()} - {MARKER}
        odd = sorted(there ^ set(self.files)) or sorted(
            name for name, digest in self.files.items() if digest_file(self.path / name).text != digest
        )
        if odd:
            raise CheckpointRefused(
                f"{odd[0]} of the checkpoint {self.path} is not what was written (its digest differs from the "
                "marker's): delete that folder to resume from an earlier one"
            )

    def require_same_run(self, fingerprint: dict[str, Any]) -> None:
        """Refuse to continue what was begun with other settings or data.

        Raises:
            CheckpointRefused: naming what differs.
        """
        differ = sorted(k for k in {*fingerprint, *self.fingerprint} if fingerprint.get(k) != self.fingerprint.get(k))
        if differ:
            raise CheckpointRefused(
                f"the checkpoint {self.path} was made with other settings ({', '.join(differ)}): "
                "use another folder for checkpoints, or the same settings"
            )


class CheckpointStore:
    """The checkpoints of one run, in a folder or under a URI; the newest ``keep`` are kept."""

    def __init__(self, location: str, keep: int = 2) -> None:
        path = storage.local_path(location)
        self._remote = None if path is not None else location.rstrip("/")
        self._folder = path or Path(tempfile.mkdtemp(prefix="tunesmith-checkpoints-"))
        self._folder.mkdir(parents=True, exist_ok=True)
        self._keep = keep

    @contextlib.contextmanager
    def claimed(self, patience_s: float = _CLAIM_SECONDS) -> Iterator[None]:
        """Keep every other job out of the folder meanwhile; for one process of a job.

        What another job left behind may still be ending, which is waited for.

        Raises:
            BadInput: another job goes on training into it.
        """
        end = time.monotonic() + patience_s
        with (self._folder / ".lock").open("w") as lock:
            while not _lock(lock):
                if time.monotonic() > end:
                    raise BadInput(
                        f"another job trains into the checkpoints {self._folder}: wait for it, or change a setting"
                    )
                time.sleep(0.5)
            yield

    @property
    def staging(self) -> Path:
        """Where checkpoints are written before they are complete."""
        return self._folder / _STAGING

    def discard_incomplete(self) -> list[Path]:
        """Remove what a killed process left half-written; returns what was removed. For one process only."""
        cut = [self.staging] if self.staging.exists() else []
        cut += [path for path in self._folder.glob(f"{_PREFIX}*") if not (path / MARKER).exists()]
        for path in cut:
            shutil.rmtree(path)
        return cut

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, in order."""
        if self._remote is None:
            found = [c.step for path in self._folder.glob(f"{_PREFIX}*") if (c := _read(path))]
        else:
            names = [n for n in storage.names_at(self._remote) if n.startswith(_PREFIX)]
            found = [
                int(n.removeprefix(_PREFIX)) for n in names if storage.holds(f"{self._remote}/{n}/{MARKER}")
            ]  # fmt: skip
        return sorted(found)

    def open(self, step: int) -> Checkpoint:
        """The complete checkpoint of that step, as a local folder.

        Raises:
            CheckpointRefused: there is none here. Every node must see the same folder.
        """
        path = self._folder / f"{_PREFIX}{step}"
        if self._remote is not None and not path.exists():
            shutil.copytree(storage.fetch(f"{self._remote}/{path.name}"), path)
        checkpoint = _read(path)
        if checkpoint is None:
            raise CheckpointRefused(f"there is no complete checkpoint at {path}: all ranks must share one folder")
        return checkpoint

    def commit(self, step: int, fingerprint: dict[str, Any]) -> Checkpoint:
        """Make the checkpoint in ``staging`` complete, and remove the oldest ones. For one process only."""
        written, final = self.staging / f"{_PREFIX}{step}", self._folder / f"{_PREFIX}{step}"
        files = {}
        for path in sorted(p for p in written.rglob("*") if p.is_file()):
            _flush(path)
            files[path.relative_to(written).as_posix()] = digest_file(path).text
        marker = {"schema": SCHEMA, "step": step, "fingerprint": fingerprint, "files": files}
        (written / MARKER).write_text(json.dumps(marker, indent=1, sort_keys=True))
        _flush(written / MARKER)
        _flush(written)
        shutil.rmtree(final, ignore_errors=True)  # of the same step: only a run that lost its marker comes here
        written.rename(final)
        shutil.rmtree(self.staging)
        _flush(self._folder)
        if self._remote is not None:
            storage.publish(final, f"{self._remote}/{final.name}", last=MARKER)
        self._prune()
        return Checkpoint(final, step, fingerprint, files)

    def _prune(self) -> None:
        for step in self.steps()[: -self._keep]:
            name = f"{_PREFIX}{step}"
            if self._remote is not None:
                storage.remove(f"{self._remote}/{name}")
            # The marker goes first: half a deletion must not look complete.
            (self._folder / name / MARKER).unlink(missing_ok=True)
            shutil.rmtree(self._folder / name, ignore_errors=True)


def _lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: then nobody can be kept out
        return True
    return True


def _read(path: Path) -> Checkpoint | None:
    """The checkpoint in a folder, or None if its marker is missing or not of this kind."""
    try:
        marker = json.loads((path / MARKER).read_text())
        if marker["schema"] != SCHEMA:
            return None
        return Checkpoint(path, int(marker["step"]), dict(marker["fingerprint"]), dict(marker["files"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
