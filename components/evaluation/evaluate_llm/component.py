"""Held-out loss of a tuned model beside its base, with answers side by side."""

from kfp import dsl


@dsl.component(base_image="ghcr.io/tunesmith/trainer:0.1.0", install_kfp_package=False)
def evaluate_llm(
    base_model: dsl.Input[dsl.Model],
    model: dsl.Input[dsl.Model],
    heldout: dsl.Input[dsl.Dataset],
    evaluation: dsl.Output[dsl.Metrics],
    record: dsl.Output[dsl.Artifact],
    max_samples: int = 96,
    max_length: int = 1024,
    sample_questions: list = [],  # noqa: B006 - kfp reads the default from the signature and never changes it
    samples: int = 4,
    max_new_tokens: int = 40,
    seed: int = 17,
):
    """Measure the loss on held-out answers, before and after tuning, and generate answers with both models.

    The step is green when both models were measured on the same samples; it judges nothing (see quality_gate).

    Args:
        base_model: folder of the model before tuning.
        model: folder of the tuned model.
        heldout: JSONL file of chat ``messages`` that training has not seen.
        evaluation: metrics: ``eval_loss``, ``eval_loss_base`` (nats a token of the answers), ``perplexity``,
            ``perplexity_base``, ``loss_reduction`` (share of the base's loss), ``eval_tokens``.
        record: the step's record: what was read and written, with digests, and what it cost.
        max_samples: how many held-out conversations are measured, chosen by ``seed``.
        max_length: tokens of a conversation; longer ones are cut.
        sample_questions: questions to answer with both models; empty takes ``samples`` of the held-out ones.
        samples: how many held-out questions to answer.
        max_new_tokens: length of a generated answer.
        seed: of the choice of samples; answers are greedy.
    """
    import json
    from pathlib import Path

    from tunesmith.launch.progress import say
    from tunesmith.tasks.step import step
    from tunesmith.trainer.evaluate import evaluate

    given = {
        "max_samples": max_samples,
        "max_length": max_length,
        "sample_questions": sample_questions,
        "samples": samples,
        "max_new_tokens": max_new_tokens,
        "seed": seed,
    }
    reads = {"base_model": base_model, "model": model, "heldout": heldout}
    writes = {"evaluation": evaluation}
    with step(
        record,
        component="evaluate_llm",
        parameters=given,
        reads=reads,
        writes=writes,
    ) as this:
        found = evaluate(
            Path(base_model.path),
            Path(model.path),
            Path(heldout.path),
            max_samples=max_samples,
            max_length=max_length,
            sample_questions=sample_questions or None,
            samples=samples,
            max_new_tokens=max_new_tokens,
            seed=seed,
            progress=lambda what, done: say(what),
        )
        this.leave("samples.json", found.pop("samples"))
        found["eval_seconds"] = found.pop("seconds")
        found["loss_reduction"] = 1 - found["eval_loss"] / found["eval_loss_base"] if found["eval_loss_base"] else 0.0
        this.metrics.update({name: float(value) for name, value in found.items() if isinstance(value, (int, float))})
        for name, value in sorted(this.metrics.items()):
            evaluation.log_metric(name, value)
        Path(evaluation.path).parent.mkdir(parents=True, exist_ok=True)
        Path(evaluation.path).write_text(json.dumps(this.metrics, sort_keys=True), encoding="utf-8")
