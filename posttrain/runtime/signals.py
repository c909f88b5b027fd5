"""Ctrl-C and SIGTERM: the first lets the stage write its checkpoint, a second Ctrl-C ends it at once."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from posttrain.platforms.locks import wait_for_end

PARENT = "POSTTRAIN_DIE_WITH_PARENT"  # life line of the workflow, whose jobs have nobody to answer to once it is gone
_PR_SET_PDEATHSIG = 1
_ONE_REQUEST = 1.0  # seconds: a terminal and Snakemake may both pass on the same Ctrl-C


def die_with_parent() -> None:
    """Where the workflow asks for it, get SIGTERM when it or the parent process dies, however they die (Linux only).

    They are two in a container: the parent is the container's runtime, which lives on where Snakemake is killed.
    """
    line = os.environ.get(PARENT)
    if line and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        threading.Thread(target=_end_with, args=(Path(line).absolute(),), name="life line", daemon=True).start()


def _end_with(line: Path) -> None:
    try:
        wait_for_end(line)
    except OSError:  # a file system without locks: the parent process alone is watched
        return
    os.kill(os.getpid(), signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """Raised by the first signal while there is nothing to save. Not an Exception, so no library swallows it."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class Interruption:
    """Remembers the first signal; `interruption()` is true from then on.

    Before the stage first asks, a signal raises `Stopped`: nothing is under way that a checkpoint could save. From the
    first question on, a signal only sets the flag and the stage stops at its next step; a Ctrl-C that comes later than
    a second after it is a request of its own and ends the process at once.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self.asked = False
        self._since = 0.0

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
            if signum == signal.SIGINT and time.monotonic() - self._since > _ONE_REQUEST:
                os._exit(128 + signum)
            return
        self.signum, self._since = signum, time.monotonic()
        if not self.asked:
            raise Stopped(signum)
        print("stopping after this step; Ctrl-C to end at once", file=sys.stderr, flush=True)
