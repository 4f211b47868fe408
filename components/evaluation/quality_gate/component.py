"""A gate: typed thresholds on metrics, and a pipeline that stops where they are not met."""

from kfp import dsl


@dsl.component(base_image="ghcr.io/tunesmith/launcher:0.1.0", install_kfp_package=False)
def quality_gate(
    evaluation: dsl.Input[dsl.Metrics],
    record: dsl.Output[dsl.Artifact],
    thresholds: dict = {"loss_reduction": {"min": 0.0}},  # noqa: B006 - kfp reads the default and never changes it
):
    """Let the pipeline go on only if every metric is within its thresholds.

    The step is green when all are; otherwise it fails with every metric, its value and its threshold in the message. A
    threshold on a metric that was not measured is a failure too.

    Args:
        evaluation: metrics of an evaluation, such as evaluate_llm's.
        record: the step's record: what was read, every verdict, and what it cost.
        thresholds: for each metric one or more of ``min`` and ``max`` (on its value) and ``max_ratio_to_base`` (on its
            value divided by the metric of the same name with ``_base``), for example
            ``{"eval_loss": {"max": 3.0, "max_ratio_to_base": 0.8}}``.
    """
    import json
    from pathlib import Path

    from tunesmith.tasks.gate import judge, require
    from tunesmith.tasks.step import step

    with step(
        record,
        component="quality_gate",
        parameters={"thresholds": thresholds},
        reads={"evaluation": evaluation},
    ) as this:
        verdicts = judge(json.loads(Path(evaluation.path).read_text(encoding="utf-8")), thresholds)
        this.leave("gate.json", [verdict.to_json() for verdict in verdicts])
        require(verdicts)
