"""Value types that every layer shares: kinds of Kubernetes objects, and what a container asks for.

Nothing here does I/O or imports another part of tunesmith. Quantities keep Kubernetes' own spelling where they go into
a manifest (``"500m"``, ``"4Gi"``); numbers derived from them carry their unit in the name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveInt


@dataclass(frozen=True)
class Kind:
    """A kind of Kubernetes object, as its API serves it."""

    group: str
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        """``group/version``, or ``version`` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def __str__(self) -> str:
        return self.kind


POD = Kind("", "v1", "pods", "Pod")
EVENT = Kind("", "v1", "events", "Event")
DEPLOYMENT = Kind("apps", "v1", "deployments", "Deployment")
PYTORCHJOB = Kind("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
INFERENCESERVICE = Kind("serving.kserve.io", "v1beta1", "inferenceservices", "InferenceService")

KINDS = {kind.kind: kind for kind in (POD, EVENT, DEPLOYMENT, PYTORCHJOB, INFERENCESERVICE)}

_SUFFIXES = {"": Decimal(1), "m": Decimal("0.001")}
_SUFFIXES |= {s: Decimal(1000) ** n for n, s in enumerate(("k", "M", "G", "T", "P", "E"), start=1)}
_SUFFIXES |= {s: Decimal(1024) ** n for n, s in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|[kMGTPE]|[KMGTPE]i)?")


def quantity(text: str | int | float) -> Decimal:
    """A Kubernetes quantity as a number: cores for CPU, bytes for memory.

    >>> quantity("500m"), quantity("4Gi")
    (Decimal('0.500'), Decimal('4294967296'))

    Raises:
        ValueError: not a quantity, or a negative one.
    """
    match = _QUANTITY.fullmatch(str(text))
    if not match:
        raise ValueError(f"{text!r} is not a Kubernetes quantity: write for example 500m, 2 or 4Gi")
    return Decimal(match[1]) * _SUFFIXES[match[2] or ""]


def _as_quantity(value: object) -> str:
    quantity(str(value))
    return str(value)


Quantity = Annotated[str, BeforeValidator(_as_quantity)]


class Resources(BaseModel):
    """What one replica asks for; requests equal limits, so that a replica is never throttled or evicted first.

    Attributes:
        cpu: cores, as a Kubernetes quantity.
        memory: bytes, as a Kubernetes quantity.
        gpus: count of ``gpu_resource``; 0 for none.
        gpu_resource: the resource name of the accelerator's device plugin.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    cpu: Quantity = "1"
    memory: Quantity = "2Gi"
    gpus: NonNegativeInt = 0
    gpu_resource: str = "nvidia.com/gpu"

    def to_kubernetes(self) -> dict[str, Any]:
        """The ``resources`` of a container."""
        amounts = {"cpu": self.cpu, "memory": self.memory}
        if self.gpus:
            amounts[self.gpu_resource] = str(self.gpus)
        return {"requests": dict(amounts), "limits": dict(amounts)}

    def to_kfp(self) -> dict[str, Any]:
        """As a plain dict, for a kfp signature."""
        return self.model_dump()


@dataclass(frozen=True)
class Footprint:
    """What a step occupies while it runs, for its price: resources of one replica, times the replicas.

    ``cpu`` is in cores and ``memory_gib`` in GiB, both of one replica.
    """

    cpu: Decimal
    memory_gib: Decimal
    gpus: int = 0
    gpu: str = ""
    replicas: int = 1

    @classmethod
    def of(cls, resources: Resources, replicas: int = 1, gpu: str = "") -> Self:
        """The footprint of ``replicas`` containers that ask for ``resources`` each."""
        gib = quantity(resources.memory) / Decimal(1024) ** 3
        model = gpu or (resources.gpu_resource if resources.gpus else "")
        return cls(quantity(resources.cpu), gib, resources.gpus, model, replicas)


class Policy(BaseModel):
    """How a launched job is bounded, retried and cleaned up.

    Attributes:
        deadline_seconds: the job is ended, and the step fails, when one attempt has run this long.
        retries: how often the step relaunches a job that failed for a system or capacity reason, never for the
            user's.
        restart_policy: what the operator does with a replica that fails: ``Never`` fails the job at once, so that the
            launcher can tell why and relaunch from the checkpoint; ``OnFailure`` and ``ExitCode`` restart it in place.
        backoff_limit: how many restarts in place the operator allows.
        clean_pod_policy: which pods the operator deletes when the job ends: ``Running`` ends what still runs and keeps
            the logs of the others.
        ttl_seconds: how long the ended job is kept by the operator.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    deadline_seconds: PositiveInt = 86400
    retries: NonNegativeInt = 2
    restart_policy: Annotated[str, Field(pattern="^(Never|OnFailure|ExitCode)$")] = "Never"
    backoff_limit: NonNegativeInt = 3
    clean_pod_policy: Annotated[str, Field(pattern="^(None|Running|All)$")] = "Running"
    ttl_seconds: PositiveInt = 86400

    def to_kfp(self) -> dict[str, Any]:
        """As a plain dict, for a kfp signature."""
        return self.model_dump()
