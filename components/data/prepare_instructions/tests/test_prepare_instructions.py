import json

import pytest
from kfp import dsl

from tunesmith.components.data.prepare_instructions import prepare_instructions
from tunesmith.lineage.digest import digest_path
from tunesmith.tasks.step import StepFailed


@pytest.fixture
def prepare(step_folder):
    """Run the step under a task's name; returns its artifacts and its folder."""

    def run(task="prepare", **arguments):
        step = step_folder(task)
        outputs = {name: step.artifact(dsl.Dataset, name) for name in ("train", "heldout")}
        record = step.artifact(dsl.Artifact, "record")
        prepare_instructions.python_func(**outputs, record=record, **arguments)
        return outputs["train"], outputs["heldout"], step

    return run


@pytest.fixture
def source(tmp_path, conversations):
    file = tmp_path / "source.jsonl"
    file.write_text(conversations(20))
    return file


def lines(artifact):
    with open(artifact.path) as stream:
        return stream.read().splitlines()


def questions(artifact):
    return {json.loads(line)["messages"][0]["content"] for line in lines(artifact)}


def test_no_example_is_both_trained_on_and_held_out(prepare, source):
    train, heldout, _ = prepare(source=str(source), heldout_fraction=0.25)
    assert (len(lines(train)), len(lines(heldout))) == (15, 5)
    assert not questions(train) & questions(heldout)
    assert questions(train) | questions(heldout) == {f"What follows {number}?" for number in range(20)}


def test_same_source_gives_the_same_bytes_and_another_seed_another_split(prepare, source):
    seeds = {"first": 1, "again": 1, "other": 2}
    first, again, other = (lines(prepare(task, source=str(source), seed=seed)[1]) for task, seed in seeds.items())
    assert first == again != other


def test_record_holds_the_digests_of_what_was_written(prepare, source):
    train, heldout, step = prepare(source=str(source))
    record = step.record()
    assert record["state"] == "SUCCEEDED"
    assert {one["name"]: one["digest"] for one in record["outputs"]} == {
        "train": digest_path(train.path).text,
        "heldout": digest_path(heldout.path).text,
    }
    assert record["parameters"]["source"] == str(source)
    assert train.metadata["examples"] == "18"


def test_length_histogram_counts_every_example_once(prepare, source):
    _, _, step = prepare(source=str(source))
    histogram = step.left("length_histogram.json")
    assert sum(histogram["counts"]) == 20
    assert histogram["unit"] == "characters"


def test_line_without_an_answer_fails_the_step_with_its_number_and_leaves_no_data(prepare, source, step_folder):
    source.write_text(source.read_text() + '{"messages": [{"role": "user", "content": "And now?"}]}\n')
    with pytest.raises(StepFailed) as raised:
        prepare(source=str(source))
    step = step_folder("prepare")
    assert "line 21" in raised.value.record.failure.message
    assert step.record()["failure"]["fault"] == "user"
    assert raised.value.code == 2
    assert [path.name for path in (step.run / "prepare").iterdir()] == ["record"]


def test_built_in_source_needs_no_file_and_names_the_python_it_came_from(prepare):
    train, _, step = prepare(max_examples=50)
    assert len(lines(train)) == 45
    assert step.record()["details"]["python"].startswith("3.")
