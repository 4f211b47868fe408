"""A service is deployed when *this* revision serves, and not a moment before."""

import pytest

from tunesmith.workloads import inferenceservice
from tunesmith.workloads.base import Snapshot, State
from tunesmith.workloads.inferenceservice import InferenceServiceSpec

URL = "http://127.0.0.1:8080"


def service(revision="r2", ready=True, **status):
    spec = InferenceServiceSpec(storage_uri="file:///m")
    manifest = inferenceservice.build(spec, name="llm", namespace="ns", labels={}, annotations={})
    manifest = inferenceservice.with_revision(manifest, revision)
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {**manifest, "status": {"conditions": conditions, "address": {"url": URL}, **status}}


def template(revision):
    return {"containers": [{"name": "kserve-container", "env": [{"name": "TUNESMITH_REVISION", "value": revision}]}]}


def deployment(revision="r2", generation=2, observed=2, updated=1, replicas=1, available=1):
    return {
        "metadata": {"name": "llm-predictor", "uid": "d", "generation": generation},
        "spec": {"replicas": 1, "template": {"spec": template(revision)}},
        "status": {
            "observedGeneration": observed,
            "updatedReplicas": updated,
            "replicas": replicas,
            "availableReplicas": available,
        },
    }


def pod(revision="r2", **container):
    return {
        "metadata": {"name": f"p-{revision}", "uid": f"p-{revision}"},
        "spec": template(revision),
        "status": {"containerStatuses": [container]},
    }


def state(manifest, *deployments, pods=()):
    return inferenceservice.observe(Snapshot(manifest, tuple(pods), (), deployments)).state


def test_the_mode_is_always_said_since_it_cannot_be_changed_later():
    assert service()["metadata"]["annotations"]["serving.kserve.io/deploymentMode"] == "Standard"


def test_this_revision_rolled_out_and_ready_is_success():
    assert state(service(), deployment()) is State.SUCCEEDED


@pytest.mark.parametrize(
    "old",
    [
        pytest.param(deployment(revision="r1"), id="the deployment is still the old revision's"),
        pytest.param(deployment(observed=1), id="its controller has not seen the change"),
        pytest.param(deployment(updated=0), id="no replica is updated"),
        pytest.param(deployment(replicas=2), id="an old replica is still there"),
        pytest.param(deployment(available=0), id="the new replica is not available"),
    ],
)
def test_ready_from_the_old_revision_is_not_success(old):
    assert state(service(ready=True), old) is not State.SUCCEEDED


def test_rolled_out_without_ready_is_not_success():
    assert state(service(ready=False), deployment()) is not State.SUCCEEDED


def test_a_crash_of_the_new_revision_fails_at_once_with_its_words():
    ended = {"exitCode": 3, "message": "no such model", "reason": "Error"}
    broken = pod(restartCount=1, lastState={"terminated": ended})
    observation = inferenceservice.observe(Snapshot(service(), (broken,), (), (deployment(available=0),)))
    assert (observation.state, observation.exit_code, observation.message) == (State.FAILED, 3, "no such model")


def test_a_crash_of_the_old_revision_says_nothing_about_the_new_one():
    broken = pod("r1", state={"waiting": {"reason": "CrashLoopBackOff"}})
    assert state(service(), deployment(), pods=[broken]) is State.SUCCEEDED


def test_a_model_format_without_a_runtime_fails_though_no_condition_says_so():
    status = {"modelStatus": {"lastFailureInfo": {"reason": "NoSupportingRuntime", "message": "no runtime"}}}
    assert state(service(ready=False, **status)) is State.FAILED


def test_a_deleted_service_is_lost():
    assert state(None) is State.LOST


def test_the_name_is_checked_together_with_the_namespace():
    spec = InferenceServiceSpec(storage_uri="s3://b/m")
    manifest = inferenceservice.build(spec, name="a" * 30, namespace="n" * 30, labels={}, annotations={})
    assert [problem.id for problem in inferenceservice.problems(manifest)] == ["inferenceservice-name-too-long"]
    assert inferenceservice.problems(service()) == []


def test_a_new_mark_replaces_the_old_one():
    env = inferenceservice.with_revision(service("r1"), "r2")["spec"]["predictor"]["model"]["env"]
    assert env == [{"name": "TUNESMITH_REVISION", "value": "r2"}]
