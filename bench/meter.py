"""CPU time of each step and the memory of this process. The standard library alone: TRL's environments read it too."""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TURNS = "BENCH_TURNS"
"""Environment variable with the descriptor of the socket over which a worker is told to go on."""


class FinishedError(Exception):
    """All steps are measured: what a trainer does afterwards (checkpoints, exports) is not."""


class Meter:
    """Counts a worker's steps, and after each of them waits for its turn.

    CPU time is that of all threads of the process, user and system. A step's time runs from the end of the step before
    (less the waiting), so nothing falls in between.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.tokens: list[float] = []
        self.losses: list[float] = []
        self.once: dict[str, float] = {}
        self.imports_mib = peak_mib()
        self.peak_mib = self.imports_mib
        self._turns = socket.socket(fileno=int(os.environ[TURNS])) if TURNS in os.environ else None
        self._begun = time.process_time()

    def end_step(self, tokens: float, loss: float | None = None) -> None:
        """The step that ends now worked on so many tokens."""
        self.seconds.append(time.process_time() - self._begun)
        self.tokens.append(tokens)
        self.peak_mib = peak_mib()
        if loss is not None:
            self.losses.append(loss)
        self._wait()
        self._begun = time.process_time()

    @contextmanager
    def one_off(self, name: str) -> Iterator[None]:
        """Adds the CPU time within to what is done once for all steps."""
        begun = time.process_time()
        yield
        self.once[name] = self.once.get(name, 0.0) + time.process_time() - begun

    def result(self, warmup: int, versions: dict[str, str]) -> dict[str, Any]:
        """All of it as JSON values; the first `warmup` steps are left out."""
        return {
            "seconds": self.seconds[warmup:],
            "tokens": self.tokens[warmup:],
            "once": self.once,
            "peak_mib": self.peak_mib,
            "imports_mib": self.imports_mib,
            "losses": self.losses,
            "versions": {"python": sys.version.split()[0], **versions},
        }

    def _wait(self) -> None:
        if self._turns is None:
            return
        self._turns.send(b".")
        if not self._turns.recv(1):
            raise SystemExit("the bench is gone")


def peak_mib() -> float:
    """The most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def read_task() -> dict[str, Any]:
    """What this worker is asked for: the JSON file that its command line names."""
    task: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    return task


def write_result(task: dict[str, Any], result: dict[str, Any]) -> None:
    """Where the asker looks for it."""
    Path(task["result"]).write_text(json.dumps(result))
