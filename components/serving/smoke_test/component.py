"""Real questions to a service that was just deployed."""

from kfp import dsl


@dsl.component(base_image="ghcr.io/tunesmith/launcher:0.1.0", install_kfp_package=False)
def smoke_test(
    url: str,
    metrics: dsl.Output[dsl.Metrics],
    record: dsl.Output[dsl.Artifact],
    questions: list = ["What does the Python function len do?"],  # noqa: B006 - kfp never changes the default
    model_name: str = "",
    max_tokens: int = 32,
    max_seconds: float = 120.0,
):
    """Ask a service real questions through the OpenAI API and record how long each answer took.

    The step is green when every question got an answer with text in it within ``max_seconds``.

    Args:
        url: address of the service; the API is under ``/v1``.
        metrics: ``latency_p50_seconds``, ``latency_max_seconds``, ``answers``, and ``answer_tokens_per_second`` where
            the service reports tokens.
        record: the step's record: answers, latencies, and what the step cost.
        questions: what to ask.
        model_name: as the service knows the model; empty asks the service.
        max_tokens: length of an answer.
        max_seconds: how long one answer may take.
    """
    import json
    from pathlib import Path

    from tunesmith.tasks.smoke import ask_all
    from tunesmith.tasks.step import step

    given = {
        "url": url,
        "questions": questions,
        "model_name": model_name,
        "max_tokens": max_tokens,
        "max_seconds": max_seconds,
    }
    with step(
        record,
        component="smoke_test",
        parameters=given,
        writes={"metrics": metrics},
    ) as this:
        ask_all(this, url, questions, model_name=model_name, max_tokens=max_tokens, max_seconds=max_seconds)
        for name, value in sorted(this.metrics.items()):
            metrics.log_metric(name, value)
        Path(metrics.path).parent.mkdir(parents=True, exist_ok=True)
        Path(metrics.path).write_text(json.dumps(this.metrics, sort_keys=True), encoding="utf-8")
