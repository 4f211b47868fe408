from __future__ import annotations

import pytest

from tunesmith.errors import BadInput
from tunesmith.trainer.environment import Rank, join, run_paths, threads, usable_cores

OPERATOR = {"MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456", "RANK": "1", "WORLD_SIZE": "2"}


def test_missing_variables_are_all_named():
    with pytest.raises(BadInput, match="no TUNESMITH_INPUT_TRAIN and no TUNESMITH_OUTPUT_MODEL"):
        run_paths({"TUNESMITH_INPUT_MODEL": "/model"})


def test_without_a_folder_none_is_kept_and_the_result_goes_where_kubernetes_reads_it():
    env = {"TUNESMITH_INPUT_MODEL": "m", "TUNESMITH_INPUT_TRAIN": "t", "TUNESMITH_OUTPUT_MODEL": "o"}
    paths = run_paths(env)
    assert paths.checkpoints is None
    assert str(paths.termination_log) == "/dev/termination-log"


def test_the_operators_variables_are_enough_without_torchrun():
    env = dict(OPERATOR)
    assert join(env) == Rank(rank=1, ranks=2, local_rank=0, local_ranks=1)
    assert env["LOCAL_RANK"] == "0"


def test_the_variables_for_torchrun_are_enough_too():
    env = {
        "PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "job-0",
        "PET_MASTER_PORT": "29400",
    }  # fmt: skip
    assert join(env).rank == 1
    assert (env["MASTER_ADDR"], env["MASTER_PORT"], env["WORLD_SIZE"]) == ("job-0", "29400", "2")


def test_several_processes_a_node_need_torchrun():
    with pytest.raises(BadInput, match="torchrun -m tunesmith.trainer"):
        join({**OPERATOR, "PET_NPROC_PER_NODE": "8"})


def test_one_rank_alone_joins_nothing():
    env = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    assert join(env) == Rank()
    assert "RANK" not in env


@pytest.mark.parametrize(
    ("env", "place", "expected"),
    [
        ({"OMP_NUM_THREADS": "3"}, Rank(), 3),
        ({"OMP_NUM_THREADS": "1"}, Rank(), 1),
        ({}, Rank(ranks=2, local_ranks=2), 4),
        ({}, Rank(ranks=2, local_ranks=1), 8),
        ({}, Rank(ranks=2, local_ranks=1, shares_machine=True), 4),
        ({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x"}, Rank(ranks=2, local_ranks=2), 4),
        ({}, Rank(ranks=64, local_ranks=64), 1),
    ],
)
def test_a_rank_has_its_share_of_the_cores_unless_told(env, place, expected, monkeypatch):
    monkeypatch.setattr("tunesmith.trainer.environment.usable_cores", lambda: 8)
    assert threads(env, place) == expected


def test_a_containers_limit_counts_as_its_cores(tmp_path):
    limit = tmp_path / "cpu.max"
    limit.write_text("100000 100000\n")
    assert usable_cores(limit) == 1
    limit.write_text("max 100000\n")
    assert usable_cores(limit) >= 1
