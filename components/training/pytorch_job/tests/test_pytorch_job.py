from pathlib import Path

import pytest
from kfp import dsl

from tunesmith.components.training.pytorch_job import pytorch_job
from tunesmith.lineage.digest import digest_path
from tunesmith.lineage.record import KEY_DIGEST
from tunesmith.resources import PYTORCHJOB
from tunesmith.tasks.step import StepFailed

pytestmark = pytest.mark.local


@pytest.fixture
def train(step_folder, local_cluster):
    """Run a shell script as the step's job, on a dataset of three lines; returns the model and the step's folder."""

    def run(script, **arguments):
        dataset = step_folder("prepare").artifact(dsl.Dataset, "train", "one\ntwo\nthree\n")
        step = step_folder("train")
        model = step.artifact(dsl.Model, "model")
        pytorch_job.python_func(
            image="example.com/any:1",
            command=["sh", "-c", script],
            model=model,
            record=step.artifact(dsl.Artifact, "record"),
            dataset=dataset,
            **arguments,
        )
        return model, step

    return run


def files_of(artifact):
    return {path.name: path.read_text() for path in Path(artifact.path).iterdir()}


def test_command_of_any_image_reads_the_input_and_its_files_become_the_model(train, local_cluster):
    model, step = train('wc -l < "$TUNESMITH_INPUT_DATASET" > "$TUNESMITH_OUTPUT_MODEL/lines"; echo "$WHO" >&2',
                        env={"WHO": "me"})  # fmt: skip
    assert files_of(model)["lines"].strip() == "3"
    record = step.record()
    (job,) = local_cluster.list(PYTORCHJOB, "default")
    assert [(one["uid"], one["state"]) for one in record["attempts"]] == [(job["metadata"]["uid"], "SUCCEEDED")]
    assert record["outputs"][0]["digest"] == digest_path(model.path).text
    assert record["inputs"][0]["name"] == "dataset"


def test_failing_command_fails_the_step_with_its_exit_code_and_last_lines(train, step_folder):
    with pytest.raises(StepFailed) as raised:
        train("echo the disk is on fire; exit 3")
    failure = step_folder("train").record()["failure"]
    assert failure["fault"] == "user"
    assert "exit code 3" in failure["message"]
    assert any("the disk is on fire" in line for line in failure["log_tail"])
    assert raised.value.code == 1


def test_users_error_is_not_tried_again(train, step_folder):
    with pytest.raises(StepFailed):
        train("exit 3", policy={"retries": 5})
    assert len(step_folder("train").record()["attempts"]) == 1


def test_job_that_writes_nothing_is_no_success(train):
    with pytest.raises(StepFailed) as raised:
        train("true")
    assert "wrote nothing to TUNESMITH_OUTPUT_MODEL" in raised.value.record.failure.message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param({"env": {"PET_NNODES": "9"}}, "PET_NNODES", id="a variable of the operator's"),
        pytest.param({"resources": {"gpu": 1}}, "resources.gpu", id="a resource that does not exist"),
        pytest.param({"resources": {"memory": "lots"}}, "not a Kubernetes quantity", id="no quantity"),
        pytest.param({"policy": {"deadline_seconds": 0}}, "policy.deadline_seconds", id="no time at all"),
        pytest.param({"replicas": 0}, "replicas", id="no replica"),
    ],
)
def test_what_cannot_run_is_refused_before_a_job_exists(train, local_cluster, arguments, words):
    with pytest.raises(StepFailed) as raised:
        train("true", **arguments)
    assert raised.value.code == 2
    assert words in raised.value.record.failure.message
    assert not local_cluster.list(PYTORCHJOB, "default")


def test_without_a_cluster_the_step_says_how_to_name_one(train, monkeypatch):
    monkeypatch.delenv("TUNESMITH_CLUSTER")
    with pytest.raises(StepFailed) as raised:
        train("true")
    assert "TUNESMITH_CLUSTER=local:<folder>" in raised.value.record.failure.message


def test_changed_input_is_refused(step_folder, train):
    step = step_folder("train")
    dataset = step_folder("prepare").artifact(dsl.Dataset, "other", "one\n")
    dataset.metadata[KEY_DIGEST] = digest_path(dataset.path).text
    with open(dataset.path, "a") as stream:
        stream.write("slipped in\n")
    with pytest.raises(StepFailed) as raised:
        pytorch_job.python_func(
            image="example.com/any:1", command=["true"], model=step.artifact(dsl.Model, "model"),
            record=step.artifact(dsl.Artifact, "record"), dataset=dataset,
        )  # fmt: skip
    assert raised.value.record.failure.reason == "TamperedInput"
