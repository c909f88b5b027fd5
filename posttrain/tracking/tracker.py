"""What a stage sees of tracking: it logs to a file, and a child process sends the file to MLflow."""

from __future__ import annotations

import json
import logging
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import posttrain
from posttrain.tracking.destination import Destination
from posttrain.tracking.metrics_file import NAME, MetricsFile

Status = Literal["FINISHED", "FAILED", "KILLED"]

FLUSH_SECONDS = 20.0  # how long `flush` goes on trying a store that does not answer
_GRACE = 60.0  # the sender's own start and its last request, on a busy machine


@dataclass(frozen=True)
class Sent:
    """What MLflow has of a stage: `complete` is true when every line of metrics.jsonl and every artifact is there.

    `off` is true where nothing was to be sent.
    """

    complete: bool
    run_id: str | None = None
    points: int = 0
    reason: str = ""
    off: bool = False

    @property
    def tracking(self) -> str:
        """The word for run.json."""
        return "off" if self.off else "complete" if self.complete else "incomplete"


class Tracker:
    """Metrics, final values and artifacts of one execution of a stage.

    `metrics.jsonl` in the state folder is written at once. Sending is the child's business: it never raises here and
    never waits, `flush` aside.
    """

    def __init__(self, state: Path, log: logging.Logger | None = None, sender: Sender | None = None) -> None:
        self.file = MetricsFile(state / NAME)
        self._log = log or logging.getLogger(__name__)
        self._sender = sender

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.file.closed

    @property
    def path(self) -> Path:
        """metrics.jsonl in the state folder; the runner copies it into the stage's output folder."""
        return self.file.path

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record a step's metrics. A step that a resumed stage repeats is not recorded again."""
        self.file.log(step, metrics)
        self._warn()

    def summary(self, values: Mapping[str, float], run: str | None = None) -> None:
        """Record final values. Those named `eval/*` become headlines of the run too (`run`, or the stage's own)."""
        self.file.summary(values, run)
        self._warn()

    def artifact(self, path: Path, folder: str = "") -> None:
        """Send a file, into `folder` of the MLflow run's artifacts. It must stay where it is until `flush`."""
        if self._sender:
            self._sender.tell({"artifact": str(path.absolute()), "folder": folder})

    def tag(self, values: Mapping[str, str], run: str) -> None:
        """Set tags on the row of `run` ("sft" is the baseline) in the table of runs."""
        if self._sender:
            self._sender.tell({"tag": dict(values), "run": run})

    def flush(self, seconds: float = FLUSH_SECONDS) -> Sent:
        """Wait until MLflow has everything, `seconds` at most where the store does not answer.

        The number of points in MLflow is compared with the file's. What could not be sent stays in metrics.jsonl.
        """
        if self._sender is None:
            return Sent(False, off=True)
        sent = self._sender.ask({"flush": seconds}, seconds + _GRACE)
        self._warn()
        if not sent.complete:
            self._log.warning("tracking is incomplete (%s); the metrics stand in %s", sent.reason, NAME)
        return sent

    def close(self, status: Status) -> None:
        """End the MLflow run with this status and the child process with it."""
        self.file.close()
        if self._sender:
            self._sender.ask({"close": status}, FLUSH_SECONDS + _GRACE)
            self._sender.end()

    def _warn(self) -> None:
        for text in self._sender.warnings() if self._sender else []:
            self._log.warning("%s", text)


class Sender:
    """The stage's end of the child process: commands go down its standard input, answers come up its output."""

    def __init__(self, spec: Mapping[str, Any], root: Path, log_file: Path) -> None:
        package = Path(posttrain.__file__).parents[1]
        path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
        with log_file.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "posttrain.tracking.sender"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=root,  # the store's relative paths are relative to the project
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MLFLOW_DISABLE_TELEMETRY": "true"},
                start_new_session=True,  # Ctrl-C is for the stage
            )
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._warnings: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, name="tracking", daemon=True).start()
        self.tell(spec)

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send one command; a sender that is gone is found out by `ask`."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def ask(self, message: Mapping[str, Any], seconds: float) -> Sent:
        """Send one command and wait for its answer, `seconds` at most."""
        self.tell(message)
        if self._process.poll() is not None and self._answers.empty():
            return Sent(False, reason="the sending process ended")
        try:
            answer = self._answers.get(timeout=seconds)
        except queue.Empty:
            return Sent(False, reason=f"no answer from the sending process in {seconds:.0f} s")
        return Sent(**answer)

    def warnings(self) -> list[str]:
        """What the sender had to say since the last call."""
        texts = []
        while not self._warnings.empty():
            texts.append(self._warnings.get())
        return texts

    def end(self) -> None:
        """Close the pipe and wait for the process; one that does not end is killed."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            message = json.loads(text)
            if "warning" in message:
                self._warnings.put(message["warning"])
            else:
                self._answers.put(message)
        self._answers.put(asdict(Sent(False, reason="the sending process ended")))


def open_tracker(
    where: Destination,
    *,
    state: Path,
    stage: str,
    run: str | None,
    params: Mapping[str, Any],
    tags: Mapping[str, str],
    log: logging.Logger,
) -> Tracker:
    """Start tracking one execution of a stage; a resumed one goes on with the MLflow run named in `state/mlflow.json`.

    `params` is the stage's slice of the configuration, nested. `tags` are facts of the manifest (method, seed,
    git_commit, git_dirty, image_id, data_hash, code_slice).
    """
    state.mkdir(parents=True, exist_ok=True)
    spec = {
        "destination": {**asdict(where), "root": str(where.root.absolute())},
        "state": str(state.absolute()),
        "stage": stage,
        "run": run,
        "params": params,
        "tags": {**tags, "stage": stage, "run": run or ""},
        "parent_pid": os.getpid(),
        "started": time.time(),
    }
    return Tracker(state, log, Sender(spec, where.root, state / "tracking.log"))
