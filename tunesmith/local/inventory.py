"""What lives in a LocalCluster's folder, for the command line."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tunesmith.clusters.admission import CONTROLLED
from tunesmith.clusters.base import Manifest
from tunesmith.clusters.local import LocalCluster
from tunesmith.resources import POD

# In this order the first condition that holds names a job's state: an end outweighs what came before.
_JOB_STATES = ("Failed", "Succeeded", "Suspended", "Restarting", "Running", "Created")


@dataclass(frozen=True)
class Row:
    """One job or service. ``age_s`` in seconds; ``pods`` are the names; ``url`` is empty if it has none."""

    kind: str
    namespace: str
    name: str
    state: str
    age_s: float
    pods: tuple[str, ...]
    url: str


def objects(folder: Path) -> list[Row]:
    """The jobs and services in ``folder``, the oldest first; none if there is no cluster."""
    if not (folder / "cluster.db").is_file():
        return []
    cluster = LocalCluster(folder)
    # By what they were stamped with: ages are read one after another, and would put those of one second in disorder.
    bodies = sorted(_bodies(cluster), key=lambda body: body["metadata"]["creationTimestamp"])
    return [_row(cluster, body) for body in bodies]


def pods_of(folder: Path, name: str) -> list[str]:
    """Names of the pods of the jobs and services called ``name``, in order; none if there is no such thing."""
    return sorted(pod for row in objects(folder) if row.name == name for pod in row.pods)


def delete(folder: Path, name: str | None) -> list[Row]:
    """Delete the jobs and services of that name, or all of them; returns what was there.

    Their processes end within the grace period of their pods.
    """
    if not (folder / "cluster.db").is_file():
        return []
    cluster = LocalCluster(folder)
    deleted = []
    for body in _bodies(cluster):
        metadata = body["metadata"]
        if name in (None, metadata["name"]):
            deleted.append(_row(cluster, body))
            kind = next(kind for kind in CONTROLLED if kind.kind == body["kind"])
            cluster.delete(kind, metadata["namespace"], metadata["name"], uid=metadata["uid"])
    return deleted


def _bodies(cluster: LocalCluster) -> list[Manifest]:
    return [body for kind in CONTROLLED for body in cluster.everywhere(kind)]


def _row(cluster: LocalCluster, body: Manifest) -> Row:
    metadata, status = body["metadata"], body.get("status") or {}
    pods = tuple(pod["metadata"]["name"] for pod in cluster.under(metadata["uid"], POD))
    age_s = (datetime.now(UTC) - datetime.fromisoformat(metadata["creationTimestamp"])).total_seconds()
    url = str(status.get("url", ""))
    state = _state(body["kind"], status)
    # A clock that was set back since makes nothing younger than new.
    return Row(body["kind"], metadata["namespace"], metadata["name"], state, max(0.0, age_s), pods, url)


def _state(kind: str, status: Manifest) -> str:
    conditions = {c["type"]: c for c in status.get("conditions") or []}
    if kind == "InferenceService":
        ready = conditions.get("Ready", {"status": "Unknown"})
        return "Ready" if ready["status"] == "True" else str(ready.get("reason") or "Starting")
    holds = (type_ for type_ in _JOB_STATES if conditions.get(type_, {}).get("status") == "True")
    return next(holds, "Pending")
