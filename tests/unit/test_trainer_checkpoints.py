from __future__ import annotations

import json
import uuid

import pytest

from tunesmith.errors import BadInput
from tunesmith.trainer.checkpoints import CheckpointRefused, CheckpointStore
from tunesmith.trainer.progress import Progress


def write(store: CheckpointStore, step: int, fingerprint: dict | None = None):
    folder = store.staging / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "optimizer.pt").write_bytes(b"state %d" % step)
    Progress([(step, 1.0, 2.0)], 10, 9, 2.0).save(folder)
    return store.commit(step, fingerprint or {"lr": 1})


@pytest.fixture(params=["folder", "uri"])
def location(request, tmp_path):
    return str(tmp_path / "checkpoints") if request.param == "folder" else f"memory://{uuid.uuid4()}"


def test_the_newest_two_are_kept_and_found_by_a_later_process(location):
    store = CheckpointStore(location)
    for step in (10, 20, 30):
        write(store, step)

    later = CheckpointStore(location)
    assert later.steps() == [20, 30]
    checkpoint = later.open(30)
    checkpoint.verify()
    assert (checkpoint.path / "optimizer.pt").read_bytes() == b"state 30"
    assert Progress.load(checkpoint.path) == Progress([(30, 1.0, 2.0)], 10, 9, 2.0)


def test_what_was_not_finished_is_neither_found_nor_kept(tmp_path):
    store = CheckpointStore(str(tmp_path))
    write(store, 10)
    (tmp_path / "checkpoint-20").mkdir()
    (store.staging / "checkpoint-30").mkdir(parents=True)

    assert store.steps() == [10]
    store.discard_incomplete()
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-10"]


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "optimizer.pt").write_bytes(b"state 11"),
        lambda folder: (folder / "optimizer.pt").unlink(),
        lambda folder: (folder / "extra.pt").write_bytes(b"more"),
        lambda folder: (folder / "link.pt").symlink_to("/etc/hostname"),
    ],
    ids=["a changed file", "a missing file", "an added file", "a link"],
)
def test_what_is_not_what_was_written_is_refused(tmp_path, change):
    checkpoint = write(CheckpointStore(str(tmp_path)), 10)
    change(checkpoint.path)
    with pytest.raises(CheckpointRefused, match="is not what was written"):
        checkpoint.verify()


def test_other_settings_are_refused_by_name(tmp_path):
    checkpoint = write(CheckpointStore(str(tmp_path)), 10, {"lr": 1, "seed": 0})
    checkpoint.require_same_run({"lr": 1, "seed": 0})
    with pytest.raises(CheckpointRefused, match=r"other settings \(lr, method\)"):
        checkpoint.require_same_run({"lr": 2, "seed": 0, "method": "full"})


def test_a_checkpoint_of_another_version_is_left_alone(tmp_path):
    checkpoint = write(CheckpointStore(str(tmp_path)), 10)
    marker = checkpoint.path / "complete.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "schema": "tunesmith.dev/checkpoint/v9"}))

    store = CheckpointStore(str(tmp_path))
    assert store.steps() == []
    assert store.discard_incomplete() == []
    assert marker.exists()


def test_a_checkpoint_that_only_another_node_has_is_explained(tmp_path):
    with pytest.raises(CheckpointRefused, match="all ranks must share one folder"):
        CheckpointStore(str(tmp_path)).open(10)


def test_only_one_job_at_a_time_trains_into_a_folder(tmp_path):
    first, second = CheckpointStore(str(tmp_path)), CheckpointStore(str(tmp_path))
    with first.claimed(), pytest.raises(BadInput, match="another job trains into"), second.claimed(patience_s=0):
        pass
    with second.claimed(patience_s=0):
        pass
