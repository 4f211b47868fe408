import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tunesmith.clusters.local import LocalCluster
from tunesmith.local import inventory

PATIENCE_S = 60


def processes_of(folder: Path) -> dict[int, str]:
    """Every process whose command line or environment names the folder: controllers, supervisors, what they run."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command, environment = (place / "cmdline").read_bytes(), (place / "environ").read_bytes()
        except OSError:
            continue
        if os.fsencode(folder) in command + environment and int(place.name) != os.getpid():
            found[int(place.name)] = command.replace(b"\0", b" ").decode()
    return found


@pytest.fixture
def heed_interrupts() -> Callable[[], None]:
    """For a child process, before it runs: in the background a shell has SIGINT ignored, and children inherit that."""

    def heed() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    return heed


@pytest.fixture
def running() -> Callable[[Path], dict[int, str]]:
    return processes_of


@pytest.fixture
def until() -> Callable[[Callable[[], Any]], Any]:
    """Wait until the call returns something true, and return that."""

    def wait(call: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
        end = time.monotonic() + patience_s
        while not (result := call()):
            assert time.monotonic() < end, f"still {result!r} after {patience_s} s"
            time.sleep(0.02)
        return result

    return wait


@pytest.fixture
def cluster(tmp_path: Path, until: Any) -> Iterator[LocalCluster]:
    """A cluster in a folder; at the end everything in it is deleted, and not one process may be left."""
    cluster = LocalCluster(tmp_path / "cluster")
    yield cluster
    inventory.delete(cluster.folder, None)
    until(lambda: not processes_of(cluster.folder))
