"""The reference pipeline as a user starts it, with a tiny model and own data: green, and green after a kill."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tunesmith.clusters.local import LocalCluster
from tunesmith.lineage.verify import verify
from tunesmith.resources import PYTORCHJOB

pytestmark = pytest.mark.trainer

HOSTILE = "<script>document.title='owned'</script>"


@pytest.fixture
def data(tmp_path, train_file):
    file = tmp_path / "mine.jsonl"
    hostile = [{"prompt": f"Say it, number {number}", "completion": HOSTILE} for number in range(8)]
    file.write_text(train_file.read_text() + "".join(json.dumps(record) + "\n" for record in hostile))
    return file


@pytest.fixture
def start(tmp_path, tiny_model, data, heed_interrupts):
    started = []

    def run(*arguments, **settings):
        settings = {
            "eval_samples": 4,
            "thresholds": json.dumps({"eval_loss": {"max": 100}}),
            "sample_questions": json.dumps([f"What is {HOSTILE}?"]),
            "resources": json.dumps({"cpu": "500m", "memory": "1Gi"}),
            "batch_size": 2,
            "max_length": 64,
            **settings,
        }
        command = [sys.executable, "-m", "tunesmith", "run", "--workdir", tmp_path / "work", "--data", data]
        command += ["--base-model", tiny_model, "--json", tmp_path / "summary.json", *arguments]
        command += [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=heed_interrupts
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.terminate()
        process.communicate()


@pytest.fixture
def work(tmp_path, running, until):
    folder = tmp_path / "work"
    yield folder
    until(lambda: not running(folder))


def finish(process, folder):
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output + (folder / "state" / "llm_finetune.log").read_text()[-3000:]
    return json.loads((folder.parent / "summary.json").read_text()), output


def steps_trained(folder):
    file = folder / "state" / "llm_finetune.progress.jsonl"
    events = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return max((event["step"] for event in events if event["event"] == "metric"), default=0)


def rank_process(rank, folder):
    """The process of one training rank: the trainer, with its RANK in the environment."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            environment = (place / "environ").read_bytes()
            command = (place / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        ours = str(folder).encode() in environment and f"RANK={rank}".encode() in environment.split(b"\0")
        if ours and command[1:3] == [b"-m", b"tunesmith.trainer"]:
            return int(place.name)
    return None


def test_data_and_model_of_ones_own_train_deploy_and_answer(start, work):
    summary, output = finish(start(max_steps=4), work)
    assert summary["status"] == "SUCCEEDED"
    assert [step["name"] for step in summary["steps"]] == [
        "import-model", "prepare-instructions", "fine-tune", "evaluate-llm", "quality-gate", "kserve-deploy",
        "smoke-test", "run-report",
    ]  # fmt: skip
    assert summary["metrics"]["eval_loss"] > 0
    assert (Path(summary["model_uri"]) / "model.safetensors").is_file()
    assert verify(work).problems == []
    html = Path(summary["report"]).read_text()
    assert HOSTILE not in html
    assert "&lt;script&gt;" in html
    assert "held-out loss" in output


def test_a_killed_rank_is_trained_on_from_the_checkpoint_and_the_report_tells(start, work, until):
    process = start(max_steps=60)
    until(lambda: steps_trained(work) >= 14, 90)
    os.kill(until(lambda: rank_process(1, work)), signal.SIGKILL)
    summary, _ = finish(process, work)
    (tune,) = [step for step in summary["steps"] if step["name"] == "fine-tune"]
    assert summary["status"] == "SUCCEEDED"
    assert tune["restarts"] == 1
    (file,) = Path(summary["model_uri"]).parent.parent.glob("tunesmith/fine-tune/*.1.json")
    record = json.loads(file.read_text())
    assert [attempt["state"] for attempt in record["attempts"]] == ["FAILED", "SUCCEEDED"]
    assert record["attempts"][0]["fault"] == "system"
    assert all(attempt["cost"]["amount"] is not None for attempt in record["attempts"])
    assert record["metrics"]["resumed_from_step"] >= 10
    assert "resumed from the checkpoint" in Path(summary["report"]).read_text()


def test_after_ctrl_c_the_same_command_goes_on_from_the_checkpoint(start, work, until):
    first = start(max_steps=60)
    until(lambda: steps_trained(work) >= 14, 90)
    os.kill(first.pid, signal.SIGINT)
    output, _ = first.communicate(timeout=60)
    assert first.returncode == 130
    assert "Run the same command again" in output
    assert LocalCluster(work / "cluster", revive=False).list(PYTORCHJOB, "default") == []
    summary, _ = finish(start(max_steps=60), work)
    assert summary["metrics"]["resumed_from_step"] >= 10
