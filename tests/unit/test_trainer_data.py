from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from tunesmith.errors import BadInput
from tunesmith.trainer import storage
from tunesmith.trainer.conversations import BadData, Tokens, read_conversations
from tunesmith.trainer.evaluate import rows_of
from tunesmith.trainer.progress import Progress, metric_line

GOOD = json.dumps({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "data.jsonl line 2 is not a conversation"),
        ('{"prompt": "q"}', "data.jsonl line 2 is not a conversation"),
        ('{"messages": [{"role": "user"}]}', "data.jsonl line 2 is not a conversation"),
        ('{"messages": "hello"}', "data.jsonl line 2 is not a conversation"),
        ('{"messages": [{"role": "assistant", "content": 3}]}', "data.jsonl line 2: role and content must be text"),
        ('{"messages": [{"role": "user", "content": "q"}]}', "data.jsonl line 2 has no answer"),
        ('{"messages": [{"role": "assistant", "content": " "}]}', "data.jsonl line 2 has no answer"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, problem):
    file = tmp_path / "data.jsonl"
    file.write_text(f"{GOOD}\n{line}\n")
    with pytest.raises(BadData, match=problem):
        read_conversations(file)


def test_a_folder_with_one_file_is_that_file_and_blank_lines_do_not_count(tmp_path):
    (tmp_path / "data.jsonl").write_text(f"{GOOD}\n\n{GOOD}\n")
    assert [c.origin for c in read_conversations(tmp_path)] == ["data.jsonl line 1", "data.jsonl line 3"]


def test_no_file_two_files_and_an_empty_file_are_refused(tmp_path):
    with pytest.raises(BadData, match="there are 0"):
        read_conversations(tmp_path)
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(BadData, match="a.jsonl is empty"):
        read_conversations(tmp_path)
    (tmp_path / "b.jsonl").write_text("")
    with pytest.raises(BadData, match="there are 2"):
        read_conversations(tmp_path)


def test_rows_hold_every_sample_once_and_no_more_than_the_limit():
    samples = [Tokens([1] * n, [1] * n) for n in (50, 100, 30, 300, 70, 20)]
    rows = rows_of(samples, 128)
    assert sorted(len(s.input_ids) for row in rows for s in row) == [20, 30, 50, 70, 100, 300]
    assert all(sum(len(s.input_ids) for s in row) <= 128 for row in rows if len(row) > 1)
    assert len(rows) == 4


def test_the_first_token_counts_for_no_loss():
    assert Tokens([1, 2, 3], [1, 2, -100]).answer_tokens == 1


def test_a_metric_line_has_its_time_first():
    line = metric_line({"step": 3, "loss": 2.25, "learning_rate": 2e-5}, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert line == "2026-01-02T03:04:05.000Z step=3 loss=2.25 learning_rate=2e-05"


def test_metrics_of_a_run_without_a_logged_step_have_no_invented_numbers():
    metrics = Progress().metrics(steps=0, resumed_from_step=0, ranks=1)
    assert metrics["train_loss"] is metrics["first_loss"] is metrics["tokens_per_second"] is None


def test_a_folder_elsewhere_is_fetched_and_published_with_its_sign_last(tmp_path):
    folder = tmp_path / "model"
    (folder / "adapter").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "adapter" / "weights").write_text("w")

    storage.publish(folder, "memory://bucket/model", last="config.json")

    fetched = storage.fetch("memory://bucket/model")
    assert sorted(p.relative_to(fetched).as_posix() for p in fetched.rglob("*") if p.is_file()) == [
        "adapter/weights", "config.json",
    ]  # fmt: skip
    assert storage.names_at("memory://bucket/model") == ["adapter", "config.json"]


@pytest.mark.parametrize("location", ["/nowhere/at/all", "memory://nowhere/at/all"])
def test_nothing_at_the_location_is_a_users_mistake(location):
    with pytest.raises(BadInput, match="there is nothing at"):
        storage.fetch(location)
