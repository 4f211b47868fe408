"""What the pods of a job tell: the result they leave, the first container that failed, and who is at fault."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tunesmith.workloads.base import Fault, Manifest

RESULT_SCHEMA = "tunesmith.dev/result/v1"

# torchrun ends with exit code 1 whatever killed its worker; its last log lines name the signal.
_KILLED_WORKER = re.compile(r"Signal (?:9|15) \(SIG(?:KILL|TERM)\) received|exitcode\s*:\s*-(?:9|15)\b")
# Conditions and reasons by which a pod says that its node or the scheduler took it away.
_TAKEN_AWAY = frozenset(
    {"Evicted", "Preempting", "NodeLost", "NodeShutdown", "Shutdown", "Terminated", "UnexpectedAdmissionError"}
)


@dataclass(frozen=True)
class Ending:
    """How one container of one pod ended."""

    pod: str
    exit_code: int
    reason: str
    message: str
    finished: str

    @property
    def result(self) -> dict[str, Any] | None:
        """The termination message as tunesmith's result, or None if it is something else."""
        return parse_result(self.message)


def parse_result(message: str) -> dict[str, Any] | None:
    """A result that a container left as its termination message; other text gives None."""
    try:
        data = json.loads(message)
    except ValueError:
        return None
    return data if isinstance(data, dict) and data.get("schema") == RESULT_SCHEMA else None


def endings(pods: Iterable[Manifest]) -> list[Ending]:
    """Every container that ended, the earliest first; a container that was restarted counts with its last ending."""
    found = []
    for pod in pods:
        for status in (pod.get("status") or {}).get("containerStatuses") or []:
            terminated = (status.get("state") or {}).get("terminated") or (status.get("lastState") or {}).get(
                "terminated"
            )
            if terminated:
                found.append(
                    Ending(
                        pod=pod["metadata"]["name"],
                        exit_code=int(terminated.get("exitCode", 0)),
                        reason=terminated.get("reason") or "",
                        message=terminated.get("message") or "",
                        finished=terminated.get("finishedAt") or "",
                    )
                )
    return sorted(found, key=lambda ending: (ending.finished, ending.pod))


def restarts(pods: Iterable[Manifest]) -> int:
    """How often containers were restarted in place, over all pods."""
    statuses = [s for pod in pods for s in (pod.get("status") or {}).get("containerStatuses") or []]
    return sum(int(status.get("restartCount", 0)) for status in statuses)


def blame(pods: Iterable[Manifest]) -> tuple[Fault, Ending | None]:
    """Who is at fault for a failed job, and the ending that shows it.

    A container that wrote a result with an error knows best, and a user's error found by any replica outweighs the lost
    connections that the others saw because of it. Without one, the exit code decides: killed by a signal, evicted or
    gone means the system; anything else the user's program.
    """
    pods = list(pods)
    failed = [ending for ending in endings(pods) if ending.exit_code != 0]
    told = [(ending, error) for ending in failed if (error := (ending.result or {}).get("error"))]
    for fault in (Fault.USER, Fault.CAPACITY, Fault.SYSTEM):
        for ending, error in told:
            if error.get("fault") == fault.value:
                return fault, ending
    if any(_taken_away(pod) for pod in pods):
        return Fault.CAPACITY, failed[0] if failed else None
    for ending in failed:
        if ending.reason == "OOMKilled":  # the same limit would be met again: more memory is the user's to give
            return Fault.USER, ending
    killed = [ending for ending in failed if ending.exit_code >= 128 or _KILLED_WORKER.search(ending.message)]
    if killed:
        return Fault.SYSTEM, killed[0]
    if failed:
        return Fault.USER, failed[0]
    return Fault.SYSTEM, None


def _taken_away(pod: Manifest) -> bool:
    status = pod.get("status") or {}
    disrupted = any(
        c.get("type") == "DisruptionTarget" and c.get("status") == "True" for c in status.get("conditions") or []
    )
    return disrupted or status.get("reason") in _TAKEN_AWAY


def last_warning(events: Iterable[Manifest]) -> tuple[str, str]:
    """Reason and message of the newest Warning, or two empty texts."""
    warnings = [event for event in events if event.get("type") == "Warning"]
    if not warnings:
        return "", ""
    newest = max(warnings, key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
    return newest.get("reason") or "", newest.get("message") or ""
