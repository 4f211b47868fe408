from __future__ import annotations

import errno
import json

import pytest

from tunesmith.trainer.conversations import BadData
from tunesmith.trainer.result import MAX_BYTES, SCHEMA, Failure, failure_of, write_failure, write_success


class DistBackendError(RuntimeError):
    """Stands for torch's class of that name: faults are told by name, so that no torch is needed."""


class OutOfMemoryError(RuntimeError):
    """Stands for torch.cuda's."""


@pytest.mark.parametrize(
    ("error", "fault", "reason", "code"),
    [
        (BadData("data.jsonl line 3 has no answer"), "user", "BadData", 2),
        (ValueError("shapes differ"), "user", "TrainingError", 1),
        (DistBackendError("NCCL error"), "system", "LostPeer", 138),
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer"), "system", "LostPeer", 138),
        (ConnectionResetError("reset"), "system", "LostPeer", 138),
        (OutOfMemoryError("CUDA out of memory."), "capacity", "OutOfMemory", 138),
        (MemoryError(), "capacity", "OutOfMemory", 138),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "capacity", "OutOfMemory", 138),
        (OSError(errno.ENOSPC, "No space left on device"), "capacity", "NoSpaceLeft", 138),
        (FileNotFoundError("gloomy.txt"), "user", "TrainingError", 1),
    ],
)
def test_an_exception_says_whose_fault_it_is_and_whether_to_try_again(error, fault, reason, code):
    failure = failure_of(error)
    assert (failure.fault, failure.reason, failure.exit_code) == (fault, reason, code)


def test_a_lost_peer_does_not_hide_why_the_peer_was_lost(tmp_path):
    log = tmp_path / "log"
    write_failure(log, Failure("capacity", "OutOfMemory", "CUDA out of memory"))
    write_failure(log, Failure("system", "LostPeer", "Connection closed by peer"))
    assert json.loads(log.read_text())["error"]["reason"] == "OutOfMemory"


def test_a_lost_peer_is_written_when_nothing_else_is_known(tmp_path):
    log = tmp_path / "log"
    log.write_text("")
    write_failure(log, Failure("system", "LostPeer", "Connection closed by peer"))
    assert json.loads(log.read_text()) == {
        "schema": SCHEMA,
        "error": {"fault": "system", "reason": "LostPeer", "message": "Connection closed by peer"},
    }


@pytest.mark.parametrize("character", ["\U0001f525", "\x00", "\u2028"])
def test_the_longest_message_fits_into_what_kubernetes_keeps(tmp_path, character):
    write_failure(tmp_path / "log", Failure("user", "TrainingError", character * 5000))
    assert len((tmp_path / "log").read_bytes()) <= MAX_BYTES
    assert json.loads((tmp_path / "log").read_bytes())["error"]["message"]


def test_a_success_is_refused_rather_than_cut(tmp_path):
    with pytest.raises(ValueError, match="4096"):
        write_success(tmp_path / "log", {"x": "y" * 5000}, {})


def test_no_place_for_the_message_is_no_failure_of_the_run(tmp_path):
    write_success(tmp_path / "nowhere" / "log", {"steps": 1}, {})
    assert list(tmp_path.iterdir()) == []
