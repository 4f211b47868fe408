"""What every kind of work shares: states, snapshots, observations, problems, and the protocol of a kind's module."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Protocol

from tunesmith.resources import Kind

Manifest = dict[str, Any]

LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_IDENTITY = "tunesmith.dev/identity"
LABEL_ATTEMPT = "tunesmith.dev/attempt"
LABEL_TASK = "tunesmith.dev/task"


class State(StrEnum):
    """Where a piece of work stands. Closed: whoever branches on it handles every member."""

    PENDING = "PENDING"  # created, nothing runs yet
    QUEUED = "QUEUED"  # held back by a queue or suspended; waiting is not failing
    RUNNING = "RUNNING"  # at least one replica runs
    SUCCEEDED = "SUCCEEDED"  # this very object (same uid) reached success
    FAILED = "FAILED"  # ended without success; `Fault` says by whom
    PREEMPTED = "PREEMPTED"  # stopped for somebody more important; the queue brings it back
    CANCELLED = "CANCELLED"  # ended on request
    LOST = "LOST"  # the object is gone, or another object has its name

    @property
    def terminal(self) -> bool:
        """Nothing more will happen to this object."""
        return self in (State.SUCCEEDED, State.FAILED, State.CANCELLED, State.LOST)


class Fault(StrEnum):
    """Who is at fault for a failure; only system and capacity are worth a retry."""

    USER = "user"
    SYSTEM = "system"
    CAPACITY = "capacity"


@dataclass(frozen=True)
class Snapshot:
    """An object with what belongs to it, as read at one moment. ``object`` is None when it is gone."""

    object: Manifest | None
    pods: tuple[Manifest, ...] = ()
    events: tuple[Manifest, ...] = ()
    deployments: tuple[Manifest, ...] = ()


@dataclass(frozen=True)
class Observation:
    """What a snapshot means. ``exit_code`` is the first failed container's."""

    state: State
    reason: str = ""
    message: str = ""
    fault: Fault | None = None
    exit_code: int | None = None
    pod: str = ""


@dataclass(frozen=True, order=True)
class Problem:
    """One reason why a manifest must not be created: where, what, and what to write instead."""

    field: str
    detail: str
    remedy: str
    id: str
    value: str = dataclasses.field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.field}: {self.detail}\n  {self.remedy}  [{self.id}]"


class Workload(Protocol):
    """What a kind's module offers. Modules are the implementations: ``KIND`` and so on are module attributes."""

    KIND: Kind
    LIFETIME: Literal["run", "service"]

    def problems(self, manifest: Manifest, /) -> list[Problem]:
        """Every reason not to create the manifest, sorted by field."""
        ...

    def observe(self, snapshot: Snapshot, /) -> Observation:
        """What the snapshot means; failure is read before success."""
        ...

    def pod_labels(self, name: str, /) -> dict[str, str]:
        """Labels by which the pods of the object ``name`` are found."""
        ...

    def log_pod(self, name: str, /) -> str | None:
        """The pod whose log stands for the whole, or None if it has no fixed name."""
        ...


def conditions_that_hold(manifest: Manifest | None) -> dict[str, dict[str, Any]]:
    """Conditions by type whose status is "True": any other status says nothing, and their order means nothing."""
    conditions = ((manifest or {}).get("status") or {}).get("conditions") or []
    return {c["type"]: c for c in conditions if c.get("status") == "True"}


def dns_label(text: str, *, limit: int = 63) -> str:
    """``text`` as a DNS-1035 label of at most ``limit`` characters: starts with a letter, ends alphanumeric.

    >>> dns_label("Fine_Tune 7B!")
    'fine-tune-7b'
    """
    label = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if not label or not label[0].isalpha():
        label = f"t-{label}".rstrip("-")
    return label[:limit].rstrip("-")


def environment(values: Mapping[str, str]) -> list[dict[str, str]]:
    """Environment variables as a container lists them, in a fixed order."""
    return [{"name": name, "value": values[name]} for name in sorted(values)]
