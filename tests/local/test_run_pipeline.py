"""A pipeline on this machine, through kfp.local and LocalCluster: what is killed, what goes on, what is left over."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tunesmith.clusters.local import LocalCluster
from tunesmith.lineage.verify import verify
from tunesmith.resources import POD, PYTORCHJOB

PIPELINE = """
from kfp import dsl
from tunesmith.components.governance.run_report import run_report
from tunesmith.components.training.pytorch_job import pytorch_job

@dsl.pipeline(name="train-anything")
def pipeline(script: str, replicas: int = 1, policy: dict = {}, namespace: str = ""):
    with dsl.ExitHandler(run_report(pipeline_name="train-anything")):
        first = pytorch_job(image="busybox", command=["sh", "-c", "echo seed > $TUNESMITH_OUTPUT_MODEL/seed"])
        pytorch_job(
            namespace=namespace, image="python:3.12", command=["sh", "-c"], args=[script],
            base_model=first.outputs["model"], replicas=replicas, policy=policy,
        )
"""

DRIVER = """
import dataclasses, json, sys
from pathlib import Path
from tunesmith.targets.local.run import run_pipeline
from tunesmith.targets.local.workdir import Workdir
workdir, arguments, options = Workdir(Path(sys.argv[1])), json.loads(sys.argv[2]), json.loads(sys.argv[3])
result = run_pipeline("any", "written_by_a_test:pipeline", arguments, workdir, **options)
steps = {name: dataclasses.asdict(step) for name, step in result.view.steps.items()}
print(json.dumps({"status": result.status, "root": str(result.root), "steps": steps, "tail": result.log_tail}))
"""


@pytest.fixture
def start(tmp_path, heed_interrupts):
    """Start a run in a process of its own; the one that starts it is what tests kill."""
    (tmp_path / "written_by_a_test.py").write_text(PIPELINE)
    started = []

    def run(script, options=None, **arguments):
        values = [str(tmp_path / "work"), json.dumps({"script": script, **arguments}), json.dumps(options or {})]
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, *values],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            start_new_session=True,
            preexec_fn=heed_interrupts,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def work(tmp_path, running, until):
    """The WORKDIR; when a test is over nothing of it may be running."""
    folder = tmp_path / "work"
    yield folder
    until(lambda: not running(folder))


def finish(process):
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def jobs(folder):
    return LocalCluster(folder / "cluster", revive=False).everywhere(PYTORCHJOB)


def progress(folder):
    file = folder / "state" / "any.progress.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def running_in(folder, text):
    """A job runs, and its script has got as far as writing ``text``."""
    return any(text in log.read_text(errors="replace") for log in (folder / "cluster" / "logs").glob("*"))


def step_process(folder, task):
    """The process of the launching step: KFP's executor and the task's folder are in its command line."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = (place / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "kfp.dsl.executor_main" in command and f"/{task}/" in " ".join(command) and str(folder) in " ".join(command):
            return int(place.name)
    return None


def test_any_image_and_command_trains_with_inputs_and_outputs(start, work):
    result = finish(start("cat $TUNESMITH_INPUT_BASE_MODEL/seed > $TUNESMITH_OUTPUT_MODEL/tuned; echo out"))
    assert result["status"] == "SUCCEEDED"
    assert (Path(result["root"]) / "pytorch-job-2" / "model" / "tuned").read_text() == "seed\n"
    assert verify(work).problems == []


def test_a_pipeline_of_ones_own_runs_from_its_file(start, work, tmp_path):
    command = [sys.executable, "-m", "tunesmith", "run", f"{tmp_path / 'written_by_a_test.py'}:pipeline"]
    command += ["--workdir", work, "--json", tmp_path / "summary.json"]
    command += ["--set", "script=echo own > $TUNESMITH_OUTPUT_MODEL/m"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["pipeline"] == "pipeline"
    assert (Path(summary["model_uri"]) / "m").read_text() == "own\n"
    assert Path(summary["report"]).name == "report.html"


def test_the_job_knows_nothing_of_the_callers_environment(start, work, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "hunter2")
    result = finish(start("env > $TUNESMITH_OUTPUT_MODEL/env"))
    environment = (Path(result["root"]) / "pytorch-job-2" / "model" / "env").read_text()
    assert "hunter2" not in environment
    assert "PYTHONPATH" not in environment


def test_a_failing_command_fails_its_step_with_its_last_words_and_the_report_is_written(start, work):
    result = finish(start("echo getting there; echo kaputt >&2; exit 7"))
    failure = result["steps"]["pytorch-job-2"]["failure"]
    assert result["status"] == "FAILED"
    assert failure["fault"] == "user"
    assert "exit code 7" in failure["message"]
    assert "kaputt" in failure["log_tail"]
    report = (Path(result["root"]) / "run-report" / "report").read_text()
    assert "exit code 7" in report
    assert "kaputt" in report


def test_a_job_that_writes_no_output_is_not_green(start, work):
    result = finish(start("true"))
    assert result["status"] == "FAILED"
    assert "wrote nothing" in result["steps"]["pytorch-job-2"]["failure"]["message"]


def test_a_killed_replica_is_launched_again_and_the_run_is_green(start, work):
    script = (
        "if [ ! -e $TUNESMITH_CHECKPOINTS/at ]; then mkdir -p $TUNESMITH_CHECKPOINTS; touch $TUNESMITH_CHECKPOINTS/at; "
        "kill -9 $$$$; fi; echo resumed > $TUNESMITH_OUTPUT_MODEL/m"
    )
    result = finish(start(script))
    (record,) = [json.loads(p.read_text()) for p in Path(result["root"]).glob("tunesmith/pytorch-job-2/*.json")]
    assert result["status"] == "SUCCEEDED"
    assert [attempt["state"] for attempt in record["attempts"]] == ["FAILED", "SUCCEEDED"]
    assert all(attempt["cost"]["amount"] is not None for attempt in record["attempts"])


SLOW = "echo began; while [ ! -e {go} ]; do sleep 0.1; done; echo done > $TUNESMITH_OUTPUT_MODEL/m"


def test_a_killed_launcher_is_followed_by_one_that_attaches(start, work, until, tmp_path):
    script = SLOW.format(go=tmp_path / "go")
    first = start(script)
    until(lambda: running_in(work, "began"))
    os.kill(until(lambda: step_process(work, "pytorch-job-2")), signal.SIGKILL)
    assert finish(first)["status"] == "INTERRUPTED"
    (before,) = [job for job in jobs(work) if "-2-" in job["metadata"]["name"]]
    second = start(script)
    until(lambda: any(event["event"] == "attached" and event["task"] == "pytorch-job-2" for event in progress(work)))
    (tmp_path / "go").touch()
    result = finish(second)
    assert result["status"] == "SUCCEEDED"
    assert (Path(result["root"]) / "pytorch-job-2" / "model" / "m").exists()
    (record,) = [json.loads(p.read_text()) for p in Path(result["root"]).glob("tunesmith/pytorch-job-2/*.json")]
    assert [attempt["uid"] for attempt in record["attempts"]] == [before["metadata"]["uid"]]


def test_a_killed_command_leaves_the_job_and_the_next_one_attaches(start, work, until, tmp_path):
    script = SLOW.format(go=tmp_path / "go")
    first = start(script)
    until(lambda: running_in(work, "began"))
    first.kill()
    until(lambda: step_process(work, "pytorch-job-2") is None)
    second = start(script)
    until(lambda: any(event["event"] == "attached" and event["task"] == "pytorch-job-2" for event in progress(work)))
    (tmp_path / "go").touch()
    assert finish(second)["status"] == "SUCCEEDED"


def test_ctrl_c_ends_jobs_and_processes(start, work, until):
    process = start("echo began; sleep 600")
    until(lambda: running_in(work, "began"))
    os.kill(process.pid, signal.SIGINT)
    assert finish(process)["status"] == "INTERRUPTED"
    assert jobs(work) == []
    assert LocalCluster(work / "cluster", revive=False).list(POD, "default") == []


def test_ctrl_c_with_detach_leaves_the_job(start, work, until, tmp_path):
    process = start(SLOW.format(go=tmp_path / "go"), {"detach": True})
    until(lambda: running_in(work, "began"))
    os.kill(process.pid, signal.SIGTERM)
    assert finish(process)["status"] == "INTERRUPTED"
    assert len(jobs(work)) == 2
    (tmp_path / "go").touch()


def test_other_arguments_end_the_interrupted_run_before_they_begin(start, work, until, tmp_path):
    first = start(SLOW.format(go=tmp_path / "never"))
    until(lambda: running_in(work, "began"))
    first.kill()
    until(lambda: step_process(work, "pytorch-job-2") is None)
    assert finish(start("echo other > $TUNESMITH_OUTPUT_MODEL/m"))["status"] == "SUCCEEDED"


def test_two_runs_of_a_pipeline_in_one_folder_are_refused(start, work, until, tmp_path):
    first = start(SLOW.format(go=tmp_path / "go"))
    until(lambda: running_in(work, "began"))
    second = start("true")
    _, err = second.communicate(timeout=60)
    assert "another run of any is going on" in err
    (tmp_path / "go").touch()
    assert finish(first)["status"] == "SUCCEEDED"


def test_ctrl_c_ends_jobs_in_other_namespaces_too(start, work, until):
    process = start("echo began; sleep 600", namespace="team-a")
    until(lambda: running_in(work, "began"))
    os.kill(process.pid, signal.SIGINT)
    finish(process)
    assert jobs(work) == []


def test_a_command_killed_at_once_leaves_no_engine_behind(start, work, until, running):
    first = start("echo began; sleep 600")
    until(lambda: any("targets.local.engine" in command for command in running(work).values()))
    first.kill()
    until(lambda: not any("targets.local.engine" in command for command in running(work).values()))
    assert finish(start("echo other > $TUNESMITH_OUTPUT_MODEL/m"))["status"] == "SUCCEEDED"


def interrupt_after_the_job(start, work, until, script):
    """Kill the command when the job has ended and its output is recorded; the next run takes over the same job."""
    first = start(script)
    until(lambda: any(e["event"] == "finished" and e["task"] == "pytorch-job" for e in progress(work)))
    until(lambda: running_in(work, "began"))
    first.kill()
    until(lambda: step_process(work, "pytorch-job-2") is None)


def test_a_run_that_goes_on_leaves_the_records_of_the_first_one_true(start, work, until, tmp_path):
    script = SLOW.format(go=tmp_path / "go")
    interrupt_after_the_job(start, work, until, script)
    (tmp_path / "go").touch()
    assert finish(start(script))["status"] == "SUCCEEDED"
    assert verify(work).problems == []


def test_an_output_that_was_changed_before_the_run_goes_on_is_refused(start, work, until, tmp_path):
    script = SLOW.format(go=tmp_path / "go")
    interrupt_after_the_job(start, work, until, script)
    (output,) = (work / "runs").glob("*/pytorch-job/model/seed")
    output.write_text("EVIL")
    (tmp_path / "go").touch()
    result = finish(start(script))
    assert result["status"] == "FAILED"
    assert result["steps"]["pytorch-job"]["failure"]["reason"] == "TamperedOutput"


def test_log_lines_that_look_like_metrics_do_not_hide_the_reason(start, work):
    result = finish(start("echo step=1 loss=0.5.; echo step=2 loss=eval; echo the reason >&2; exit 3"))
    assert "the reason" in result["steps"]["pytorch-job-2"]["failure"]["log_tail"]


def test_an_output_that_leads_elsewhere_or_is_empty_is_not_green(start, work):
    script = "rmdir $TUNESMITH_OUTPUT_MODEL; ln -s /etc $TUNESMITH_OUTPUT_MODEL"
    assert finish(start(script))["status"] == "FAILED"
    assert finish(start("mkdir $TUNESMITH_OUTPUT_MODEL/empty"))["status"] == "FAILED"


def test_a_replica_that_still_writes_when_the_master_has_ended_is_waited_for(start, work):
    script = (
        # no double quotes: kfp.local puts a parameter that stands inside a list into JSON as it is
        "[ $RANK = 0 ] && { sleep 0.3; echo 0 > $TUNESMITH_OUTPUT_MODEL/m; exit 0; }; "
        "trap 'sleep 1; echo late > $TUNESMITH_OUTPUT_MODEL/late; exit 0' TERM; while :; do sleep 0.05; done"
    )
    assert finish(start(script, replicas=2))["status"] == "SUCCEEDED"
    assert verify(work).problems == []
