import json
import urllib.request
from pathlib import Path

import pytest
from kfp import dsl

from tunesmith.components.serving.kserve_deploy import kserve_deploy
from tunesmith.resources import INFERENCESERVICE
from tunesmith.tasks.step import StepFailed

pytestmark = pytest.mark.local


@pytest.fixture
def deploy(step_folder, local_cluster):
    """Deploy a model under a name; returns the address and the service's description."""

    def run(model, name="answers", **arguments):
        step = step_folder("deploy")
        url, service = step.artifact(dsl.Artifact, "url"), step.artifact(dsl.Artifact, "service")
        kserve_deploy.python_func(
            model=dsl.Model(name="model", uri=str(model), metadata={}),
            service_name=name,
            url=url.path,
            service=service,
            record=step.artifact(dsl.Artifact, "record"),
            **arguments,
        )
        return Path(url.path).read_text(), json.loads(Path(service.path).read_text())

    return run


@pytest.mark.trainer
def test_deployed_model_answers_at_the_address_that_the_step_hands_on(deploy, small_model, local_cluster, step_folder):
    """Starts a model server, which takes seconds: that this very model answers is seen nowhere else."""
    url, service = deploy(small_model)
    body = {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 2, "model": "x"}
    with urllib.request.urlopen(f"{url}/v1/models") as reply:
        body["model"] = json.load(reply)["data"][0]["id"]
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as reply:
        assert json.load(reply)["choices"]
    assert (service["url"], service["name"]) == (url, "answers")
    assert step_folder("deploy").record()["details"]["serving_url"] == url
    (found,) = local_cluster.list(INFERENCESERVICE, "default")
    assert found["metadata"]["name"] == "answers"


@pytest.mark.trainer
def test_first_deploy_that_never_serves_fails_the_step_and_is_removed_again(deploy, tmp_path, local_cluster):
    empty = tmp_path / "no-model"
    empty.mkdir()
    (empty / "config.json").write_text("{}")
    with pytest.raises(StepFailed) as raised:
        deploy(empty, timeout_seconds=60)
    assert "answers ended FAILED" in raised.value.record.failure.message
    left = [
        one for one in local_cluster.list(INFERENCESERVICE, "default") if "deletionTimestamp" not in one["metadata"]
    ]
    assert not left


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param({"name": "My_Model"}, "Write 'my-model'", id="a name that Kubernetes does not take"),
        pytest.param({"name": "a" * 63}, "Shorten the name", id="a name too long for a host"),
        pytest.param({"resources": {"gpu": 1}}, "resources.gpu", id="a resource that does not exist"),
        pytest.param({"replicas": 0}, "replicas", id="no replica"),
    ],
)
def test_what_cannot_serve_is_refused_before_a_service_exists(deploy, tmp_path, local_cluster, arguments, words):
    with pytest.raises(StepFailed) as raised:
        deploy(tmp_path, **arguments)
    assert raised.value.code == 2
    assert words in raised.value.record.failure.message
    assert not local_cluster.list(INFERENCESERVICE, "default")
