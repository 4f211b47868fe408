import json
import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunesmith.lineage.digest import digest_path, digest_text
from tunesmith.lineage.record import Attempt, Failure, Item, Record, public_parameters

RECORD = Record("train", "training/fine_tune", "ab12", 1, "FAILED", "2026-12-01T09:30:00Z", "2026-12-01T09:31:00Z",
                60.0, {"run_id": "r"}, inputs=(Item("data", "/x", "system.Dataset", "sha256:00", 3),),
                attempts=(Attempt("train-1", "PyTorchJob", "u", "FAILED", exit_code=1),),
                failure=Failure("user", "Error", "no data", ("last line",)), prev=("sha256:11",))  # fmt: skip


def test_a_files_digest_is_that_of_its_bytes(tmp_path):
    (tmp_path / "f").write_text("abc")
    digest = digest_path(tmp_path / "f")
    assert digest.text == digest_text("abc")
    assert digest.text.endswith("b00361a396177a9cb410ff61f20015ad")
    assert digest.bytes == 3


def test_a_folders_digest_ignores_times_and_order_but_no_name_and_no_byte(tmp_path):
    for folder, names in (("a", ["x/1", "x/2", "y"]), ("b", ["y", "x/2", "x/1"])):
        for name in names:
            (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / name).write_text(name)
    os.utime(tmp_path / "b" / "y", (1, 1))
    before = digest_path(tmp_path / "a")
    assert before == digest_path(tmp_path / "b")
    assert before.text.startswith("sha256-tree:")
    assert before.bytes == 7
    (tmp_path / "b" / "y").rename(tmp_path / "b" / "z")
    assert digest_path(tmp_path / "b") != before


def test_links_have_no_digest(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match="symbolic link"):
        digest_path(tmp_path / "folder")
    with pytest.raises(FileNotFoundError):
        digest_path(tmp_path / "missing")


def test_a_record_survives_its_text():
    assert Record.parse(RECORD.text()) == RECORD
    assert RECORD.digest == digest_text(RECORD.text())


VALUES = st.one_of(st.floats(), st.integers(), st.text(max_size=9), st.none(), st.booleans(), st.just("\ud800"))


@given(st.dictionaries(st.text(max_size=5), VALUES))
def test_any_metric_and_parameter_can_be_recorded(values):
    text = replace(RECORD, parameters=values, metrics={k: v for k, v in values.items() if isinstance(v, float)}).text()
    assert Record.parse(text).text() == text


@pytest.mark.parametrize("change", [lambda t: t + " ", lambda t: t.replace(",", ", ", 1), lambda t: t[:-1]])
def test_a_text_that_is_not_canonical_is_refused(change):
    with pytest.raises(ValueError):
        Record.parse(change(RECORD.text()))


def test_an_unknown_schema_is_refused():
    with pytest.raises(ValueError, match="schema"):
        Record.parse(json.dumps({"schema": "tunesmith.dev/record/v9"}))


def test_a_record_that_is_too_large_is_refused():
    with pytest.raises(ValueError, match="the record of train has"):
        replace(RECORD, details={"x": "y" * 20000}).text()


def test_secrets_and_long_texts_never_enter_a_record():
    public = public_parameters({
        "hub_token": "hf_abc", "max_new_tokens": 64, "env": {"AWS_SECRET_ACCESS_KEY": "k", "HOME": "/root"},
        "prompt": "p" * 1000,
    })  # fmt: skip
    assert public["hub_token"] == "<redacted>"
    assert public["max_new_tokens"] == 64
    assert public["env"] == {"AWS_SECRET_ACCESS_KEY": "<redacted>", "HOME": "/root"}
    assert public["prompt"].startswith("<1000 characters, sha256:")
