"""What the container's environment says: where inputs and outputs are, and which rank this process is."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from tunesmith.trainer.result import BadArguments

_QUIET = {
    "HF_HUB_OFFLINE": "1",  # the model and the data are given; nothing is fetched behind the user's back
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_DISABLED": "true",
    "USE_TF": "0",
}


@dataclass(frozen=True)
class RunPaths:
    """Inputs and outputs of a run: paths, or URIs that fsspec knows.

    ``checkpoints`` is None where none are kept.
    """

    model: str
    train: str
    output: str
    checkpoints: str | None
    termination_log: Path


def termination_log(env: Mapping[str, str]) -> Path:
    """The file for the result."""
    return Path(env.get("TUNESMITH_TERMINATION_LOG", "/dev/termination-log"))


def run_paths(env: Mapping[str, str]) -> RunPaths:
    """Paths from the variables that every launched container has.

    Raises:
        BadInput: a variable is missing.
    """
    needed = ("TUNESMITH_INPUT_MODEL", "TUNESMITH_INPUT_TRAIN", "TUNESMITH_OUTPUT_MODEL")
    missing = [name for name in needed if not env.get(name)]
    if missing:
        raise BadArguments(f"the environment has no {' and no '.join(missing)}: set each to a path")
    model, train, output = (env[name] for name in needed)
    return RunPaths(model, train, output, env.get("TUNESMITH_CHECKPOINTS") or None, termination_log(env))


@dataclass(frozen=True)
class Rank:
    """This process among all processes of the run, and among those on its node."""

    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    local_ranks: int = 1
    shares_machine: bool = False  # the ranks on other "nodes" run on this machine too

    @property
    def speaks(self) -> bool:
        """Whether this rank reports for all."""
        return self.rank == 0


def join(env: MutableMapping[str, str]) -> Rank:
    """Find this process's rank, and complete the variables that torch wants where no torchrun did.

    One process a pod needs no torchrun: the training operator's MASTER_ADDR, RANK and WORLD_SIZE (or PET_*) are enough.

    Raises:
        BadInput: several processes a node are asked for, and no torchrun has started them.
    """
    if "TORCHELASTIC_RUN_ID" not in env:
        if env.get("PET_NPROC_PER_NODE", "1") not in ("1", "auto", "cpu"):
            raise BadArguments(
                f"PET_NPROC_PER_NODE is {env['PET_NPROC_PER_NODE']}: start with torchrun -m tunesmith.trainer"
            )
        for ours, theirs in (
            ("RANK", "PET_NODE_RANK"), ("WORLD_SIZE", "PET_NNODES"),
            ("MASTER_ADDR", "PET_MASTER_ADDR"), ("MASTER_PORT", "PET_MASTER_PORT"),
        ):  # fmt: skip
            if theirs in env:
                env.setdefault(ours, env[theirs])
    ranks = int(env.get("WORLD_SIZE", "1"))
    if ranks == 1:
        # torch would wait for a rendezvous even alone if it found these
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            env.pop(name, None)
        return Rank()
    env.setdefault("LOCAL_RANK", "0")
    env.setdefault("LOCAL_WORLD_SIZE", "1")
    return Rank(
        rank=int(env.get("RANK", "0")), ranks=ranks,
        local_rank=int(env["LOCAL_RANK"]), local_ranks=int(env["LOCAL_WORLD_SIZE"]),
        shares_machine=env.get("MASTER_ADDR", "") in ("127.0.0.1", "localhost", "::1"),
    )  # fmt: skip


def quieten(env: MutableMapping[str, str]) -> None:
    """Switch off telemetry, network look-ups and progress bars of the libraries; to be called before importing them."""
    for name, value in _QUIET.items():
        env.setdefault(name, value)


def threads(env: Mapping[str, str], place: Rank) -> int:
    """Threads for this rank: its share of the cores.

    torchrun writes OMP_NUM_THREADS=1 for several processes whatever the machine has, so its 1 counts as unset.
    """
    given = env.get("OMP_NUM_THREADS", "")
    if given.isdigit() and not (given == "1" and "TORCHELASTIC_RUN_ID" in env):
        return max(1, int(given))
    sharing = place.ranks if place.shares_machine else place.local_ranks
    return max(1, usable_cores() // sharing)


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores that this process may use: its affinity, cut by the container's CPU limit."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = cgroup.read_text().split()
        return max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):  # no such file, or "max": no limit
        return cores
