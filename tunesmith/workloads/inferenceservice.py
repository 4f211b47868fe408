"""InferenceService (serving.kserve.io/v1beta1), run by KServe in Standard mode.

A service outlives the run that deploys it: no owner, no deadline. KServe's own conditions stay True from the old
revision while a new one is on its way, so the revision is told apart by a mark of ours in the predictor's environment,
and what is observed is the Deployment and the pods that carry this mark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from kubernetes.client import ApiClient, V1EnvVar, V1ResourceRequirements
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from tunesmith.resources import INFERENCESERVICE, Resources
from tunesmith.workloads.base import Fault, Manifest, Observation, Problem, Snapshot, State, conditions_that_hold
from tunesmith.workloads.pods import last_warning

KIND = INFERENCESERVICE
LIFETIME: Literal["run", "service"] = "service"

REVISION_ENV = "TUNESMITH_REVISION"
ANNOTATION_MODE = "serving.kserve.io/deploymentMode"
LABEL_SERVICE = "serving.kserve.io/inferenceservice"
NAME_LIMIT = 63  # of the host label <name>-predictor-<namespace> that KServe derives

# A container that waits for one of these will not start by itself.
_STUCK = frozenset(
    {"CrashLoopBackOff", "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "CreateContainerConfigError"}
)


class InferenceServiceSpec(BaseModel):
    """A model to serve.

    Attributes:
        storage_uri: where the model lies: ``pvc://``, ``s3://``, ``gs://``, ``hf://``; a folder on LocalCluster.
        model_format: name of the format by which KServe finds a serving runtime.
        args: arguments for the runtime's server.
        env: environment variables of the server, plain values only.
        replicas: pods that serve, at least 1.
        resources: of each replica.
        port: port of this machine on which LocalCluster serves; None for a free one. A cluster ignores it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    storage_uri: str = Field(min_length=1)
    model_format: str = "huggingface"
    args: list[str] = []
    env: dict[str, str] = {}
    replicas: PositiveInt = 1
    resources: Resources = Resources()
    port: int | None = Field(default=None, ge=1, le=65535)


def build(
    spec: InferenceServiceSpec, *, name: str, namespace: str, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> Manifest:
    """The InferenceService for ``spec``; the mark of the revision is added by `with_revision`."""
    serialize = ApiClient().sanitize_for_serialization
    model: dict[str, Any] = {
        "modelFormat": {"name": spec.model_format},
        "storageUri": spec.storage_uri,
        "env": serialize([V1EnvVar(name=key, value=spec.env[key]) for key in sorted(spec.env)]),
        "resources": serialize(V1ResourceRequirements(**spec.resources.to_kubernetes())),
    }
    if spec.args:
        model["args"] = list(spec.args)
    # The mode cannot be changed later and defaults to Knative, so it is always said.
    marks = {ANNOTATION_MODE: "Standard", **annotations}
    if spec.port is not None:
        marks["tunesmith.dev/port"] = str(spec.port)
    return {
        "apiVersion": KIND.api_version,
        "kind": KIND.kind,
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels), "annotations": marks},
        "spec": {"predictor": {"minReplicas": spec.replicas, "maxReplicas": spec.replicas, "model": model}},
    }


def with_revision(manifest: Manifest, revision: str) -> Manifest:
    """``manifest`` with the mark of this revision in the predictor's environment."""
    model = manifest["spec"]["predictor"]["model"]
    env = [entry for entry in model.get("env") or [] if entry["name"] != REVISION_ENV]
    marked = {**model, "env": [*env, {"name": REVISION_ENV, "value": revision}]}
    predictor = {**manifest["spec"]["predictor"], "model": marked}
    return {**manifest, "spec": {**manifest["spec"], "predictor": predictor}}


def problems(manifest: Manifest) -> list[Problem]:
    """Every reason why KServe would refuse this service or never make it ready, sorted by field."""
    found: list[Problem] = []
    metadata = manifest["metadata"]
    host = f"{metadata['name']}-predictor-{metadata['namespace']}"
    if len(host) > NAME_LIMIT:
        found.append(
            Problem(
                "metadata.name",
                f"with the namespace it makes the host label {host}: {len(host)} characters, {NAME_LIMIT} are allowed",
                f"Shorten the name by {len(host) - NAME_LIMIT}.",
                "inferenceservice-name-too-long",
                metadata["name"],
            )
        )
    return sorted(found)


def observe(snapshot: Snapshot) -> Observation:
    """SUCCEEDED once every replica that serves is of the marked revision; FAILED when its pods cannot start."""
    if snapshot.object is None:
        return Observation(State.LOST, "Deleted", "the InferenceService was deleted by somebody else", Fault.SYSTEM)
    revision = _revision(snapshot.object["spec"]["predictor"].get("model") or {})
    pods = [pod for pod in snapshot.pods if _carries(pod.get("spec") or {}, revision)]
    if failure := _failure(pods):
        return failure
    rolled_out = any(_rolled_out(deployment, revision) for deployment in snapshot.deployments)
    if rolled_out and "Ready" in conditions_that_hold(snapshot.object) and url(snapshot.object):
        return Observation(State.SUCCEEDED, "Ready", f"revision {revision} serves")
    info = (((snapshot.object.get("status") or {}).get("modelStatus")) or {}).get("lastFailureInfo") or {}
    if info.get("reason") == "NoSupportingRuntime":  # KServe sets no condition at all for this, so a wait never ends
        return Observation(State.FAILED, "NoSupportingRuntime", info.get("message", ""), Fault.USER)
    reason, message = last_warning(snapshot.events)
    return Observation(State.RUNNING if pods else State.PENDING, reason, message)


def url(manifest: Manifest) -> str:
    """The address that answers: ``status.address.url``; ``status.url`` names an ingress that may not exist."""
    status = manifest.get("status") or {}
    return (status.get("address") or {}).get("url") or status.get("url") or ""


def _revision(container: Mapping[str, Any]) -> str:
    return next((e.get("value") or "" for e in container.get("env") or [] if e["name"] == REVISION_ENV), "")


def _carries(pod_spec: Mapping[str, Any], revision: str) -> bool:
    return any(_revision(container) == revision for container in pod_spec.get("containers") or [])


def _rolled_out(deployment: Manifest, revision: str) -> bool:
    """All replicas of the Deployment are of this revision and available, and its controller has said so."""
    if not _carries(deployment["spec"]["template"]["spec"], revision):
        return False
    status = deployment.get("status") or {}
    wanted = int(deployment["spec"].get("replicas", 1))
    counts = [int(status.get(name) or 0) for name in ("updatedReplicas", "replicas", "availableReplicas")]
    current = int(status.get("observedGeneration") or 0) >= int(deployment["metadata"].get("generation") or 0)
    return current and all(count == wanted for count in counts)


def _failure(pods: list[Manifest]) -> Observation | None:
    for pod in pods:
        for status in (pod.get("status") or {}).get("containerStatuses") or []:
            waiting = (status.get("state") or {}).get("waiting") or {}
            ended = (
                (status.get("state") or {}).get("terminated") or (status.get("lastState") or {}).get("terminated") or {}
            )
            if waiting.get("reason") in _STUCK or (ended and int(ended.get("exitCode", 0)) != 0):
                return Observation(
                    State.FAILED,
                    waiting.get("reason") or ended.get("reason") or "Error",
                    ended.get("message") or waiting.get("message") or "the model server ended before it was ready",
                    Fault.USER,
                    int(ended["exitCode"]) if "exitCode" in ended else None,
                    pod["metadata"]["name"],
                )
    return None


def pod_labels(name: str) -> dict[str, str]:
    """KServe's label on the service's pods."""
    return {LABEL_SERVICE: name}


def log_pod(name: str) -> str | None:
    """Pods of a Deployment have no fixed name."""
    return None
