import pytest
from kfp import dsl

from tunesmith.components.training.fine_tune import fine_tune
from tunesmith.resources import PYTORCHJOB
from tunesmith.tasks.step import StepFailed

pytestmark = [pytest.mark.local, pytest.mark.trainer]


@pytest.fixture
def tune(step_folder, local_cluster, small_model, conversations):
    """Tune the small model on twenty conversations; returns the step's outputs and its folder."""

    def run(**arguments):
        step = step_folder("tune")
        model, metrics = step.artifact(dsl.Model, "model"), step.artifact(dsl.Metrics, "metrics")
        fine_tune.python_func(
            base_model=dsl.Model(name="model", uri=str(small_model), metadata={}),
            train=step_folder("prepare").artifact(dsl.Dataset, "train", conversations(20)),
            model=model,
            metrics=metrics,
            record=step.artifact(dsl.Artifact, "record"),
            max_length=128,
            batch_size=2,
            **arguments,
        )
        return model, metrics, step

    return run


def test_tuned_model_is_complete_differs_from_its_base_and_comes_with_its_curve(tune, small_model):
    """Starts a training process, which takes seconds: that settings, data and model reach it is seen nowhere else."""
    from transformers import AutoModelForCausalLM

    model, metrics, step = tune(max_steps=3, save_every=2, learning_rate=0.01)
    before, after = (AutoModelForCausalLM.from_pretrained(place).state_dict() for place in (small_model, model.path))
    assert before.keys() == after.keys()
    assert any((before[name] != after[name]).any() for name in before)
    assert [point[0] for point in step.left("curve.json")["series"][0]["points"]] == [1, 2, 3]
    assert metrics.metadata["restarts"] == 0
    record = step.record()
    assert record["state"] == "SUCCEEDED"
    assert [one["state"] for one in record["attempts"]] == ["SUCCEEDED"]
    assert {one["name"] for one in record["inputs"]} == {"base_model", "train"}


def test_job_that_cannot_be_built_is_refused_before_it_exists(tune, local_cluster):
    with pytest.raises(StepFailed) as raised:
        tune(resources={"cpus": "2"})
    assert raised.value.code == 2
    assert "resources.cpus" in raised.value.record.failure.message
    assert not local_cluster.list(PYTORCHJOB, "default")
