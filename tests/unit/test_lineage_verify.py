import json
import os
import shutil

import pytest

from tunesmith.lineage.digest import digest_text
from tunesmith.lineage.verify import verify


def whats(verification):
    return " | ".join(str(problem) for problem in verification.problems)


def record_of(run, task):
    return next((run / "tunesmith" / task).glob("*.[0-9].json"))


def flip(path):
    """Change one byte in the middle, as a bad disk or a hand would."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def everything_below(run):
    return [path for path in sorted(run.rglob("*")) if path.is_file()]


def test_an_untouched_run_verifies_and_its_content_is_counted(build_run):
    result = verify(build_run())
    assert result.ok, whats(result)
    assert result.records == 7
    assert result.artifacts >= 10
    assert result.bytes > 8000


def test_a_workdir_with_several_runs_verifies(build_run):
    first = build_run(name="one")
    build_run(name="two", failed=True)
    result = verify(first.parent.parent)
    assert result.ok, whats(result)
    assert result.records == 10


def test_one_changed_byte_anywhere_is_found(build_run, tmp_path):
    run = build_run()
    # What no record speaks about cannot be found; here that is nothing.
    for path in everything_below(run):
        copy = tmp_path / "copy" / run.name
        shutil.copytree(run, copy)
        flip(copy / path.relative_to(run))
        assert not verify(copy).ok, f"a changed byte in {path.relative_to(run)} went unseen"
        shutil.rmtree(copy)


def test_one_missing_file_anywhere_is_found(build_run, tmp_path):
    run = build_run()
    for path in everything_below(run):
        copy = tmp_path / "copy" / run.name
        shutil.copytree(run, copy)
        (copy / path.relative_to(run)).unlink()
        assert not verify(copy).ok, f"the missing {path.relative_to(run)} went unseen"
        shutil.rmtree(copy)


def test_a_changed_artifact_is_named_with_both_digests(build_run):
    run = build_run()
    (run / "fine-tune" / "model" / "adapter.safetensors").write_text("other weights")
    problem = next(p for p in verify(run).problems if p.what == "output model of fine-tune changed")
    assert problem.where == str(run / "fine-tune" / "model")
    assert problem.expected.startswith("sha256-tree:")
    assert problem.found.startswith("sha256-tree:")
    assert problem.expected != problem.found


def test_a_leaf_record_that_stays_canonical_is_compared_with_its_artifact(build_run):
    run = build_run()
    path = record_of(run, "smoke-test")
    path.write_text(path.read_text().replace('"state":"SUCCEEDED"', '"state":"CANCELLED"'))
    assert "differs from the record artifact" in whats(verify(run))


def test_a_record_changed_together_with_its_artifact_breaks_the_chain(build_run):
    run = build_run()
    for path in (record_of(run, "import-model"), run / "import-model" / "record"):
        path.write_text(path.read_text().replace("Apache-2.0", "Apache-9.9"))
    result = verify(run)
    assert "the record that produced an input is missing or was changed" in whats(result)
    assert any(str(record_of(run, "fine-tune")) == problem.where for problem in result.problems)


def test_a_copied_workdir_is_checked_itself_and_not_its_source(build_run, tmp_path):
    run = build_run()
    copy = tmp_path / "elsewhere" / "runs" / run.name
    shutil.copytree(run, copy)
    (run / "import-model" / "model" / "config.json").write_text("changed in the source")
    assert verify(copy).ok
    flip(copy / "fine-tune" / "model" / "tokenizer.json")
    assert not verify(copy).ok


def test_an_input_that_differs_from_what_its_producer_wrote_is_found(build_run):
    run = build_run()
    path = record_of(run, "kserve-deploy")
    data = json.loads(path.read_text())
    data["inputs"][0]["digest"] = "sha256-tree:" + "0" * 64
    text = json.dumps(data, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    path.write_text(text)
    assert "input model of kserve-deploy is not what fine-tune wrote" in whats(verify(run))


def test_an_input_from_another_run_of_the_workdir_is_followed(run_builder, tmp_path):
    first, second = (run_builder(tmp_path / "runs" / name) for name in ("first", "second"))
    first.model()
    second.items, second.digests = first.items, first.digests
    second.record("evaluate-llm", "evaluation/evaluate_llm", 1.0, inputs=["import-model/model"])
    assert verify(tmp_path).ok, whats(verify(tmp_path))
    assert verify(second.root).ok, whats(verify(second.root))
    shutil.rmtree(first.root)
    assert "the record that produced an input is missing" in whats(verify(second.root))


def test_a_later_attempt_replaces_what_the_first_one_wrote(run_builder, tmp_path):
    run = run_builder(tmp_path / "run")
    half = run.artifact("import-model", "model", "system.Model", {"config.json": "half"})
    run.record("import-model", "data/import_model", 1.0, outputs=[half], state="FAILED")
    whole = run.artifact("import-model", "model", "system.Model", {"config.json": "whole"})
    run.record("import-model", "data/import_model", 1.0, outputs=[whole], number=2)
    assert verify(run.root).ok, whats(verify(run.root))


def test_a_record_in_the_folder_of_another_step_is_found(build_run):
    run = build_run()
    path = record_of(run, "smoke-test")
    path.rename(run / "tunesmith" / "quality-gate" / path.name)
    assert "the record belongs elsewhere" in whats(verify(run))


def test_a_success_without_a_digest_is_found(run_builder, tmp_path):
    run = run_builder(tmp_path / "run")
    output = run.artifact("import-model", "model", "system.Model", "x")
    run.record("import-model", "data/import_model", 1.0, outputs=[type(output)(output.name, output.uri)])
    assert "output model of import-model has no digest" in whats(verify(run.root))


def test_artifacts_in_an_object_store_are_left_alone(run_builder, tmp_path):
    run = run_builder(tmp_path / "run")
    output = run.artifact("import-model", "model", "system.Model", "x")
    remote = type(output)("model", "s3://bucket/model", "system.Model", output.digest, 1)
    run.record("import-model", "data/import_model", 1.0, outputs=[remote])
    assert verify(run.root).ok


def test_a_folder_without_records_is_a_finding(tmp_path):
    assert "no records here" in whats(verify(tmp_path))
    assert "no records here" in whats(verify(tmp_path / "missing"))


def test_a_file_outside_the_steps_folder_is_never_read(run_builder, tmp_path):
    run = run_builder(tmp_path / "run")
    (tmp_path / "secret").write_text("s")
    run.record("a", "a", 1.0, details={"files": {"../../../secret": digest_text("s"), "/etc/hostname": "x"}})
    found = whats(verify(run.root))
    assert "names '../../../secret', which is not beside the record" in found
    assert "names '/etc/hostname', which is not beside the record" in found


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"[" * 16000,
        b"{}",
        b'{"schema":"tunesmith.dev/record/v1"}',
        b'{"schema":"tunesmith.dev/record/v2"}',
        b'{"inputs":3,"schema":"tunesmith.dev/record/v1"}',
        b'{"attempt":1e999,"schema":"tunesmith.dev/record/v1"}',
        b'{"outputs":[{"evil":1}],"schema":"tunesmith.dev/record/v1"}',
        b"9" * 5000,
        b" " * 20000,
    ],
)
def test_what_is_no_record_is_a_finding_and_no_exception(build_run, content):
    run = build_run()
    record_of(run, "smoke-test").write_bytes(content)
    assert "not a record" in whats(verify(run))


@pytest.mark.parametrize(
    "change",
    [
        {"prev": [3]},
        {"task": {"a": 1}},
        {"task": "../../x"},
        {"attempt": []},
        {"details": []},
        {"details": {"files": 3}},
        {"details": {"files": {"": 3, "x\0y": 1}}},
        {"inputs": [{"name": "x", "uri": "/a\0b", "digest": "sha256:0"}]},
        {"inputs": [{"name": "x", "uri": "/" + "a" * 5000, "digest": "sha256:0"}]},
        {"inputs": [{"name": "x", "uri": "http://[::1", "digest": "sha256:0"}]},
        {"outputs": [{"name": "x", "uri": ["no"], "digest": "sha256:0"}]},
    ],
)
def test_hostile_values_are_findings_and_no_exception(build_run, change):
    run = build_run()
    path = record_of(run, "smoke-test")
    data = json.loads(path.read_text()) | change
    path.write_text(json.dumps(data, separators=(",", ":"), sort_keys=True, ensure_ascii=False))
    assert not verify(run).ok


def test_a_link_and_a_pipe_in_place_of_content_are_findings(build_run):
    run = build_run()
    (run / "import-model" / "model" / "link").symlink_to("/etc/passwd")
    record = record_of(run, "smoke-test")
    record.unlink()
    os.mkfifo(record)
    found = whats(verify(run))
    assert "symbolic link" in found
    assert "not a record: not a file" in found


def test_the_outcome_is_plain_json(build_run):
    run = build_run()
    flip(run / "import-model" / "model" / "config.json")
    data = json.loads(json.dumps(verify(run).to_json()))
    assert data["ok"] is False
    assert set(data["problems"][0]) == {"what", "where", "expected", "found"}
