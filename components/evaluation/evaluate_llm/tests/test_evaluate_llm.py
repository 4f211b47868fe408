import json
import math
import shutil

import pytest
from kfp import dsl

from tunesmith.components.evaluation.evaluate_llm import evaluate_llm
from tunesmith.tasks.step import StepFailed

pytestmark = pytest.mark.trainer


@pytest.fixture
def better_model(small_model, tmp_path):
    """The small model after some steps on one conversation of the kind that is held out."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path / "better"
    shutil.copytree(small_model, folder)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor([tokenizer("user\nWhat follows 3?<|im_end|>\nassistant\n4 follows 3.<|im_end|>")["input_ids"]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(10):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def evaluate(step_folder, small_model, conversations):
    """Compare a model with the small one; returns the metrics artifact and the step's folder."""

    def run(model, heldout=None, **arguments):
        step = step_folder("evaluate")
        evaluation = step.artifact(dsl.Metrics, "evaluation")
        evaluate_llm.python_func(
            base_model=dsl.Model(name="model", uri=str(small_model), metadata={}),
            model=dsl.Model(name="model", uri=str(model), metadata={}),
            heldout=step_folder("prepare").artifact(dsl.Dataset, "heldout", heldout or conversations(6)),
            evaluation=evaluation,
            record=step.artifact(dsl.Artifact, "record"),
            samples=2,
            max_new_tokens=4,
            **arguments,
        )
        return evaluation, step

    return run


def test_model_that_is_its_own_base_gains_nothing(evaluate, small_model):
    evaluation, _ = evaluate(small_model)
    assert evaluation.metadata["eval_loss"] == evaluation.metadata["eval_loss_base"]
    assert evaluation.metadata["loss_reduction"] == 0


def test_better_model_has_a_lower_loss_and_the_figures_agree_with_each_other(evaluate, better_model):
    evaluation, step = evaluate(better_model)
    found = evaluation.metadata
    assert found["eval_loss"] < found["eval_loss_base"]
    assert found["perplexity"] == pytest.approx(math.exp(found["eval_loss"]))
    assert found["loss_reduction"] == pytest.approx(1 - found["eval_loss"] / found["eval_loss_base"])
    with open(evaluation.path) as stream:
        assert json.load(stream) == step.record()["metrics"]


def test_answers_of_both_models_stand_side_by_side(evaluate, better_model):
    _, step = evaluate(better_model)
    samples = step.left("samples.json")
    assert [set(one) for one in samples] == [{"prompt", "reference", "base", "tuned"}] * 2


def test_questions_of_ones_own_take_the_place_of_held_out_ones(evaluate, small_model):
    _, step = evaluate(small_model, sample_questions=["Who are you?"])
    assert [(one["prompt"], one["reference"]) for one in step.left("samples.json")] == [("Who are you?", None)]


def test_held_out_data_that_is_none_fails_the_step(evaluate, small_model):
    with pytest.raises(StepFailed) as raised:
        evaluate(small_model, heldout="not a conversation\n")
    assert raised.value.record.state == "FAILED"
