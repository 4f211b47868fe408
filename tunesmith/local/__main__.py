"""``python -m tunesmith.local control --cluster FOLDER --uid UID``: the controller of one object.

Not for people: `LocalCluster` starts it. It detaches itself from whoever starts it, so that its parent neither waits
for it nor is left with a zombie.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import time
import traceback
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tunesmith.clusters.local import Changes, LocalCluster

TICK_S = 0.05
_LOCK_S = 2.0
_PAUSE_S = 1.0


class Controller(Protocol):
    """What `control` drives."""

    def stirred(self) -> bool:
        """Whether a step is due though no object has changed; asked many times a second."""
        ...

    def step(self) -> bool:
        """Bring things one step further; False when there is nothing left to do."""
        ...


def main() -> None:
    """Read the command line, detach, and control."""
    parser = argparse.ArgumentParser(prog="python -m tunesmith.local")
    control_command = parser.add_subparsers(required=True).add_parser("control")
    control_command.add_argument("--cluster", type=Path, required=True)
    control_command.add_argument("--uid", required=True)
    arguments = parser.parse_args()
    if not (arguments.cluster / "cluster.db").exists():  # deleted meanwhile: opening it would bring it back
        return
    if os.fork():
        os._exit(0)
    # Imported here: whoever started this waits only for the fork above.
    from tunesmith.clusters.local import LocalCluster

    control(LocalCluster(arguments.cluster, revive=False), arguments.uid)


def control(cluster: LocalCluster, uid: str) -> None:
    """Look after the object ``uid``, if nobody else does, until there is nothing left to do or the folder is gone."""
    lock = _lock(cluster.lock_file(uid))
    if lock is None:
        return
    controller, changes = _controller(cluster, uid), cluster.changes()
    while True:
        if _due(changes, controller):
            if not (cluster.folder / "cluster.db").exists():
                return  # the supervisors see that, too, and end what they run
            if not _step(controller):
                break
        time.sleep(TICK_S)
    lock.write("done")
    lock.flush()


def _due(changes: Changes, controller: Controller) -> bool:
    """Whether to take a step; also when that cannot be known, since the step tells what is wrong and waits."""
    from tunesmith.clusters.base import Unavailable

    try:
        return changes.any() or controller.stirred()
    except Unavailable:
        return True


def _step(controller: Controller) -> bool:
    """One step; an error in it is noted in the controller's log and tried again, as an operator requeues."""
    try:
        return controller.step()
    except Exception:  # whatever it was, the processes still need a controller
        traceback.print_exc()
        time.sleep(_PAUSE_S)
        return True


def _controller(cluster: LocalCluster, uid: str) -> Controller:
    from tunesmith.local.pytorchjob import PyTorchJobController

    found = cluster.find(uid)
    if found is not None and found["kind"] == "InferenceService":
        from tunesmith.local.inferenceservice import InferenceServiceController

        return InferenceServiceController(cluster, uid)
    return PyTorchJobController(cluster, uid)  # also for pods whose owner is gone: it ends them


def _lock(path: Path) -> IO[str] | None:
    """The lock, held as long as the file is open; None if another process holds it."""
    file = path.open("a")
    end = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            # Somebody may only be looking whether the lock is held: try for a while.
            if time.monotonic() > end:
                file.close()
                return None
            time.sleep(TICK_S)


if __name__ == "__main__":
    main()
