"""Admission: what the API server, the operators' webhooks and a machine without a container runtime refuse."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunesmith.clusters.base import Manifest, Refused
from tunesmith.resources import INFERENCESERVICE, KINDS, PYTORCHJOB, Kind

CONTROLLED = (PYTORCHJOB, INFERENCESERVICE)
PORT_ANNOTATION = "tunesmith.dev/port"  # of an InferenceService: the port of this machine at which to serve
MAX_REPLICAS = 64

_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_DNS_1123 = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")


def kind_of(manifest: Manifest) -> Kind:
    """The kind of a manifest. Raises `Refused` if a LocalCluster has none such."""
    kind = KINDS.get(str(manifest.get("kind")))
    if kind is None or manifest.get("apiVersion") != kind.api_version:
        known = ", ".join(f"{kind.api_version} {kind}" for kind in KINDS.values())
        named = f"{manifest.get('apiVersion')} {manifest.get('kind')}"
        raise Refused(f"a LocalCluster has no {named}: write one of {known}")
    return kind


def admit(kind: Kind, body: Manifest) -> None:
    """Check a manifest as the API server and the operator's webhook do, and that this machine can run it.

    Raises:
        Refused: with every reason.
    """
    name = body["metadata"]["name"]
    problems = _name_problems(kind, name)
    if kind == PYTORCHJOB:
        problems += _pytorchjob_problems(body.get("spec"))
    elif kind == INFERENCESERVICE:
        problems += _port_problems(body["metadata"]) + _inferenceservice_problems(body.get("spec"))
    if problems:
        raise Refused(f'{kind} "{name}" is invalid: {"; ".join(problems)}')


def _name_problems(kind: Kind, name: str) -> list[str]:
    pattern, limit = (_DNS_1035, 63) if kind in CONTROLLED else (_DNS_1123, 253)
    if isinstance(name, str) and pattern.fullmatch(name) and len(name) <= limit:
        return []
    rule = "a-z, 0-9 and '-', starting with a letter" if limit == 63 else "a-z, 0-9, '-' and '.'"
    return [f"metadata.name: Invalid value: {name!r}: must be at most {limit} characters: {rule}"]


def _pytorchjob_problems(spec: Any) -> list[str]:
    if not isinstance(spec, dict) or not isinstance(spec.get("pytorchReplicaSpecs"), dict):
        return ["spec.pytorchReplicaSpecs: Required value"]
    replicas = spec["pytorchReplicaSpecs"]
    problems = [] if replicas else ["spec.pytorchReplicaSpecs: Required value: Master, Worker or both"]
    if spec.get("elasticPolicy") and "Worker" not in replicas:
        where = "spec.pytorchReplicaSpecs[Worker]"
        problems.append(f"{where}: Required value: must be configured if elastic policy is used")
    if (spec.get("elasticPolicy") or {}).get("nProcPerNode") is not None and spec.get("nprocPerNode") is not None:
        problems.append("spec.elasticPolicy.nProcPerNode: Forbidden: must not be used with spec.nprocPerNode")
    if not isinstance(spec.get("nprocPerNode", ""), str):
        problems.append("spec.nprocPerNode: Invalid value: must be a string")
    problems += _run_policy_problems(spec.get("runPolicy") or {})
    for role, replica in replicas.items():
        problems += _replica_problems(f"spec.pytorchReplicaSpecs[{role}]", role, replica)
    return problems


def _run_policy_problems(policy: Mapping[str, Any]) -> list[str]:
    numbers = ("activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished")
    problems = [
        f"spec.runPolicy.{field}: Invalid value: {policy[field]!r}: must be an integer"
        for field in numbers
        if field in policy and type(policy[field]) is not int
    ]
    if policy.get("cleanPodPolicy", "None") not in ("None", "Running", "All"):
        problems.append("spec.runPolicy.cleanPodPolicy: Unsupported value: write None, Running or All")
    if type(policy.get("suspend", False)) is not bool:
        problems.append("spec.runPolicy.suspend: Invalid value: must be a boolean")
    if policy.get("managedBy", "kubeflow.org/training-operator") != "kubeflow.org/training-operator":
        problems.append("spec.runPolicy.managedBy: Unsupported value: kubeflow.org/training-operator manages it here")
    return problems


def _replica_problems(where: str, role: str, replica: Any) -> list[str]:
    if role not in ("Master", "Worker"):
        return [f"{where}: Unsupported value: {role!r}: supported values: Master, Worker"]
    if not isinstance(replica, dict):
        return [f"{where}.template.spec.containers: Required value: must be specified"]
    problems = []
    count = replica.get("replicas")
    if role == "Master" and (type(count) is not int or count != 1):
        problems.append(f"{where}.replicas: Forbidden: must be 1")
    if type(count) is int and count > MAX_REPLICAS:
        problems.append(
            f"{where}.replicas: Forbidden: a LocalCluster runs each replica as a process: {MAX_REPLICAS} at most"
        )
    if role == "Worker" and count is not None and (type(count) is not int or count < 1):
        problems.append(f"{where}.replicas: Forbidden: must be at least 1")
    if replica.get("restartPolicy", "OnFailure") not in ("Always", "OnFailure", "Never", "ExitCode"):
        problems.append(f"{where}.restartPolicy: Unsupported value: write Always, OnFailure, Never or ExitCode")
    pod = ((replica.get("template") or {}).get("spec")) or {}
    containers = pod.get("containers") or []
    where = f"{where}.template.spec"
    if not any(container.get("name") == "pytorch" for container in containers):
        problems.append(f"{where}.containers: Required value: must have at least one container with name pytorch")
    for index, container in enumerate(containers):
        if not container.get("image"):
            problems.append(f"{where}.containers[{index}].image: Required value: must be required")
    return problems + pod_problems(where, pod)


def pod_problems(where: str, pod: Mapping[str, Any]) -> list[str]:
    """Why a pod, given as its spec, cannot run as one process on this machine."""
    containers = pod.get("containers") or []
    problems = []
    if pod.get("initContainers"):
        problems.append(f"{where}.initContainers: Forbidden: a LocalCluster runs one process a pod: leave them out")
    if len(containers) > 1:
        problems.append(f"{where}.containers: Forbidden: a LocalCluster runs one process a pod: leave one container")
    for index, container in enumerate(containers):
        problems += _container_problems(f"{where}.containers[{index}]", container)
    mounts = [mount for container in containers for mount in container.get("volumeMounts") or []]
    return problems + _volume_problems(where, pod.get("volumes") or [], mounts)


def _container_problems(where: str, container: Mapping[str, Any]) -> list[str]:
    problems = []
    if not container.get("command"):
        problems.append(f"{where}.command: Required value: a LocalCluster has not the image's: write its entry point")
    for field in ("command", "args"):
        for index, word in enumerate(container.get(field) or []):
            if not isinstance(word, str):
                problems.append(f"{where}.{field}[{index}]: Invalid value: {word!r}: must be a string: quote it")
    if container.get("envFrom"):
        problems.append(f"{where}.envFrom: Forbidden: a LocalCluster has no Secrets and ConfigMaps: write env")
    return problems + environment_problems(where, container.get("env") or [])


def environment_problems(where: str, variables: list[Manifest]) -> list[str]:
    """Why a container's ``env`` cannot be given to a process."""
    problems = []
    for index, variable in enumerate(variables):
        entry = f"{where}.env[{index}]"
        if not isinstance(variable.get("name"), str) or not variable["name"]:
            problems.append(f"{entry}.name: Required value")
        if not isinstance(variable.get("value", ""), str):
            problems.append(f"{entry}.value: Invalid value: {variable.get('name')} must be a string: quote it")
        source = variable.get("valueFrom") or {}
        path = (source.get("fieldRef") or {}).get("fieldPath")
        if source and path not in ("metadata.name", "metadata.namespace", "metadata.uid"):
            what = path or ", ".join(source)
            problems.append(
                f"{entry}.valueFrom: Forbidden: {variable.get('name')} comes from {what}, which a LocalCluster has not:"
                " write its value, or fieldRef metadata.name, metadata.namespace or metadata.uid"
            )
    return problems


def _volume_problems(where: str, volumes: list[Manifest], mounts: list[Manifest]) -> list[str]:
    """A process sees this machine's own folders, so only mounts that change nothing can be kept."""
    by_name = {volume.get("name"): volume for volume in volumes}
    problems = []
    for mount in mounts:
        volume, path = by_name.get(mount.get("name"), {}), mount.get("mountPath")
        scratch = "emptyDir" in volume and path in ("/dev/shm", "/tmp")
        same = (volume.get("hostPath") or {}).get("path") == path and not mount.get("subPath")
        if not scratch and not same:
            problems.append(
                f"{where}.volumes[{mount.get('name')}]: Forbidden: a LocalCluster mounts nothing at {path}:"
                " use a folder of this machine by its own path"
            )
    return problems


def _port_problems(metadata: Mapping[str, Any]) -> list[str]:
    port = (metadata.get("annotations") or {}).get(PORT_ANNOTATION, "1")
    if str(port).isdigit() and 0 < int(port) < 65536:
        return []
    return [f"metadata.annotations[{PORT_ANNOTATION}]: Invalid value: {port!r}: write a port from 1 to 65535"]


def _inferenceservice_problems(spec: Any) -> list[str]:
    predictor = spec.get("predictor") if isinstance(spec, dict) else None
    if not isinstance(predictor, dict):
        return ["spec.predictor: Required value"]
    where, model, containers = "spec.predictor", predictor.get("model"), predictor.get("containers")
    if (model is None) == (not containers):
        return [f"{where}: Invalid value: exactly one of model and containers must be given"]
    problems = []
    for field in ("minReplicas", "maxReplicas"):
        if type(predictor.get(field, 1)) is not int or predictor.get(field, 1) < 0:
            problems.append(f"{where}.{field}: Invalid value: must be a whole number, 0 or more")
    if containers:
        return problems + pod_problems(where, predictor)
    if not isinstance(model, dict) or not (model.get("modelFormat") or {}).get("name"):
        return [*problems, f"{where}.model.modelFormat.name: Required value"]
    if not Path(str(model.get("storageUri", "")).removeprefix("file://")).is_absolute():
        problems.append(
            f"{where}.model.storageUri: Invalid value: a LocalCluster serves a folder: write file:///folder"
        )
    return problems + environment_problems(f"{where}.model", model.get("env") or [])
