"""The controller of one InferenceService: KServe in Standard mode, with a process for a pod and a port for a Service.

As there: a Deployment ``<name>-predictor`` carries the pod's template; a change of the spec starts a pod of the new
revision, and the old one answers until the new one is ready, or for good if it never is. The address stays the same
over all of that: it is a port of the controller, a certain one if the annotation ``tunesmith.dev/port`` or else the
container's ``PORT`` asks for it. A container is told in ``PORT`` where to listen.

Unlike there: exactly one replica serves, whatever ``minReplicas`` says; readiness is asked for until it is given once,
and holds as long as the process lives; ``modelStatus`` follows the pods at once.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import http.client
import json
import secrets
import socket
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tunesmith.clusters.admission import PORT_ANNOTATION
from tunesmith.clusters.base import Manifest, NotFound
from tunesmith.clusters.local import LocalCluster, Stopwatch, difference, now
from tunesmith.local.gateway import HOST, Gateway, free_port
from tunesmith.local.kubelet import Kubelet, container_of, record
from tunesmith.resources import DEPLOYMENT, INFERENCESERVICE, POD

FORMATS = ("huggingface",)
PROGRESS_DEADLINE_S = 600
_HASH = "pod-template-hash"


class InferenceServiceController:
    """Looks after one service until it is deleted and its processes have ended."""

    def __init__(self, cluster: LocalCluster, uid: str):
        self.cluster = cluster
        self.uid = uid
        self.kubelet = Kubelet(cluster, uid, ready=_answers)
        self.gateway: Gateway | None = None
        self._stopwatch = Stopwatch()

    def stirred(self) -> bool:
        """Whether a step is due though no object has changed."""
        return self.kubelet.stirred()

    def step(self) -> bool:
        """Bring pods and service one step further; False when there is nothing left to do."""
        pods = self.kubelet.sync()
        service = self.cluster.find(self.uid)
        if service is None:
            if self.gateway:
                self.gateway.target = None
            return bool(pods)
        with contextlib.suppress(NotFound):  # deleted meanwhile: the next step sees it
            self._reconcile(service, pods)
        return True

    def _reconcile(self, service: Manifest, pods: list[Manifest]) -> None:
        template = _template(service)
        if template is None:
            self._write(service, {"modelStatus": _unsupported(service)})
            return
        problem = self._open_gateway(service)
        deployment = self._deployment(service, template)
        revision = template["metadata"]["labels"][_HASH]
        alive = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        new = [pod for pod in alive if pod["metadata"]["labels"].get(_HASH) == revision]
        old = [pod for pod in alive if pod not in new]
        if not problem and new and _phase(new[0]) == "Failed":  # it was rejected for its port, which is free by now
            self._delete_pod(new.pop())
        if not new:
            new = [self._create_pod(deployment, template, problem)]
        serving = next((pod for pod in [*new, *old] if _ready(pod)), None)
        if self.gateway:
            self.gateway.target = _port(serving) if serving else None
        for pod in old:
            if pod is not serving:
                self._delete_pod(pod)
        kept = [*new, *(pod for pod in old if pod is serving)]
        deployment = self._write_deployment_status(deployment, new[0], kept)
        self._write(service, self._status(service, deployment, new[0], serving, problem))

    def _open_gateway(self, service: Manifest) -> str:
        """Listen where the service asks to, else where it did before; returns why that cannot be, or nothing."""
        requested = _requested_port(service)
        if self.gateway and requested in (None, self.gateway.port):
            return ""
        file = self.cluster.folder / "controllers" / f"{self.uid}.port"
        try:
            gateway = self._listen(requested, file)
        except OSError as error:
            remedy = f"write a free port into the annotation {PORT_ANNOTATION}, or leave it out"
            return f"port {requested} of {HOST} cannot be had ({error.strerror}): {remedy}"
        if self.gateway:
            self.gateway.close()
        self.gateway = gateway
        file.write_text(str(gateway.port))
        return ""

    @staticmethod
    def _listen(requested: int | None, file: Path) -> Gateway:
        if requested is not None:
            return Gateway(requested)
        with contextlib.suppress(OSError, ValueError):  # no port yet, or taken while this controller was dead
            return Gateway(int(file.read_text()))
        return Gateway(0)

    def _deployment(self, service: Manifest, template: Manifest) -> Manifest:
        """The service's Deployment, made or brought up to the template."""
        metadata = service["metadata"]
        name, namespace = f"{metadata['name']}-predictor", metadata["namespace"]
        spec = {
            "replicas": 1,
            "selector": {"matchLabels": {"app": f"isvc.{name}"}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
            "progressDeadlineSeconds": PROGRESS_DEADLINE_S,
            "template": template,
        }
        try:
            found = self.cluster.get(DEPLOYMENT, namespace, name)
        except NotFound:
            labels = {key: value for key, value in template["metadata"]["labels"].items() if key != _HASH}
            owners = [_owner(service)]
            about = {"name": name, "namespace": namespace, "labels": labels, "ownerReferences": owners}
            made = {"apiVersion": DEPLOYMENT.api_version, "kind": "Deployment", "metadata": about, "spec": spec}
            return self.cluster.create(made)
        if found["spec"] == spec:
            return found
        return self.cluster.patch(DEPLOYMENT, namespace, name, {"spec": difference(found["spec"], spec)})

    def _create_pod(self, deployment: Manifest, template: Manifest, problem: str) -> Manifest:
        pod = copy.deepcopy(template)
        metadata = pod["metadata"]
        base = f"{deployment['metadata']['name']}-{metadata['labels'][_HASH]}"
        metadata |= {"name": f"{base}-{secrets.token_hex(3)[:5]}", "namespace": deployment["metadata"]["namespace"]}
        metadata["ownerReferences"] = [_owner(deployment)]
        container = container_of(pod)
        container["env"] = [*(container.get("env") or []), {"name": "PORT", "value": str(free_port())}]
        created = self.cluster.create({"apiVersion": "v1", "kind": "Pod", **pod})
        record(self.cluster, deployment, "SuccessfulCreate", f"Created pod: {metadata['name']}")
        return self._reject(created, problem) if problem else created

    def _reject(self, pod: Manifest, problem: str) -> Manifest:
        """Refuse a pod before anything of it starts, as a kubelet does with one whose port of the host is taken."""
        record(self.cluster, pod, "NodePorts", problem, warning=True)
        container = container_of(pod)
        ended = {"exitCode": 128, "reason": "NodePorts", "message": problem, "startedAt": now(), "finishedAt": now()}
        about = {"name": container["name"], "image": container.get("image", ""), "ready": False, "restartCount": 0}
        status: Manifest = {"phase": "Failed", "reason": "NodePorts", "message": f"Pod was rejected: {problem}"}
        status["containerStatuses"] = [about | {"state": {"terminated": ended}, "lastState": {}}]
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        return self.cluster.patch(POD, namespace, name, {"status": status}, subresource="status")

    def _delete_pod(self, pod: Manifest) -> None:
        metadata = pod["metadata"]
        self.cluster.delete(POD, metadata["namespace"], metadata["name"], uid=metadata["uid"])

    def _age_s(self, pod: Manifest) -> float:
        return self._stopwatch.since_stamp(pod["metadata"]["uid"], pod["metadata"]["creationTimestamp"])

    def _write_deployment_status(self, deployment: Manifest, new: Manifest, pods: list[Manifest]) -> Manifest:
        ready = [pod for pod in pods if _ready(pod)]
        name = f"{deployment['metadata']['name']}-{new['metadata']['labels'][_HASH]}"
        if ready:
            available = ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
        else:
            available = ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
        if _ready(new) and len(pods) == 1:
            progress = ("True", "NewReplicaSetAvailable", f'ReplicaSet "{name}" has successfully progressed.')
        elif self._age_s(new) > PROGRESS_DEADLINE_S:
            progress = ("False", "ProgressDeadlineExceeded", f'ReplicaSet "{name}" has timed out progressing.')
        else:
            progress = ("True", "ReplicaSetUpdated", f'ReplicaSet "{name}" is progressing.')
        before = deployment.get("status", {}).get("conditions", [])
        status = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": len(pods),
            "updatedReplicas": 1,
            "readyReplicas": len(ready),
            "availableReplicas": len(ready),
            "unavailableReplicas": 0 if ready else 1,
            "conditions": [_condition(before, "Available", *available), _condition(before, "Progressing", *progress)],
        }
        metadata = deployment["metadata"]
        patch = {"status": status}
        return self.cluster.patch(DEPLOYMENT, metadata["namespace"], metadata["name"], patch, subresource="status")

    def _status(
        self, service: Manifest, deployment: Manifest, new: Manifest, serving: Manifest | None, problem: str
    ) -> Manifest:
        conditions = {c["type"]: c for c in deployment["status"]["conditions"]}
        if serving is new:
            predictor = ("True", "", "")
        elif serving is not None:  # of the old revision
            progress = conditions["Progressing"]
            late = progress["status"] == "False"
            predictor = ("False" if late else "Unknown", progress["reason"], progress["message"])
        else:
            available = conditions["Available"]
            predictor = (available["status"], available["reason"], available["message"])
        ingress = ("False", "PortInUse", problem) if problem else ("True", "", "")
        ready = ingress if problem else predictor
        before = service.get("status", {}).get("conditions", [])
        status: Manifest = {
            "conditions": [
                _condition(before, "IngressReady", *ingress),
                _condition(before, "PredictorReady", *predictor),
                _condition(before, "Ready", *ready),
            ],
            "deploymentMode": "Standard",
            "observedGeneration": deployment["metadata"]["generation"],
            "modelStatus": _model_status(new, serving),
        }
        if self.gateway and (serving is not None or "url" in service.get("status", {})):
            url = f"http://{HOST}:{self.gateway.port}"
            status |= {"url": url, "address": {"url": url}, "components": {"predictor": {"url": url}}}
        self._tell(service, before, ready)
        return status

    def _tell(self, service: Manifest, before: list[Manifest], ready: tuple[str, str, str]) -> None:
        """Events at each turn of Ready, in KServe's words."""
        was = next((c["status"] for c in before if c["type"] == "Ready"), "Unknown")
        name = service["metadata"]["name"]
        if ready[0] == "True" and was != "True":
            record(self.cluster, service, "InferenceServiceReady", f"InferenceService [{name}] is Ready")
        elif ready[0] != "True" and was == "True":
            message = f"InferenceService [{name}] is no longer Ready: {ready[2]}"
            record(self.cluster, service, "InferenceServiceNotReady", message, warning=True)

    def _write(self, service: Manifest, status: Manifest) -> None:
        metadata = service["metadata"]
        patch = {"metadata": {"uid": self.uid}, "status": status}
        self.cluster.patch(INFERENCESERVICE, metadata["namespace"], metadata["name"], patch, subresource="status")


def _template(service: Manifest) -> Manifest | None:
    """The template of the service's pods, with the hash of it as a label; None if no runtime serves the format."""
    metadata, predictor = service["metadata"], copy.deepcopy(service["spec"]["predictor"])
    if "model" in predictor:
        if predictor["model"]["modelFormat"]["name"].lower() not in FORMATS:
            return None
        containers = [_model_container(metadata["name"], predictor["model"])]
    else:
        containers = predictor["containers"]
    kept = ("volumes", "terminationGracePeriodSeconds", "serviceAccountName", "nodeSelector", "tolerations")
    spec = {key: predictor[key] for key in kept if key in predictor} | {"containers": containers}
    app = f"isvc.{metadata['name']}-predictor"
    own = {"app": app, "component": "predictor", "serving.kserve.io/inferenceservice": metadata["name"]}
    template: Manifest = {"metadata": {"labels": (metadata.get("labels") or {}) | own}, "spec": spec}
    digest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()
    template["metadata"]["labels"][_HASH] = digest[:10]
    return template


def _model_container(name: str, model: Manifest) -> Manifest:
    uri = str(model["storageUri"])
    folder = unquote(uri.removeprefix("file://")) if uri.startswith("file://") else uri
    # -P: a folder named tunesmith where the server starts must not be imported in place of the package.
    command = [Path(sys.executable).name, "-P", "-m", "tunesmith.local.model_server"]
    command += ["--model", folder, "--name", name, "--host", HOST, "--port", "$(PORT)"]
    own = {key: model[key] for key in ("resources", "volumeMounts") if key in model}
    return own | {
        "name": "kserve-container",
        "image": "tunesmith.local.model_server",
        "command": command,
        "args": model.get("args") or [],
        "env": model.get("env") or [],
        "readinessProbe": {"httpGet": {"path": "/health", "port": "$(PORT)"}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _answers(pod: Manifest) -> bool:
    """Whether the pod serves: by its readinessProbe's path, else by taking a connection; at ``PORT``."""
    path = ((container_of(pod).get("readinessProbe") or {}).get("httpGet") or {}).get("path")
    try:
        if path is None:
            socket.create_connection((HOST, _port(pod)), timeout=1).close()
            return True
        connection = http.client.HTTPConnection(HOST, _port(pod), timeout=1)
        try:
            connection.request("GET", path)
            return connection.getresponse().status < 400
        finally:
            connection.close()
    except (OSError, http.client.HTTPException):
        return False


def _requested_port(service: Manifest) -> int | None:
    """The port that the service asks for, in its annotation or else in its container's ``PORT``."""
    if asked := (service["metadata"].get("annotations") or {}).get(PORT_ANNOTATION):
        return int(asked)
    predictor = service["spec"]["predictor"]
    container = predictor.get("model") or predictor["containers"][0]
    asked = next((v.get("value") for v in container.get("env") or [] if v["name"] == "PORT"), None)
    return int(asked) if asked and asked.isdigit() else None


def _model_status(new: Manifest, serving: Manifest | None) -> Manifest:
    """KServe's modelStatus; lastFailureInfo stays after a recovery, as there."""
    active = {"activeModelState": "Loaded"} if serving else {}
    failed = _last_failure(new)
    if serving is new:
        return _states("UpToDate", active | {"targetModelState": "Loaded"}, 0)
    if failed is None:
        return _states("InProgress", active | {"targetModelState": "Pending"}, 0)
    about = {"exitCode": failed["exitCode"], "message": failed.get("message", ""), "reason": "ModelLoadFailed"}
    return _states("BlockedByFailedLoad", active | {"targetModelState": "FailedToLoad"}, 1) | {"lastFailureInfo": about}


def _states(transition: str, states: Manifest, failed: int) -> Manifest:
    copies = {"failedCopies": failed, "totalCopies": 1}
    return {"transitionStatus": transition, "states": states, "copies": copies}


def _unsupported(service: Manifest) -> Manifest:
    """As KServe answers a format that it has no runtime for: in modelStatus, and with no condition at all."""
    name = service["spec"]["predictor"]["model"]["modelFormat"]["name"]
    message = f"No runtime found to support the model format {name}: a LocalCluster has {', '.join(FORMATS)}"
    failure = {"reason": "NoSupportingRuntime", "message": message}
    return {"transitionStatus": "InvalidSpec", "lastFailureInfo": failure}


def _last_failure(pod: Manifest) -> Manifest | None:
    for status in pod.get("status", {}).get("containerStatuses") or []:
        for state in (status.get("state") or {}, status.get("lastState") or {}):
            ended: Manifest = state.get("terminated") or {}
            if ended.get("exitCode"):
                return ended
    return None


def _condition(before: list[Manifest], type_: str, truth: str, reason: str, message: str) -> Manifest:
    """A condition, with the time of its last change of status."""
    old = next((c for c in before if c["type"] == type_ and c["status"] == truth), None)
    since = old["lastTransitionTime"] if old else now()
    words = {key: value for key, value in (("reason", reason), ("message", message)) if value}
    return {"type": type_, "status": truth, "lastTransitionTime": since, **words}


def _owner(body: Manifest) -> dict[str, Any]:
    metadata = body["metadata"]
    return {
        "apiVersion": body["apiVersion"],
        "kind": body["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _phase(pod: Manifest) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))


def _ready(pod: Manifest) -> bool:
    statuses = pod.get("status", {}).get("containerStatuses") or []
    return bool(statuses) and all(status.get("ready") for status in statuses)


def _port(pod: Manifest) -> int:
    return int([v["value"] for v in container_of(pod)["env"] if v["name"] == "PORT"][-1])
