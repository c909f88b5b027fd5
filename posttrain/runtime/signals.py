"""Ctrl-C and SIGTERM: the first lets the stage write its checkpoint, the second ends it at once."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


class Stopped(KeyboardInterrupt):
    """Raised by the first signal while there is nothing to save. Not an Exception, so no library swallows it."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class Interruption:
    """Remembers the first signal; `interruption()` is true from then on.

    Before the stage first asks, a signal raises `Stopped`: nothing is under way that a checkpoint could save. From the
    first question on, a signal only sets the flag and the stage stops at its next step.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self.asked = False

    def __call__(self) -> bool:
        self.asked = True
        return self.signum is not None

    def install(self) -> Interruption:
        """Take over SIGINT and SIGTERM; only the main thread may do so."""
        signal.signal(signal.SIGINT, self._handle)
        signal.signal(signal.SIGTERM, self._handle)
        return self

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is not None:
            os._exit(128 + signum)
        self.signum = signum
        if not self.asked:
            raise Stopped(signum)
        print("stopping after this step; again to end at once", file=sys.stderr, flush=True)
