import pytest

from tunesmith.errors import BadInput
from tunesmith.lineage.store import Store, place_of

UUID = "0f3c9ab1-1111-2222-3333-444455556666"


@pytest.mark.parametrize(
    ("uri", "root", "task"),
    [
        (f"s3://bucket/v2/llm/run-1/train/{UUID}/record", "s3://bucket/v2/llm/run-1", "train"),
        ("gs://bucket/root/run-1/train/record", "gs://bucket/root/run-1", "train"),
        ("/data/runs/llm-2026/train/record", "/data/runs/llm-2026", "train"),
    ],
)
def test_run_and_task_are_read_from_an_artifacts_uri(uri, root, task):
    place = place_of(uri, {})
    assert (place.root, place.task, place.key) == (root, task, uri)


def test_loops_nest_folders_between_run_and_task():
    environment = {"TUNESMITH_PIPELINE_ROOT": "/data/runs/"}
    place = place_of("/data/runs/llm-2026/for-loop-1-iteration-0/train/record", environment)
    assert (place.root, place.task) == ("/data/runs/llm-2026", "train")


def test_a_run_that_is_started_again_on_a_laptop_keeps_its_keys():
    first = place_of("/data/runs/llm-0930/train/record", {"TUNESMITH_RUN_KEY": "k1"})
    second = place_of("/data/runs/llm-1045/train/record", {"TUNESMITH_RUN_KEY": "k1"})
    assert first.key == second.key == "k1/train/record"


def test_what_is_no_artifact_uri_is_refused():
    with pytest.raises(ValueError, match="a run and a task are missing"):
        place_of("record", {})


def test_what_is_written_is_read_back_and_leaves_nothing_partial(tmp_path):
    store = Store(tmp_path)
    uri = store.write("train/ab12.1.json", "text \u2713")
    store.write("train/ab12.1.json", "newer")
    store.write("train/curve.json", "{}")
    assert uri == f"{tmp_path}/tunesmith/train/ab12.1.json"
    assert store.read("train/ab12.1.json") == "newer"
    assert store.paths() == ["train/ab12.1.json", "train/curve.json"]


def test_only_records_are_listed_as_records(tmp_path):
    store = Store(tmp_path)
    for path in ("b/ab.2.json", "b/ab.1.json", "a/cd.1.json", "a/curve.json", "a/ab.1.json.partial"):
        store.write(path, path)
    assert store.record_paths() == ["a/cd.1.json", "b/ab.1.json", "b/ab.2.json"]
    assert [text for _, text in store.records()] == store.record_paths()


def test_a_run_without_a_folder_has_no_records(tmp_path):
    assert Store(tmp_path / "missing").paths() == []


def test_an_object_store_is_written_and_read_the_same_way():
    store = Store("memory://bucket/run-1")
    store.write("train/ab.1.json", "{}")
    assert store.record_paths() == ["train/ab.1.json"]
    assert store.read("train/ab.1.json") == "{}"


def test_a_root_on_storage_that_nobody_knows_is_refused_with_a_remedy():
    with pytest.raises(BadInput, match="minio:// is not in this version"):
        Store("minio://bucket/v2/artifacts/pipeline/run")
