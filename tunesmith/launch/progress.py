"""What a step tells while it works: a line in its log, and an event for whoever follows the run on this machine.

The local target names a file in ``TUNESMITH_PROGRESS``; each event is one JSON line in it. Elsewhere there is only the
log.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def say(text: str) -> None:
    """One line of the step's log, with the time in UTC."""
    stamp = time.strftime("%H:%M:%SZ", time.gmtime())
    print(f"[tunesmith {stamp}] {text}", file=sys.stdout, flush=True)


def emit(event: str, task: str, **fields: Any) -> None:
    """Append an event. One write of one short line, so that lines of several processes do not mix."""
    path = os.environ.get("TUNESMITH_PROGRESS")
    if not path:
        return
    line = json.dumps({"time": time.time(), "event": event, "task": task, **fields}, default=str)
    with open(path, "a", encoding="utf-8") as stream:
        stream.write(line + "\n")
