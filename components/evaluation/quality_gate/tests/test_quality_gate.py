import json

import pytest
from kfp import dsl

from tunesmith.components.evaluation.quality_gate import quality_gate
from tunesmith.tasks.step import StepFailed

METRICS = {"eval_loss": 2.1, "eval_loss_base": 3.0, "loss_reduction": 0.3}


@pytest.fixture
def judge(step_folder):
    """Run the gate on metrics; returns its folder."""

    def run(thresholds, metrics=METRICS):
        evaluation = step_folder("evaluate").artifact(dsl.Metrics, "evaluation", json.dumps(metrics))
        step = step_folder("gate")
        quality_gate.python_func(evaluation, step.artifact(dsl.Artifact, "record"), thresholds)
        return step

    return run


def test_metrics_within_their_thresholds_pass_and_every_verdict_is_kept(judge):
    step = judge({"eval_loss": {"max": 2.5, "max_ratio_to_base": 0.75}, "loss_reduction": {"min": 0.25}})
    assert step.record()["state"] == "SUCCEEDED"
    assert [(one["metric"], one["value"], one["passed"]) for one in step.left("gate.json")] == [
        ("eval_loss", 2.1, True),
        ("eval_loss / eval_loss_base", pytest.approx(0.7), True),
        ("loss_reduction", 0.3, True),
    ]


@pytest.mark.parametrize(
    ("thresholds", "numbers"),
    [
        pytest.param({"eval_loss": {"max": 2.0}}, "eval_loss is 2.1, wanted <= 2", id="a loss above its maximum"),
        pytest.param({"loss_reduction": {"min": 0.5}}, "loss_reduction is 0.3, wanted >= 0.5", id="too small a gain"),
        pytest.param(
            {"eval_loss": {"max_ratio_to_base": 0.6}}, "eval_loss / eval_loss_base is 0.7", id="too near to the base"
        ),
        pytest.param({"accuracy": {"min": 0.5}}, "accuracy is not measured", id="a metric that nobody measured"),
        pytest.param({"loss_reduction": {"max_ratio_to_base": 1}}, "not measured", id="a metric whose base is missing"),
    ],
)
def test_gate_closes_with_the_numbers_in_its_message(judge, step_folder, thresholds, numbers):
    with pytest.raises(StepFailed) as raised:
        judge(thresholds)
    assert numbers in raised.value.record.failure.message
    assert step_folder("gate").record()["failure"]["reason"] == "GateClosed"
    assert not all(one["passed"] for one in step_folder("gate").left("gate.json"))


def test_loss_that_is_not_a_number_never_passes(judge):
    with pytest.raises(StepFailed):
        judge({"eval_loss": {"max": 1e9}}, {"eval_loss": float("nan")})


def test_misspelt_bound_is_the_users_error_and_names_the_field(judge):
    with pytest.raises(StepFailed) as raised:
        judge({"eval_loss": {"maximum": 3.0}})
    assert raised.value.code == 2
    assert "thresholds.eval_loss.maximum" in raised.value.record.failure.message


def test_default_asks_only_that_tuning_did_no_harm(judge, step_folder):
    default = {"loss_reduction": {"min": 0.0}}
    assert quality_gate.component_spec.inputs["thresholds"].default == default
    assert judge(default).record()["state"] == "SUCCEEDED"
    with pytest.raises(StepFailed):
        judge(default, {"loss_reduction": -0.01})
