"""PyTorchJob (kubeflow.org/v1), run by the training-operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from kubeflow.training.models import (
    KubeflowOrgV1PyTorchJob,
    KubeflowOrgV1PyTorchJobSpec,
    KubeflowOrgV1ReplicaSpec,
    KubeflowOrgV1RunPolicy,
)
from kubernetes.client import (
    ApiClient,
    V1Container,
    V1EnvVar,
    V1ObjectMeta,
    V1PodSpec,
    V1PodTemplateSpec,
    V1ResourceRequirements,
)
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from tunesmith.resources import PYTORCHJOB, Policy, Resources
from tunesmith.workloads.base import Fault, Manifest, Observation, Problem, Snapshot, State, conditions_that_hold
from tunesmith.workloads.pods import blame, last_warning

KIND = PYTORCHJOB
LIFETIME: Literal["run", "service"] = "run"

CONTAINER = "pytorch"  # the operator finds its container by this name
NAME_LIMIT = 63  # of a pod's host name, which is <job>-worker-<index>
LABEL_JOB = "training.kubeflow.org/job-name"

# What each condition means; failure stands first, so that a job with both conditions is not green.
_STATES = (
    ("Failed", State.FAILED),
    ("Succeeded", State.SUCCEEDED),
    ("Suspended", State.QUEUED),
    ("Restarting", State.RUNNING),  # replaces Running while a replica is started again in place
    ("Running", State.RUNNING),
)


class PyTorchJobSpec(BaseModel):
    """What to run as a PyTorchJob: one container image and command in ``replicas`` pods; the first is the master.

    Attributes:
        image: container image; LocalCluster ignores it and runs the command on this machine.
        command: the container's entry point and its arguments.
        args: arguments appended to ``command``.
        env: environment variables, plain values only; secrets are handed over by reference, never here.
        replicas: pods in all, master included.
        nproc_per_node: processes that torchrun starts in each pod: a number, ``auto``, ``gpu`` or ``cpu``.
        resources: of each replica.
        service_account: under which the pods run, without a token; empty for the namespace's default.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: str = Field(min_length=1)
    command: list[str] = Field(min_length=1)
    args: list[str] = []
    env: dict[str, str] = {}
    replicas: PositiveInt = 1
    nproc_per_node: str = Field(default="1", pattern="^([1-9][0-9]*|auto|gpu|cpu)$")
    resources: Resources = Resources()
    policy: Policy = Policy()
    service_account: str = ""


def build(
    spec: PyTorchJobSpec, *, name: str, namespace: str, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> Manifest:
    """The PyTorchJob for ``spec``."""
    replicas = {"Master": _replica(spec, 1, labels)}
    if spec.replicas > 1:  # the operator refuses zero workers: leave the role out instead
        replicas["Worker"] = _replica(spec, spec.replicas - 1, labels)
    job = KubeflowOrgV1PyTorchJob(
        api_version=KIND.api_version,
        kind=KIND.kind,
        metadata=V1ObjectMeta(name=name, namespace=namespace, labels=dict(labels), annotations=dict(annotations)),
        spec=KubeflowOrgV1PyTorchJobSpec(
            nproc_per_node=spec.nproc_per_node,
            pytorch_replica_specs=replicas,
            run_policy=KubeflowOrgV1RunPolicy(
                active_deadline_seconds=spec.policy.deadline_seconds,
                backoff_limit=spec.policy.backoff_limit,
                clean_pod_policy=spec.policy.clean_pod_policy,
                ttl_seconds_after_finished=spec.policy.ttl_seconds,
            ),
        ),
    )
    manifest: Manifest = ApiClient().sanitize_for_serialization(job)
    return manifest


def _replica(spec: PyTorchJobSpec, count: int, labels: Mapping[str, str]) -> KubeflowOrgV1ReplicaSpec:
    container = V1Container(
        name=CONTAINER,
        image=spec.image,
        command=spec.command,
        args=spec.args or None,
        env=[V1EnvVar(name=name, value=spec.env[name]) for name in sorted(spec.env)] or None,
        resources=V1ResourceRequirements(**spec.resources.to_kubernetes()),
        # Foreign images write no termination message; the end of their log says most.
        termination_message_policy="FallbackToLogsOnError",
    )
    template = V1PodTemplateSpec(
        # Istio's sidecar does not end with the job, and would keep it Running for ever.
        metadata=V1ObjectMeta(labels=dict(labels), annotations={"sidecar.istio.io/inject": "false"}),
        spec=V1PodSpec(
            containers=[container],
            automount_service_account_token=False,
            service_account_name=spec.service_account or None,
        ),
    )
    return KubeflowOrgV1ReplicaSpec(replicas=count, restart_policy=spec.policy.restart_policy, template=template)


def problems(manifest: Manifest) -> list[Problem]:
    """Every reason why the operator would refuse this job or let it hang, sorted by field."""
    found: list[Problem] = []
    replicas: dict[str, Any] = manifest["spec"].get("pytorchReplicaSpecs") or {}
    name = manifest["metadata"]["name"]
    longest = f"{name}-worker-{_replicas(replicas, 'Worker') - 1}" if "Worker" in replicas else f"{name}-master-0"
    if len(longest) > NAME_LIMIT:
        found.append(
            Problem(
                "metadata.name",
                f"its longest pod name, {longest}, has {len(longest)} characters and {NAME_LIMIT} are allowed",
                f"Shorten the name by {len(longest) - NAME_LIMIT}.",
                "pytorchjob-name-too-long",
                name,
            )
        )
    if "Master" not in replicas and not manifest["spec"].get("elasticPolicy"):
        found.append(
            Problem(
                "spec.pytorchReplicaSpecs",
                "there are only workers and no elasticPolicy; each torchrun would wait for ever, with the job Running",
                "Give it a Master, or an elasticPolicy.",
                "pytorchjob-no-rendezvous",
            )
        )
    if "Master" in replicas and _replicas(replicas, "Master") != 1:
        found.append(
            Problem(
                "spec.pytorchReplicaSpecs.Master.replicas",
                f"it is {_replicas(replicas, 'Master')}, and the operator takes exactly 1",
                "Write 1 and put the others under Worker.",
                "pytorchjob-one-master",
            )
        )
    for role, replica in replicas.items():
        names = [container.get("name") for container in replica["template"]["spec"]["containers"]]
        if CONTAINER not in names:
            found.append(
                Problem(
                    f"spec.pytorchReplicaSpecs.{role}.template.spec.containers",
                    f"none of them is named {CONTAINER}, by which the operator finds it",
                    f"Name the training container {CONTAINER}.",
                    "pytorchjob-container-name",
                    str(names),
                )
            )
    return sorted(found)


def _replicas(replicas: Mapping[str, Any], role: str) -> int:
    return int((replicas.get(role) or {}).get("replicas", 1))


def observe(snapshot: Snapshot) -> Observation:
    """State of a PyTorchJob. Failed is read first: a job that carries both conditions is not green."""
    if snapshot.object is None:
        return Observation(State.LOST, "Deleted", "the PyTorchJob was deleted by somebody else", Fault.SYSTEM)
    true = conditions_that_hold(snapshot.object)
    for name, state in _STATES:
        if name in true:
            reason, message = true[name].get("reason", ""), true[name].get("message", "")
            return _failed(snapshot, reason, message) if state is State.FAILED else Observation(state, reason, message)
    reason, message = last_warning(snapshot.events)
    return Observation(State.PENDING, reason or "Created", message)


def _failed(snapshot: Snapshot, reason: str, message: str) -> Observation:
    if "DeadlineExceeded" in reason or "active longer than specified deadline" in message:
        # The operator writes PyTorchJobFailed with this sentence when activeDeadlineSeconds is over.
        seconds = ((snapshot.object or {}).get("spec", {}).get("runPolicy") or {}).get("activeDeadlineSeconds")
        told = (
            f"it ran longer than policy.deadline_seconds allows ({seconds} s). "
            "Raise that; the same work goes on from its checkpoint."
        )
        return Observation(State.FAILED, "DeadlineExceeded", told, Fault.USER)
    fault, ending = blame(snapshot.pods)
    if ending is None:
        return Observation(State.FAILED, reason, message, fault)
    error = (ending.result or {}).get("error") or {}
    return Observation(
        State.FAILED,
        error.get("reason") or reason,
        error.get("message") or message,
        fault,
        ending.exit_code,
        ending.pod,
    )


def pod_labels(name: str) -> dict[str, str]:
    """The operator's label on the job's pods."""
    return {LABEL_JOB: name}


def log_pod(name: str) -> str | None:
    """The master, whose log stands for the job's."""
    return f"{name}-master-0"
