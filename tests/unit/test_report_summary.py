import json

from tunesmith.report import render


def test_the_summary_has_the_documented_keys(build_run):
    root = build_run()
    summary = json.loads(json.dumps(render(root, pipeline="llm-finetune").summary, allow_nan=False))
    assert summary["schema"] == "tunesmith.dev/run/v1"
    assert set(summary) == {"schema", "pipeline", "status", "started", "ended", "seconds", "steps", "metrics", "cost",
                            "report", "model_uri", "serving_url"}  # fmt: skip
    for step in summary["steps"]:
        assert set(step) == {
            "name",
            "component",
            "state",
            "seconds",
            "cost",
            "currency",
            "unknown",
            "restarts",
            "metrics",
        }
        assert isinstance(step["cost"], float)
    assert summary["metrics"]["eval_loss_base"] == 3.071
    assert summary["metrics"]["eval_loss"] == 2.068
    assert summary["metrics"]["restarts"] == 1
    assert summary["model_uri"] == str(root / "fine-tune" / "model")
    assert summary["serving_url"] == "http://127.0.0.1:34567"
    assert [step["name"] for step in summary["steps"]][:3] == ["prepare-instructions", "import-model", "fine-tune"]


def test_the_sum_is_that_of_the_steps(build_run):
    summary = render(build_run(), pipeline="p").summary
    assert abs(summary["cost"]["amount"] - sum(step["cost"] for step in summary["steps"])) < 1e-8
    assert summary["cost"]["unknown"] == []


def test_an_unknown_cost_is_null_with_its_reason(build_run):
    summary = render(build_run(gpu="NVIDIA-L4"), pipeline="p").summary
    step = next(step for step in summary["steps"] if step["name"] == "fine-tune")
    assert step["cost"] is None
    assert step["unknown"] == ["no rate for NVIDIA-L4"]


def test_a_failed_step_carries_its_failure(build_run):
    summary = render(build_run(failed=True), pipeline="p").summary
    step = next(step for step in summary["steps"] if step["name"] == "fine-tune")
    assert step["failure"]["fault"] == "user"
    assert step["failure"]["reason"] == "OOMKilled"
    assert summary["serving_url"] is None


def test_the_report_is_found_in_the_record_of_the_step_that_wrote_it(run_builder, tmp_path):
    run = run_builder(tmp_path / "run")
    html = run.artifact("run-report", "html", "system.HTML", "<p>")
    run.record("run-report", "governance/run_report", 1.0, outputs=[html])
    assert render(run.root, pipeline="p").summary["report"] == html.uri


def test_a_metric_that_is_no_number_is_left_out(run_builder, tmp_path):
    run = run_builder(tmp_path / "run")
    run.record("t", "c", 1.0, metrics={"eval_loss": float("nan"), "steps": 3})
    assert render(run.root, pipeline="p").summary["metrics"] == {"steps": 3, "restarts": 0}
