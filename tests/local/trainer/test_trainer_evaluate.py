"""Evaluation: losses of both models on the same answers, and what they answer."""

from __future__ import annotations

import math

import pytest

pytestmark = [pytest.mark.local, pytest.mark.trainer]


@pytest.fixture
def tuned(make_job, monkeypatch):
    job = make_job("tuned")
    options = ("--max-steps", "40", "--batch-size", "4", "--max-length", "128", "--learning-rate", "1e-2")
    assert job.main(monkeypatch, *options, "--save-every", "1000") == 0
    return job.output


def test_a_tuned_model_is_measured_and_asked_beside_its_base(tiny_model, tuned, train_file):
    from tunesmith.trainer.evaluate import evaluate

    told = []
    found = evaluate(
        tiny_model, tuned, train_file, max_samples=10, samples=2, max_new_tokens=12,
        progress=lambda what, fraction: told.append((what, fraction)),
    )  # fmt: skip

    assert found["eval_loss"] < 0.75 * found["eval_loss_base"]
    assert found["perplexity"] == pytest.approx(math.exp(found["eval_loss"]))
    assert found["eval_samples"] == 10
    assert len(found["samples"]) == 2
    assert found["samples"][0]["prompt"].startswith("What is the opposite of")
    assert found["samples"][0]["reference"].startswith("The opposite of")
    assert found["samples"][0]["tuned"] != found["samples"][0]["base"]
    assert [fraction for _, fraction in told] == sorted(fraction for _, fraction in told)
    assert told[-1][1] == 1.0


def test_questions_of_ones_own_are_asked_instead(tiny_model, train_file):
    from tunesmith.trainer.evaluate import evaluate

    found = evaluate(
        tiny_model, tiny_model, train_file, max_samples=2, sample_questions=["Who?", "Why?"], max_new_tokens=4
    )  # fmt: skip

    assert [(s["prompt"], s["reference"]) for s in found["samples"]] == [("Who?", None), ("Why?", None)]
    assert found["eval_loss"] == found["eval_loss_base"]


def test_the_mean_weighs_every_answer_token_alike(tiny_model, train_file):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tunesmith.trainer.conversations import read_conversations, tokenize
    from tunesmith.trainer.evaluate import mean_loss

    model = AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    tokens = tokenize(read_conversations(train_file)[:9], AutoTokenizer.from_pretrained(tiny_model), 128)
    total = 0.0
    with torch.no_grad():
        for one in tokens:
            loss = model(input_ids=torch.tensor([one.input_ids]), labels=torch.tensor([one.labels])).loss
            total += float(loss) * one.answer_tokens

    assert mean_loss(model, tokens) == pytest.approx(total / sum(t.answer_tokens for t in tokens), rel=1e-5)


def test_a_batch_of_questions_is_answered_as_each_alone(tuned):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tunesmith.trainer.evaluate import _answers

    model, tokenizer = AutoModelForCausalLM.from_pretrained(tuned).eval(), AutoTokenizer.from_pretrained(tuned)
    prompts = [
        [{"role": "user", "content": "What is the opposite of hot?"}],
        [{"role": "user", "content": "What is the opposite of left? Please. Please."}],
    ]
    together = _answers(model, tokenizer, prompts, 16)
    assert together == [_answers(model, tokenizer, [prompt], 16)[0] for prompt in prompts]


def test_the_same_conversations_are_drawn_for_the_same_seed():
    from tunesmith.trainer.conversations import Conversation
    from tunesmith.trainer.evaluate import draw

    all_of_them = [Conversation([], str(i)) for i in range(50)]
    assert draw(all_of_them, 10, seed=1) == draw(all_of_them, 10, seed=1) != draw(all_of_them, 10, seed=2)
    assert draw(all_of_them, 99, seed=1) == all_of_them
