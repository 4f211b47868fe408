"""The target Kubeflow: tunesmith's own components, which launch on the cluster that they run in."""

from __future__ import annotations

from tunesmith.components.data.import_model import import_model
from tunesmith.components.data.prepare_instructions import prepare_instructions
from tunesmith.components.evaluation.evaluate_llm import evaluate_llm
from tunesmith.components.evaluation.quality_gate import quality_gate
from tunesmith.components.governance.run_report import run_report
from tunesmith.components.serving.kserve_deploy import kserve_deploy
from tunesmith.components.serving.smoke_test import smoke_test
from tunesmith.components.training.fine_tune import fine_tune
from tunesmith.targets import Steps

STEPS = Steps(
    import_model=import_model,
    prepare=prepare_instructions,
    train=fine_tune,
    evaluate=evaluate_llm,
    gate=quality_gate,
    deploy=kserve_deploy,
    smoke_test=smoke_test,
    report=run_report,
)
