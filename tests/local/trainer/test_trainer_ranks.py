"""Two ranks, as processes of their own: they agree on when to stop, resume exactly, and notice a lost peer."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

pytestmark = [pytest.mark.local, pytest.mark.trainer]

STEPS = ("--batch-size", "4", "--max-length", "128", "--learning-rate", "1e-2")
LONG = (*STEPS, "--max-steps", "150", "--save-every", "1000")
ENDLESS = (*STEPS, "--max-steps", "1000000", "--save-every", "1000000")
PATIENCE_S = 60  # for a start on a busy machine; nothing waits for it when all is well


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture
def start(request):
    """Starts both ranks of a job; ends what a failed test leaves."""
    started = []

    def start(job, *arguments):
        port = free_port()
        started.extend(ranks := [job.start(rank, 2, port, *arguments) for rank in (0, 1)])
        return ranks

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def wait_for_step(process, step: int) -> None:
    for line in process.stdout:
        if f" step={step} " in line:
            return
    raise AssertionError(f"the run ended before step {step}")


def finish(processes) -> list[int]:
    codes = []
    for process in processes:
        process.stdout.read()
        codes.append(process.wait(timeout=PATIENCE_S))
    return codes


def test_sigterm_to_one_rank_saves_and_the_resumed_run_equals_an_unbroken_one(make_job, start, monkeypatch):
    unbroken, cut, alone = make_job("unbroken"), make_job("cut"), make_job("alone")
    assert finish(start(unbroken, *LONG)) == [0, 0], (unbroken.folder / "stderr-0").read_text()

    ranks = start(cut, *LONG)
    wait_for_step(ranks[0], 3)
    ranks[1].terminate()
    assert finish(ranks) == [143, 143], (cut.folder / "stderr-0").read_text()

    (checkpoint,) = cut.checkpoints.glob("checkpoint-*")
    assert (checkpoint / "complete.json").exists()
    stopped_at = int(checkpoint.name.removeprefix("checkpoint-"))
    assert 3 <= stopped_at < 150
    assert not cut.output.exists()

    assert finish(start(cut, *LONG)) == [0, 0], (cut.folder / "stderr-0").read_text()
    assert cut.result()["metrics"]["resumed_from_step"] == stopped_at
    assert cut.history() == unbroken.history()
    assert cut.result()["metrics"]["tokens"] == unbroken.result()["metrics"]["tokens"]

    # What two ranks learn together is what one learns from the same batches (up to the epoch's last, uneven one).
    assert alone.main(monkeypatch, *LONG, "--max-steps", "4", "--schedule-steps", "150") == 0
    together = [loss for _, loss in unbroken.history()[:4]]
    assert [loss for _, loss in alone.history()] == pytest.approx(together, rel=1e-4)


def test_a_killed_rank_ends_the_other_within_seconds_as_a_systems_fault(make_job, start):
    job = make_job()
    ranks = start(job, *ENDLESS)
    wait_for_step(ranks[0], 3)

    ranks[1].kill()
    killed = time.monotonic()
    assert finish(ranks) == [138, -signal.SIGKILL]

    assert time.monotonic() - killed < 20
    error = job.result()["error"]
    assert (error["fault"], error["reason"]) == ("system", "LostPeer")


def test_torchrun_ends_with_143_when_its_workers_saved_and_stopped(make_job):
    job = make_job()
    runner = subprocess.Popen(
        [
            sys.executable, "-m", "tunesmith.trainer.torchrun", "--standalone", "--nproc-per-node", "2",
            "-m", "tunesmith.trainer", *ENDLESS,
        ],
        env={**os.environ, **job.env}, stdout=subprocess.PIPE, stderr=(job.folder / "stderr").open("w"), text=True,
    )  # fmt: skip
    try:
        wait_for_step(runner, 3)
        runner.terminate()
        assert finish([runner]) == [143], (job.folder / "stderr").read_text()
    finally:
        runner.kill()
        runner.wait()
        runner.stdout.close()
    assert [p.name for p in job.checkpoints.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", p.name)]


def test_bad_data_is_one_sentence_from_one_rank_and_exit_code_2(make_job, start, tmp_path):
    data = tmp_path / "bad.jsonl"
    data.write_text('{"messages": [{"role": "user", "content": "Hm?"}]}\n')
    job = make_job(TUNESMITH_INPUT_TRAIN=str(data))

    assert finish(start(job, *LONG)) == [2, 2]

    assert (job.folder / "stderr-0").read_text().splitlines() == [
        "error: bad.jsonl line 1 has no answer: it needs a message with role assistant"
    ]
    assert job.result()["error"]["reason"] == "BadData"
