"""Stop a pipeline whose model is not better than its base."""

from kfp import dsl

from tunesmith.components.evaluation.quality_gate import quality_gate


@dsl.pipeline(name="judge-an-evaluation")
def judge_an_evaluation(metrics_uri: str = "s3://evaluations/latest.json"):
    """The held-out loss must be at most 3.0, and at least a fifth below the base model's."""
    evaluation = dsl.importer(artifact_uri=metrics_uri, artifact_class=dsl.Metrics)
    gate = quality_gate(
        evaluation=evaluation.output,
        thresholds={"eval_loss": {"max": 3.0, "max_ratio_to_base": 0.8}},
    )
    gate.set_caching_options(False)
