"""What a PyTorchJob is built as, what is wrong with one, and what a snapshot of one means."""

import json

import pytest

from tunesmith.resources import Policy, Resources
from tunesmith.workloads import pytorchjob
from tunesmith.workloads.base import Fault, Snapshot, State
from tunesmith.workloads.pytorchjob import PyTorchJobSpec


def build(name="ft", **spec):
    spec = {"image": "i", "command": ["python", "t.py"], **spec}
    return pytorchjob.build(PyTorchJobSpec(**spec), name=name, namespace="ns", labels={"a": "b"}, annotations={})


DISRUPTED = {"type": "DisruptionTarget", "status": "True"}


def condition(name, status="True", reason="", message=""):
    return {"type": name, "status": status, "reason": reason or f"PyTorchJob{name}", "message": message}


def job(*conditions):
    return {**build(), "status": {"conditions": list(conditions)}}


def pod(exit_code, message="", reason="Error", name="ft-master-0", finished="2026-11-30T10:00:00Z", **status):
    ended = {"exitCode": exit_code, "reason": reason, "message": message, "finishedAt": finished}
    return {
        "metadata": {"name": name, "uid": name},
        "status": {"phase": "Failed", "containerStatuses": [{"state": {"terminated": ended}}], **status},
    }


def error(fault, reason="Broken", message="it broke"):
    return json.dumps(
        {"schema": "tunesmith.dev/result/v1", "error": {"fault": fault, "reason": reason, "message": message}}
    )


def test_one_replica_is_a_master_without_workers():
    assert list(build(replicas=1)["spec"]["pytorchReplicaSpecs"]) == ["Master"]


def test_four_replicas_are_a_master_and_three_workers():
    replicas = build(replicas=4)["spec"]["pytorchReplicaSpecs"]
    assert {role: replica["replicas"] for role, replica in replicas.items()} == {"Master": 1, "Worker": 3}


def test_the_whole_manifest_of_a_small_job():
    manifest = build(
        env={"B": "2", "A": "1"},
        resources=Resources(cpu="2", memory="4Gi", gpus=1),
        policy=Policy(deadline_seconds=60, retries=1),
        service_account="train",
    )
    amounts = {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": "1"}
    assert manifest == {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "ft", "namespace": "ns", "labels": {"a": "b"}, "annotations": {}},
        "spec": {
            "nprocPerNode": "1",
            "runPolicy": {
                "activeDeadlineSeconds": 60,
                "backoffLimit": 3,
                "cleanPodPolicy": "Running",
                "ttlSecondsAfterFinished": 86400,
            },
            "pytorchReplicaSpecs": {
                "Master": {
                    "replicas": 1,
                    "restartPolicy": "Never",
                    "template": {
                        "metadata": {"labels": {"a": "b"}, "annotations": {"sidecar.istio.io/inject": "false"}},
                        "spec": {
                            "automountServiceAccountToken": False,
                            "serviceAccountName": "train",
                            "containers": [
                                {
                                    "name": "pytorch",
                                    "image": "i",
                                    "command": ["python", "t.py"],
                                    "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                                    "resources": {"requests": amounts, "limits": amounts},
                                    "terminationMessagePolicy": "FallbackToLogsOnError",
                                }
                            ],
                        },
                    },
                }
            },
        },
    }


def test_a_good_job_has_no_problems():
    assert pytorchjob.problems(build(name="a" * 50, replicas=9)) == []


def test_a_name_is_too_long_when_its_longest_pod_name_is():
    (problem,) = pytorchjob.problems(build(name="a" * 54, replicas=101))
    assert (problem.id, problem.field) == ("pytorchjob-name-too-long", "metadata.name")
    assert "Shorten the name by 1." in problem.remedy


def test_workers_without_a_master_or_elastic_policy_would_wait_for_ever():
    manifest = build(replicas=2)
    del manifest["spec"]["pytorchReplicaSpecs"]["Master"]
    assert [problem.id for problem in pytorchjob.problems(manifest)] == ["pytorchjob-no-rendezvous"]
    manifest["spec"]["elasticPolicy"] = {"minReplicas": 1}
    assert pytorchjob.problems(manifest) == []


def test_all_problems_are_found_at_once_sorted_by_field():
    manifest = build(name="a" * 60, replicas=2)
    manifest["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"] = 2
    manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["name"] = "main"
    assert [problem.id for problem in pytorchjob.problems(manifest)] == [
        "pytorchjob-name-too-long",
        "pytorchjob-one-master",
        "pytorchjob-container-name",
    ]


@pytest.mark.parametrize(
    ("snapshot", "state"),
    [
        pytest.param(Snapshot(job()), State.PENDING, id="nothing said yet is pending"),
        pytest.param(Snapshot(job(condition("Created"))), State.PENDING, id="created is pending"),
        pytest.param(Snapshot(job(condition("Running"))), State.RUNNING, id="running"),
        pytest.param(Snapshot(job(condition("Restarting"))), State.RUNNING, id="restarting in place is running"),
        pytest.param(Snapshot(job(condition("Suspended"))), State.QUEUED, id="suspended is waiting, not failing"),
        pytest.param(Snapshot(job(condition("Succeeded"))), State.SUCCEEDED, id="succeeded"),
        pytest.param(Snapshot(job(condition("Succeeded", "False"))), State.PENDING, id="a False one says nothing"),
        pytest.param(
            Snapshot(job(condition("Succeeded"), condition("Failed"))), State.FAILED, id="failed outweighs succeeded"
        ),
        pytest.param(
            Snapshot(job(condition("Running"), condition("Suspended"))), State.QUEUED, id="the order means nothing"
        ),
        pytest.param(Snapshot(job(condition("Brandnew"))), State.PENDING, id="an unknown condition is never success"),
        pytest.param(Snapshot(None), State.LOST, id="a deleted job is lost"),
    ],
)
def test_state(snapshot, state):
    assert pytorchjob.observe(snapshot).state is state


@pytest.mark.parametrize(
    ("pods", "fault"),
    [
        pytest.param([pod(1)], Fault.USER, id="exit 1 is the user's program"),
        pytest.param([pod(137)], Fault.SYSTEM, id="killed from outside is the system"),
        pytest.param([pod(137, reason="OOMKilled")], Fault.USER, id="out of memory needs a larger request"),
        pytest.param([pod(1, error("system"))], Fault.SYSTEM, id="the container says it was the system"),
        pytest.param(
            [pod(1, error("system"), finished="2026-11-30T09:00:00Z"), pod(1, error("user"), name="ft-worker-0")],
            Fault.USER,
            id="one replica's user error explains the other's lost connection",
        ),
        pytest.param(
            [pod(1, "exitcode  : -9 (pid: 7)\nSignal 9 (SIGKILL) received by PID 7")],
            Fault.SYSTEM,
            id="torchrun says that its worker was killed",
        ),
        pytest.param([pod(1, conditions=[DISRUPTED])], Fault.CAPACITY, id="evicted"),
        pytest.param([], Fault.SYSTEM, id="no pod left to ask"),
    ],
)
def test_fault_of_a_failed_job(pods, fault):
    assert pytorchjob.observe(Snapshot(job(condition("Failed")), tuple(pods))).fault is fault

    pods = (pod(3, error("user", "BadData", "line 7 is not JSON")),)
    observation = pytorchjob.observe(Snapshot(job(condition("Failed")), pods))
    assert (observation.reason, observation.message, observation.exit_code, observation.pod) == (
        "BadData",
        "line 7 is not JSON",
        3,
        "ft-master-0",
    )


def test_a_job_past_its_deadline_is_the_users_to_lengthen():
    message = "Job ft has failed because it was active longer than specified deadline"
    observation = pytorchjob.observe(Snapshot(job(condition("Failed", message=message))))
    assert (observation.reason, observation.fault) == ("DeadlineExceeded", Fault.USER)


@pytest.mark.parametrize("bad", [{"replicas": 0}, {"command": []}, {"image": ""}, {"nproc_per_node": "0"}, {"nope": 1}])
def test_a_spec_that_cannot_be_is_refused(bad):
    with pytest.raises(ValueError):
        PyTorchJobSpec(**{"image": "i", "command": ["c"], **bad})
