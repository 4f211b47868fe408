"""How a training run tells its outcome: the termination message and the exit code.

The message is one JSON object of at most 4096 bytes (Kubernetes keeps no more), in the file that
``TUNESMITH_TERMINATION_LOG`` names::

    {"schema": "tunesmith.dev/result/v1", "metrics": {...}, "outputs": {"model": {"digest": ..., "bytes": ...}}}
    {"schema": "tunesmith.dev/result/v1", "error": {"fault": "user", "reason": "BadData", "message": "..."}}
"""

from __future__ import annotations

import contextlib
import errno
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tunesmith.errors import BadInput

SCHEMA = "tunesmith.dev/result/v1"
MAX_BYTES = 4096
MAX_MESSAGE = 600  # characters; escaped, each may take 6 bytes, and that leaves room for the rest

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_RETRYABLE = 138  # a PyTorchJob with restartPolicy ExitCode restarts from 128 on; 138 is free for the program's use
EXIT_STOPPED = 143  # 128 + SIGTERM

Fault = Literal["user", "system", "capacity"]


class BadArguments(BadInput):
    """An option or a variable of the environment has a value that cannot be."""

    default_id = "bad-arguments"


@dataclass(frozen=True)
class Failure:
    """Who is at fault for a failed run and why."""

    fault: Fault
    reason: str
    message: str

    @property
    def exit_code(self) -> int:
        """1 or 2 are final; 138 says that another attempt may succeed."""
        if self.fault != "user":
            return EXIT_RETRYABLE
        return EXIT_BAD_INPUT if self.reason in ("BadInput", "BadArguments", "BadData") else EXIT_FAILED


_LOST_PEER_TYPES = {"DistBackendError", "DistNetworkError", "DistStoreError", "DistError", "ConnectionError"}
_LOST_PEER_TEXTS = ("gloo", "nccl", "closed by peer", "connection reset", "broken pipe", "socket timeout", "tcpstore")
_NO_MEMORY_TEXTS = ("out of memory", "can't allocate memory", "cannot allocate memory")


def failure_of(error: BaseException) -> Failure:
    """Whose fault an exception is.

    Types are compared by name, so that this works without torch (bad arguments are reported before it is imported).
    """
    if isinstance(error, BadInput):
        return Failure("user", type(error).__name__, str(error))
    names = {kind.__name__ for kind in type(error).__mro__}
    text = str(error).lower()
    line = " ".join(str(error).split())
    message = f"{type(error).__name__}: {line}" if line else type(error).__name__
    if isinstance(error, MemoryError) or "OutOfMemoryError" in names or any(t in text for t in _NO_MEMORY_TEXTS):
        return Failure("capacity", "OutOfMemory", message)
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "no space left on device" in text:
        return Failure("capacity", "NoSpaceLeft", message)
    if names & _LOST_PEER_TYPES or ("RuntimeError" in names and any(t in text for t in _LOST_PEER_TEXTS)):
        return Failure("system", "LostPeer", message)
    return Failure("user", "TrainingError", message)


def write_success(log: Path, metrics: dict[str, Any], outputs: dict[str, Any]) -> None:
    """Write the message of a run that reached its end."""
    _write(log, {"schema": SCHEMA, "metrics": metrics, "outputs": outputs})


def write_failure(log: Path, failure: Failure) -> None:
    """Write the message of a failed run.

    Ranks of one pod share the file. A lost peer is only the echo of what ended that peer, so it never replaces a
    reason that is already there.
    """
    if failure.fault == "system" and _holds_error(log):
        return
    error = {"fault": failure.fault, "reason": failure.reason, "message": failure.message[:MAX_MESSAGE]}
    _write(log, {"schema": SCHEMA, "error": error})


def _holds_error(log: Path) -> bool:
    try:
        return "error" in json.loads(log.read_text())
    except (OSError, ValueError, TypeError):
        return False


def _write(log: Path, message: dict[str, Any]) -> None:
    data = json.dumps(message, ensure_ascii=False, allow_nan=False).encode()
    if len(data) > MAX_BYTES:
        raise ValueError(f"the termination message has {len(data)} bytes; Kubernetes keeps {MAX_BYTES}")
    # In a pod the file is a mount: it can be written but not replaced. Outside one there may be no such folder.
    with contextlib.suppress(FileNotFoundError, PermissionError):
        log.write_bytes(data)
