"""Around every step: inputs are checked, and what was done is recorded whether it succeeded or not."""

import json
from decimal import Decimal
from pathlib import Path

import pytest
from kfp import dsl

from tunesmith.errors import BadInput
from tunesmith.lineage.record import KEY_DIGEST, KEY_RECORD, KEY_RECORD_DIGEST, LIMIT_BYTES, Record
from tunesmith.tasks.step import StepFailed, step


@pytest.fixture
def run(step_folder):
    """Run a step with one input and one output; the body gets both and the step."""

    def go(task, body, *, source=None, parameters=None):
        folder = step_folder(task)
        record = folder.artifact(dsl.Artifact, "record")
        written = folder.artifact(dsl.Dataset, "out")
        with step(
            record,
            component="quality_gate",
            parameters=parameters or {},
            reads={"source": source},
            writes={"out": written},
        ) as this:
            body(this, written)
        return record, written

    return go


def write(text):
    def body(this, written):
        with open(written.path, "w") as file:
            file.write(text)

    return body


def fail(error):
    def body(this, written):
        raise error

    return body


def test_a_record_names_inputs_and_outputs_with_digests_and_follows_its_producer(run, step_folder):
    _, made = run("first", write("hello"))
    run("second", write("world"), source=made)
    first, second = step_folder("first").record(), step_folder("second").record()
    assert second["inputs"][0]["digest"] == first["outputs"][0]["digest"]
    assert second["prev"] == [made.metadata[KEY_RECORD_DIGEST]]
    assert first["state"] == second["state"] == "SUCCEEDED"


def test_the_artifact_carries_the_very_text_of_the_file(run, step_folder):
    record, _ = run("first", write("hello"))
    (file,) = (step_folder("first").run / "tunesmith" / "first").glob("*.json")
    assert record.metadata[KEY_RECORD] == file.read_text() == Path(record.path).read_text()


def test_a_changed_input_is_refused_and_the_refusal_recorded(run, step_folder):
    _, made = run("first", write("hello"))
    write("Hello")(None, made)
    with pytest.raises(StepFailed) as failed:
        run("second", write("world"), source=made)
    assert failed.value.code == 1
    assert step_folder("second").record()["failure"]["reason"] == "TamperedInput"


@pytest.mark.parametrize(
    ("error", "code", "state", "fault"),
    [
        pytest.param(BadInput("line 3 is not JSON"), 2, "FAILED", "user", id="the user's input"),
        pytest.param(RuntimeError("who knows"), 1, "FAILED", "system", id="a bug of ours"),
        pytest.param(KeyboardInterrupt(), 130, "CANCELLED", "user", id="an interruption"),
    ],
)
def test_a_failure_is_recorded_before_the_step_ends(run, step_folder, error, code, state, fault):
    with pytest.raises(StepFailed) as failed:
        run("broken", fail(error))
    record = step_folder("broken").record()
    assert failed.value.code == code
    assert (record["state"], record["failure"]["fault"]) == (state, fault)
    assert record["outputs"][0]["digest"] == ""


def test_an_output_that_was_not_written_fails_the_step(run):
    with pytest.raises(StepFailed):
        run("lazy", lambda this, written: None)


def test_secrets_among_the_parameters_are_redacted_at_any_depth(run, step_folder):
    run("s", write("x"), parameters={"env": {"HF_TOKEN": "hunter2", "max_tokens": 7}, "password": "hunter2"})
    text = json.dumps(step_folder("s").record())
    assert "hunter2" not in text
    assert step_folder("s").record()["parameters"]["env"]["max_tokens"] == 7


def test_a_record_never_outgrows_its_limit(run, step_folder):
    huge = {f"parameter_{number}": "x" * 400 for number in range(200)}
    with pytest.raises(StepFailed):
        run("huge", fail(RuntimeError("boom " * 5000)), parameters=huge)
    (file,) = (step_folder("huge").run / "tunesmith" / "huge").glob("*.json")
    assert len(file.read_bytes()) <= LIMIT_BYTES
    assert Record.parse(file.read_text()).state == "FAILED"


def test_a_second_execution_of_a_step_has_a_record_of_its_own(run, step_folder):
    run("again", write("one"))
    run("again", write("two"))
    folder = step_folder("again").run / "tunesmith" / "again"
    attempts = [json.loads(file.read_text())["attempt"] for file in folder.glob("*.json")]
    assert sorted(attempts) == [1, 2]


def test_the_same_work_has_the_same_resume_key_in_another_run_and_other_work_has_not(run):
    keys = []

    def body(this, written):
        keys.append(this.resume_key)
        write("x")(this, written)

    run("a", body, parameters={"steps": 1})
    run("b", body, parameters={"steps": 1})
    run("c", body, parameters={"steps": 2})
    assert keys[0] == keys[1] != keys[2]


def test_a_step_is_priced_by_its_footprint_and_the_time_it_took(run, step_folder):
    run("priced", write("x"))
    cost = step_folder("priced").record()["cost"]
    assert Decimal(cost["amount"]) > 0
    assert {line["resource"] for line in cost["lines"]} == {"cpu", "memory"}


def test_outputs_carry_their_digest_for_the_next_step(run):
    _, made = run("first", write("hello"))
    assert made.metadata[KEY_DIGEST].startswith("sha256:")


def test_what_an_interrupted_execution_cost_is_counted_by_the_one_that_goes_on(run, step_folder):
    with pytest.raises(StepFailed):
        run("cut", fail(KeyboardInterrupt()))
    interrupted = Decimal(step_folder("cut").record()["cost"]["amount"])
    run("cut", write("done"))
    assert interrupted > 0
    assert Decimal(step_folder("cut").record()["cost"]["amount"]) > interrupted


def test_the_id_of_an_error_is_recorded_so_that_it_can_be_looked_up(run, step_folder):
    with pytest.raises(StepFailed):
        run("closed", fail(BadInput("no", "invalid-name")))
    assert step_folder("closed").record()["failure"]["id"] == "invalid-name"


def test_a_body_that_exits_is_recorded_and_never_green(run, step_folder):
    with pytest.raises(StepFailed) as failed:
        run("exits", fail(SystemExit(0)))
    assert failed.value.code == 1
    assert step_folder("exits").record()["failure"]["reason"] == "Exited"


def test_secrets_do_not_come_back_through_messages_or_urls(run, step_folder):
    parameters = {
        "env": {"PGPASSWD": "hunter2", "AWS_ACCESS_KEY_ID": "AKIA42"},
        "data": "https://bob:s3same@h/x?sig=q1w2",
    }
    with pytest.raises(StepFailed):
        run(
            "leaky",
            fail(RuntimeError("cannot use hunter2 or AKIA42 at https://bob:s3same@h/x?sig=q1w2")),
            parameters=parameters,
        )
    text = json.dumps(step_folder("leaky").record())
    assert not [secret for secret in ("hunter2", "AKIA42", "s3same", "q1w2") if secret in text]
    assert "https://" in text


def test_parameters_nested_without_end_are_recorded(run, step_folder):
    nested = {}
    for _ in range(500):
        nested = {"deeper": nested}
    run("deep", write("x"), parameters={"nested": nested})
    assert "nested too deeply" in json.dumps(step_folder("deep").record())


def test_hundreds_of_earlier_records_and_metrics_still_make_a_record(run, step_folder):
    def body(this, written):
        this.prev |= {f"sha256:{number:064x}" for number in range(300)}
        this.metrics.update({f"metric_{number}": 0.123456789 for number in range(600)})
        write("x")(this, written)

    run("many", body)
    (file,) = (step_folder("many").run / "tunesmith" / "many").glob("*.json")
    assert len(file.read_bytes()) <= LIMIT_BYTES


def test_an_output_that_is_a_link_is_refused(run, tmp_path):
    (tmp_path / "elsewhere").write_text("not mine")
    with pytest.raises(StepFailed):
        run("linked", lambda this, written: Path(written.path).symlink_to(tmp_path / "elsewhere"))
