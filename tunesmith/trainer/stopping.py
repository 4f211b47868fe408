"""SIGTERM: the end of a pod is announced, and the work so far must not be lost."""

from __future__ import annotations

import signal
import sys
from types import FrameType

from tunesmith.trainer.result import EXIT_STOPPED


class StopSignal:
    """Notes a SIGTERM. While steps run, the loop asks and ends in order; at any other time the process ends at once.

    Outside the loop nothing is lost by that: checkpoints and outputs are complete or not there.
    """

    def __init__(self) -> None:
        self.received = False
        self.loop_asks = False
        signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received = True
        if not self.loop_asks:
            sys.exit(EXIT_STOPPED)
