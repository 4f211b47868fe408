import contextlib
import json
from pathlib import Path

import pytest
from kfp import dsl

from tunesmith.components.data.prepare_instructions import prepare_instructions
from tunesmith.components.evaluation.quality_gate import quality_gate
from tunesmith.components.governance.run_report import run_report
from tunesmith.lineage.digest import digest_text
from tunesmith.tasks.step import StepFailed


@pytest.fixture
def report(step_folder):
    """Write the report of what ran so far; returns the page, the summary in Markdown, and the step's folder."""

    def run(state="SUCCEEDED"):
        step = step_folder("run-report")
        page, summary = step.artifact(dsl.HTML, "report"), step.artifact(dsl.Markdown, "summary")
        status = dsl.PipelineTaskFinalStatus(
            state=state, pipeline_job_resource_name="run-1", pipeline_task_name="exit-handler-1",
            error_code=None, error_message=None,
        )  # fmt: skip
        run_report.python_func("the-pipeline", page, summary, step.artifact(dsl.Artifact, "record"), status)
        return Path(page.path).read_text(), Path(summary.path).read_text(), step

    return run


@pytest.fixture
def gate(step_folder):
    """Run the gate in the same run on a loss of 2.5."""

    def run(**threshold):
        metrics = step_folder("evaluate").artifact(dsl.Metrics, "evaluation", json.dumps({"eval_loss": 2.5}))
        step = step_folder("quality-gate")
        with contextlib.suppress(StepFailed):
            quality_gate.python_func(metrics, step.artifact(dsl.Artifact, "record"), {"eval_loss": threshold})
        return step

    return run


def test_report_of_a_failed_run_names_the_step_that_failed_and_why(report, gate, step_folder, tmp_path, conversations):
    source = tmp_path / "source.jsonl"
    source.write_text(conversations(20))
    step = step_folder("prepare-instructions")
    outputs = [step.artifact(dsl.Dataset, name) for name in ("train", "heldout")]
    prepare_instructions.python_func(*outputs, step.artifact(dsl.Artifact, "record"), source=str(source))
    gate(max=2.0)
    page, summary, folder = report(state="FAILED")
    for text in (page, summary):
        assert "the-pipeline" in text
        assert "prepare-instructions" in text
        assert "is 2.5, wanted" in text
    assert folder.record()["state"] == "SUCCEEDED"
    assert folder.left("summary.json")["status"] == "FAILED"


def test_record_of_the_report_follows_the_record_of_every_step(report, gate):
    step = gate(max=3.0)
    _, _, folder = report()
    texts = [file.read_text() for file in (step.run / "tunesmith" / "quality-gate").glob("*.1.json")]
    assert folder.record()["prev"] == [digest_text(text) for text in texts]


def test_hostile_text_in_a_record_stays_text(report, gate, step_folder, tmp_path):
    hostile = tmp_path / "<script>alert(1)</script>"
    step = step_folder("prepare-instructions")
    outputs = [step.artifact(dsl.Dataset, name) for name in ("train", "heldout")]
    with pytest.raises(StepFailed):
        prepare_instructions.python_func(*outputs, step.artifact(dsl.Artifact, "record"), source=str(hostile))
    page, _, _ = report(state="FAILED")
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_run_in_which_no_step_left_a_record_has_a_report_too(report):
    page, summary, _ = report(state="FAILED")
    assert "the-pipeline" in page
    assert "the-pipeline" in summary
