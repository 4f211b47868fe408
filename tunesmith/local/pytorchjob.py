"""The controller of one PyTorchJob: the rules and the words of training-operator 1.9's controller for the v1 API.

Written along its source, so that what is waited for here is what a cluster shows: the same pods, labels, environment,
conditions, reasons, counts and events in the same order. Where it surprises, it does so there, too:

- ``OnFailure`` and ``Always`` restart a container in place: the job stays Running, only ``restartCount`` moves. Just
  ``ExitCode`` (for codes from 128) makes a new pod, and the condition Restarting in place of Running.
- ``backoffLimit`` n ends the job when the n-th restart has *happened*; with 0, at the first failure. All pods are
  deleted then, as after ``activeDeadlineSeconds``, whatever ``cleanPodPolicy`` says.
- With ``cleanPodPolicy: None`` replicas that still run when the job has ended go on running.
- A failure that ``ExitCode`` does not retry sets no ``completionTime``.

Only the rendezvous differs: there are no host names, so it is at 127.0.0.1 and a free port, whatever port is declared.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping
from typing import Any

from tunesmith.clusters.base import AlreadyExists, Manifest, NotFound
from tunesmith.clusters.local import LocalCluster, Stopwatch, difference, now
from tunesmith.local.gateway import free_port
from tunesmith.local.kubelet import Kubelet, record
from tunesmith.resources import POD, PYTORCHJOB

LABEL = "training.kubeflow.org"
OPERATOR = "pytorchjob-controller"
_ROLES = ("Master", "Worker")


class PyTorchJobController:
    """Looks after one job until nothing of it needs looking after."""

    def __init__(self, cluster: LocalCluster, uid: str):
        self.cluster = cluster
        self.uid = uid
        self.kubelet = Kubelet(cluster, uid)
        self._exits_told: set[str] = set()
        self._stopwatch = Stopwatch()

    def stirred(self) -> bool:
        """Whether a step is due though no object has changed."""
        return self.kubelet.stirred()

    def step(self) -> bool:
        """Bring pods and job one step further; False when there is nothing left to do."""
        pods = self.kubelet.sync()
        job = self.cluster.find(self.uid)
        if job is None:
            return bool(pods)
        if not _finished(job.get("status", {})):
            with contextlib.suppress(NotFound):  # deleted meanwhile: the next step sees it
                self._reconcile(job, pods)
            return True
        self._clean_up(job, pods)
        return any(pod.get("status", {}).get("phase") not in ("Succeeded", "Failed") for pod in pods)

    def _reconcile(self, job: Manifest, pods: list[Manifest]) -> None:
        """One pass of the operator's ReconcileJobs."""
        status: Manifest = copy.deepcopy(job.get("status", {}))
        name, policy = job["metadata"]["name"], job["spec"].get("runPolicy") or {}
        _set_condition(status, "Created", True, "PyTorchJobCreated", f"PyTorchJob {name} is created.")
        if policy.get("suspend"):
            self._suspend(job, status, pods)
        else:
            self._resume(job, status)
            if failure := _beyond_limits(job, status, pods, self._stopwatch):
                self._give_up(job, status, pods, failure)
            else:
                for role in self._roles(job):
                    self._reconcile_pods(job, status, pods, role)
                self._conclude(job, status)
        self._write(job, status)

    def _suspend(self, job: Manifest, status: Manifest, pods: list[Manifest]) -> None:
        self._delete_pods(job, pods)
        for counts in status.get("replicaStatuses", {}).values():
            counts.pop("active", None)
        message = f"PyTorchJob {job['metadata']['name']} is suspended."
        if _holds(status, "Running"):
            _set_condition(status, "Running", False, "PyTorchJobSuspended", message)
        if not _holds(status, "Suspended"):
            _set_condition(status, "Suspended", True, "PyTorchJobSuspended", message)
            record(self.cluster, job, "PyTorchJobSuspended", message)

    def _resume(self, job: Manifest, status: Manifest) -> None:
        if _holds(status, "Suspended"):
            message = f"PyTorchJob {job['metadata']['name']} is resumed."
            _set_condition(status, "Suspended", False, "PyTorchJobResumed", message)
            status["startTime"] = now()
            record(self.cluster, job, "PyTorchJobResumed", message)

    def _give_up(self, job: Manifest, status: Manifest, pods: list[Manifest], message: str) -> None:
        status.setdefault("completionTime", now())
        self._delete_pods(job, pods)
        record(self.cluster, job, "PyTorchJobFailed", message)
        _set_condition(status, "Failed", True, "PyTorchJobFailed", message)

    def _reconcile_pods(self, job: Manifest, status: Manifest, pods: list[Manifest], role: str) -> None:
        """Create the missing pods of a role, recreate those that failed and may run again, and count."""
        counts = {"active": 0, "succeeded": 0, "failed": 0}
        by_index = {_index(pod): pod for pod in pods if _label(pod, "replica-type") == role.lower()}
        for index in range(_replicas(job, role)):
            pod = by_index.pop(index, None)
            if pod is None:
                self._create_pod(job, role, index)
                continue
            self._look_at(job, status, pod, role)
            phase, leaving = pod.get("status", {}).get("phase"), "deletionTimestamp" in pod["metadata"]
            key = {"Running": "failed" if leaving else "active", "Succeeded": "succeeded", "Failed": "failed"}
            if phase in key:
                counts[key[phase]] += 1
        self._delete_pods(job, list(by_index.values()))
        labels = _labels(job, role)
        selector = ",".join(f"{label}={labels[label]}" for label in sorted(labels))
        shown = {key: count for key, count in counts.items() if count} | {"selector": selector}
        status.setdefault("replicaStatuses", {})[role] = shown

    def _look_at(self, job: Manifest, status: Manifest, pod: Manifest, role: str) -> None:
        """Decide what a pod that has failed means."""
        if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            return
        code, pod_name = _exit_code(pod), pod["metadata"]["name"]
        if pod["metadata"]["uid"] not in self._exits_told:
            self._exits_told.add(pod["metadata"]["uid"])
            message = f"Pod: {pod['metadata']['namespace']}.{pod_name} exited with code {code}"
            record(self.cluster, job, "ExitedWithCode", message)
        policy, name = _restart_policy(job, role), job["metadata"]["name"]
        if pod["status"]["phase"] != "Failed" or policy == "Never":
            return
        if policy != "ExitCode" or code >= 128:
            self._delete_pods(job, [pod])
            message = f"job {name} is restarting because {role} replica(s) failed."
            record(self.cluster, job, "PyTorchJobRestarting", message, warning=True)
            _set_condition(status, "Restarting", True, "PyTorchJobRestarting", message)
        else:
            message = f'job "{name}" is failing because "{role}" replica(s) failed.'
            record(self.cluster, job, "PyTorchJobFailed", message, warning=True)
            _set_condition(status, "Failed", True, "PyTorchJobFailed", message)

    def _conclude(self, job: Manifest, status: Manifest) -> None:
        """The operator's UpdateJobStatus: what the counts of replicas say about the job."""
        status.setdefault("startTime", now())
        name, roles = job["metadata"]["name"], self._roles(job)
        place = name if "Master" in roles else f"{job['metadata']['namespace']}/{name}"
        for role in roles:
            counts, wanted = status["replicaStatuses"][role], _replicas(job, role)
            active, succeeded, failed = (counts.get(key, 0) for key in ("active", "succeeded", "failed"))
            decides = role == roles[0]  # the master; workers only where there is none
            enough = succeeded == wanted or (role == "Worker" and "elasticPolicy" in job["spec"] and succeeded > 0)
            if decides and enough:
                words = "is successfully" if role == "Master" else "successfully"
                self._end(job, status, "Succeeded", f"PyTorchJob {place} {words} completed.")
                return
            if decides and active:
                _set_condition(status, "Running", True, "PyTorchJobRunning", f"PyTorchJob {place} is running.")
            if failed and wanted > succeeded + active:
                because = f"because {failed} {role} replica(s) failed."
                if _restart_policy(job, role) == "Never":
                    self._end(job, status, "Failed", f"PyTorchJob {name} is failed {because}")
                else:
                    message = f"PyTorchJob {name} is restarting {because}"
                    _set_condition(status, "Restarting", True, "PyTorchJobRestarting", message)

    def _end(self, job: Manifest, status: Manifest, type_: str, message: str) -> None:
        record(self.cluster, job, f"PyTorchJob{type_}", message)
        status.setdefault("completionTime", now())
        _set_condition(status, type_, True, f"PyTorchJob{type_}", message)

    def _clean_up(self, job: Manifest, pods: list[Manifest]) -> None:
        """What the operator does with the pods of an ended job."""
        policy = (job["spec"].get("runPolicy") or {}).get("cleanPodPolicy", "None")
        status: Manifest = copy.deepcopy(job["status"])
        alive = [pod for pod in pods if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")]
        if policy != "None":
            self._delete_pods(job, pods if policy == "All" else alive)
        if _holds(status, "Succeeded"):
            for counts in status.get("replicaStatuses", {}).values():
                if active := counts.pop("active", 0):
                    counts["succeeded"] = counts.get("succeeded", 0) + active
        with contextlib.suppress(NotFound):
            self._write(job, status)

    def _create_pod(self, job: Manifest, role: str, index: int) -> None:
        pod = _pod(job, role, index, self._port())
        try:
            self.cluster.create(pod)
        except AlreadyExists:
            return  # the pod of an earlier job of this name is still on its way out
        name = pod["metadata"]["name"]
        record(self.cluster, job, "SuccessfulCreatePod", f"Created pod: {name}")
        if role == self._roles(job)[0] and index == 0:
            image = pod["spec"]["containers"][0].get("image", "")
            record(self.cluster, job, "ImageNotUsed", f"LocalCluster runs the command on this machine, without {image}")

    def _delete_pods(self, job: Manifest, pods: list[Manifest]) -> None:
        for pod in pods:
            if "deletionTimestamp" not in pod["metadata"]:
                name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
                self.cluster.delete(POD, namespace, name, uid=pod["metadata"]["uid"])
                record(self.cluster, job, "SuccessfulDeletePod", f"Deleted pod: {name}")

    def _port(self) -> int:
        """The port of the rendezvous: chosen once, so that a replica that starts again finds the others."""
        file = self.cluster.folder / "controllers" / f"{self.uid}.port"
        if not file.exists():
            file.write_text(str(free_port()))
        return int(file.read_text())

    def _write(self, job: Manifest, status: Manifest) -> None:
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        patch = {"metadata": {"uid": self.uid}, "status": difference(job.get("status", {}), status)}
        self.cluster.patch(PYTORCHJOB, namespace, name, patch, subresource="status")

    @staticmethod
    def _roles(job: Manifest) -> list[str]:
        return [role for role in _ROLES if role in job["spec"]["pytorchReplicaSpecs"]]


def _beyond_limits(job: Manifest, status: Manifest, pods: list[Manifest], stopwatch: Stopwatch) -> str | None:
    """Why the job must end now: too many restarts, or too long."""
    policy, name = job["spec"].get("runPolicy") or {}, job["metadata"]["name"]
    limit, deadline = policy.get("backoffLimit"), policy.get("activeDeadlineSeconds")
    phases = [pod.get("status", {}).get("phase") for pod in pods]
    if limit is not None:
        known = sum(counts.get("failed", 0) for counts in status.get("replicaStatuses", {}).values())
        newly_failed = phases.count("Failed") > known and limit == 0
        restarts = sum(_restarts(job, pod) for pod, phase in zip(pods, phases, strict=True) if phase == "Running")
        if newly_failed or restarts >= max(limit, 1):
            return f"Job {name} has failed because it has reached the specified backoff limit"
    if deadline is not None and "startTime" in status:
        active_s = stopwatch.since_stamp(job["metadata"]["uid"], status["startTime"])
        if active_s >= deadline:
            return f"Job {name} has failed because it was active longer than specified deadline"
    return None


def _restarts(job: Manifest, pod: Manifest) -> int:
    role = _label(pod, "replica-type").capitalize()
    if role not in job["spec"]["pytorchReplicaSpecs"] or _restart_policy(job, role) == "Never":
        return 0
    return sum(status["restartCount"] for status in pod["status"].get("containerStatuses", []))


def _pod(job: Manifest, role: str, index: int, port: int) -> Manifest:
    """The pod of one replica, as the operator makes it from the replica's template."""
    template = copy.deepcopy(job["spec"]["pytorchReplicaSpecs"][role]["template"])
    metadata, spec = template.get("metadata") or {}, template["spec"]
    labels = _labels(job, role) | {f"{LABEL}/replica-index": str(index)}
    if index == 0 and (role == "Master" or "Master" not in job["spec"]["pytorchReplicaSpecs"]):
        labels[f"{LABEL}/job-role"] = "master"
    policy = _restart_policy(job, role)
    spec["restartPolicy"] = "Never" if policy == "ExitCode" else policy
    for container in spec["containers"]:
        container["env"] = [*(container.get("env") or []), *_environment(job, role, index, port)]
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "controller": True, "blockOwnerDeletion": True}
    owner |= {key: job["metadata"][key] for key in ("name", "uid")}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{job['metadata']['name']}-{role.lower()}-{index}",
            "namespace": job["metadata"]["namespace"],
            "labels": (metadata.get("labels") or {}) | labels,
            "annotations": metadata.get("annotations") or {},
            "ownerReferences": [owner],
        },
        "spec": spec,
    }


def _environment(job: Manifest, role: str, index: int, port: int) -> list[Manifest]:
    """The variables that the operator adds to each container, in its order (setPodEnv in envvar.go)."""
    spec = job["spec"]
    replicas = spec["pytorchReplicaSpecs"]
    total = sum(_replicas(job, each) for each in replicas)
    elastic = spec.get("elasticPolicy")
    deprecated = (elastic or {}).get("nProcPerNode")
    per_node = spec.get("nprocPerNode") or ("auto" if deprecated is None else None)
    values: dict[str, Any] = {"PYTHONUNBUFFERED": "1"}
    if "Master" in replicas:
        values |= {"MASTER_PORT": port, "PET_MASTER_PORT": port}
        values |= {"MASTER_ADDR": "127.0.0.1", "PET_MASTER_ADDR": "127.0.0.1"}
        rank = index + 1 if role == "Worker" else index
        processes = int(per_node) if per_node and per_node.isdigit() else 1
        values |= {"WORLD_SIZE": total * processes, "RANK": rank, "PET_NODE_RANK": rank}
    if per_node is not None:
        values["PET_NPROC_PER_NODE"] = per_node
    values |= {"PET_NNODES": total} if elastic is None else _elastic_environment(job, elastic, port)
    return [{"name": name, "value": str(value)} for name, value in values.items()]


def _elastic_environment(job: Manifest, elastic: Mapping[str, Any], port: int) -> dict[str, Any]:
    """The rendezvous of an elastic job (elastic.go); a host that the user names, such as an etcd, stays."""
    workers = _replicas(job, "Worker")
    least = elastic.get("minReplicas", elastic.get("maxReplicas", workers))
    most = elastic.get("maxReplicas", least)
    host = elastic.get("rdzvHost")
    at = f"{host}:{elastic.get('rdzvPort', port)}" if host else f"127.0.0.1:{port}"
    values: dict[str, Any] = {"PET_RDZV_ENDPOINT": at, "PET_RDZV_BACKEND": elastic.get("rdzvBackend", "c10d")}
    values["PET_NNODES"] = f"{least}:{most}"
    fields = {"PET_MAX_RESTARTS": "maxRestarts", "PET_NPROC_PER_NODE": "nProcPerNode", "PET_RDZV_ID": "rdzvId"}
    values |= {name: elastic[field] for name, field in fields.items() if elastic.get(field) is not None}
    if conf := elastic.get("rdzvConf"):
        values["PET_RDZV_CONF"] = ",".join(f"{entry['key']}={entry['value']}" for entry in conf)
    if elastic.get("standalone"):
        values["PET_STANDALONE"] = ""
    return values


def _labels(job: Manifest, role: str) -> dict[str, str]:
    labels = {"operator-name": OPERATOR, "job-name": job["metadata"]["name"], "replica-type": role.lower()}
    return {f"{LABEL}/{key}": value for key, value in labels.items()}


def _label(pod: Manifest, key: str) -> str:
    return str(pod["metadata"]["labels"].get(f"{LABEL}/{key}", ""))


def _index(pod: Manifest) -> int:
    return int(_label(pod, "replica-index"))


def _replicas(job: Manifest, role: str) -> int:
    return int(job["spec"]["pytorchReplicaSpecs"][role].get("replicas", 1))


def _restart_policy(job: Manifest, role: str) -> str:
    return str(job["spec"]["pytorchReplicaSpecs"][role].get("restartPolicy") or "OnFailure")


def _exit_code(pod: Manifest) -> int:
    statuses = pod["status"].get("containerStatuses") or []
    codes = [status["state"]["terminated"]["exitCode"] for status in statuses if "terminated" in status["state"]]
    return codes[0] if codes else 0


# Conditions, as the operator's pkg/util/status.go keeps them.


def _holds(status: Manifest, type_: str) -> bool:
    return any(c["type"] == type_ and c["status"] == "True" for c in status.get("conditions", []))


def _finished(status: Manifest) -> bool:
    return _holds(status, "Succeeded") or _holds(status, "Failed")


def _set_condition(status: Manifest, type_: str, truth: bool, reason: str, message: str) -> None:
    """Set a condition: Running and Restarting replace each other, an end turns Running off, Failed is for good."""
    if _holds(status, "Failed"):
        return
    moment, conditions = now(), status.get("conditions", [])
    new = {"type": type_, "status": str(truth), "lastUpdateTime": moment, "lastTransitionTime": moment}
    new |= {"reason": reason, "message": message}
    present = next((c for c in conditions if c["type"] == type_), None)
    if present is not None and present["status"] == new["status"]:
        if present["reason"] == reason:
            return
        new["lastTransitionTime"] = present["lastTransitionTime"]
    displaced = {"Restarting": "Running", "Running": "Restarting"}.get(type_)
    kept = [dict(c) for c in conditions if c["type"] not in (type_, displaced)]
    if type_ in ("Failed", "Succeeded"):
        for condition in kept:
            if condition["type"] == "Running":
                condition["status"] = "False"
    status["conditions"] = [*kept, new]
