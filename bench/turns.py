"""Workers that take turns: each does one step and waits, so that all sides meet the same state of the machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.meter import TURNS

THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
QUIET = {
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}
SHOWN = 12


class WorkerError(Exception):
    """A worker ended before its last step; the text is the end of its log."""


class Worker:
    """A process of the bench. It starts at its first step, so that two never start up side by side."""

    def __init__(self, python: Path, module: str, task: Mapping[str, Any], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log, self.result = folder / "log", folder / "result.json"
        self.result.unlink(missing_ok=True)
        (folder / "task.json").write_text(json.dumps({**task, "result": str(self.result)}))
        self._command = [str(python), "-m", module, str(folder / "task.json")]
        self._process: subprocess.Popen[bytes] | None = None
        self._turns, self._theirs = socket.socketpair()

    def step(self) -> None:
        """Lets it do one step and waits for the end of it.

        Raises:
            WorkerError: it has ended instead.
        """
        self._go_on()
        if not self._turns.recv(1):
            raise WorkerError(self._failure())

    def finish(self) -> dict[str, Any]:
        """Lets it end after its last step; what it measured.

        Raises:
            WorkerError: it failed in writing that.
        """
        self._go_on()
        assert self._process is not None
        if self._process.wait() != 0:
            raise WorkerError(self._failure())
        self._turns.close()
        found: dict[str, Any] = json.loads(self.result.read_text()) if self.result.is_file() else {}
        return found

    def close(self) -> None:
        """Ends it, wherever it is: it finds its socket closed when it next waits."""
        self._turns.close()
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()

    def _go_on(self) -> None:
        if self._process is None:
            self._start()
            return
        try:
            self._turns.send(b".")
        except BrokenPipeError:
            raise WorkerError(self._failure()) from None

    def _start(self) -> None:
        descriptor = self._theirs.fileno()
        environment = {**os.environ, **THREADS, **QUIET, TURNS: str(descriptor), "PYTHONPATH": str(Path.cwd())}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, pass_fds=[descriptor]
            )
        self._theirs.close()

    def _failure(self) -> str:
        assert self._process is not None
        status = self._process.wait()
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join([f"exit status {status}: {' '.join(self._command)} (log: {self.log})", *lines[-SHOWN:]])
