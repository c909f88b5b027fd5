"""The child process that sends a stage's metrics.jsonl to MLflow: `python -m posttrain.tracking.sender`.

It reads commands, one JSON object a line, from its standard input and answers on its standard output. When its input
ends without a `close`, the stage has died (kill -9 included): what is left in the file is sent and the run is marked
KILLED. A store that does not answer is tried again, less and less often; nothing here can stop the stage.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from posttrain.platforms.locks import held
from posttrain.tracking.destination import Destination, mask
from posttrain.tracking.metrics_file import NAME, Line, decode
from posttrain.tracking.tracker import FLUSH_SECONDS, Sent

if TYPE_CHECKING:
    from mlflow.entities import Metric

INTERVAL = 2.0  # seconds between two batches
_BATCH = 1000  # metrics of one request
_SYSTEM_INTERVAL = 5.0  # seconds between two samples of MLflow's system metrics
_OF_ANOTHER_MODEL = {"reward_model"}  # what it measures says nothing of the SFT model, in whose row it is a child
LOCK = "tracking.lock"  # in the state folder
_TEXTS = {".yaml", ".json"}
_LOCK_SECONDS = 120.0  # for the sender of an attempt that was killed a moment ago


class Sending:
    """The MLflow side of one execution of a stage. Every method may raise what MLflow raises, and be called again."""

    def __init__(self, spec: dict[str, Any]) -> None:
        fields = spec["destination"]
        self.where = Destination(**{**fields, "root": Path(fields["root"])})
        self.spec = spec
        self.state = Path(spec["state"])
        self.run_id: str | None = None
        self._offset = 0
        self._monitor: Any = None
        self._parents: dict[str, str] = {}

    def connect(self) -> None:
        """Find or make the MLflow run, and log its params."""
        if self.run_id:
            return
        from posttrain.tracking import store

        spec, run = self.spec, self.spec["run"]
        self.client, self.experiment = store.connect(self.where)
        self.parent = self._parent(run or store.BASELINE)
        known = self._recall(self.state)
        name = f"{spec['stage']} {run}" if run else spec["stage"]
        run_id = store.ensure_child(self.client, self.experiment, self.parent, name, spec["tags"], known.get("run_id"))
        self._offset = known.get("offset", 0) if run_id == known.get("run_id") else 0
        self._remember(run_id)
        store.log_params(self.client, run_id, spec["params"])
        self.run_id = run_id
        self._start_monitor(resumed=run_id == known.get("run_id"))
        self._end_the_dead()

    def send(self) -> None:
        """Send the lines that are new in the file. A line that is sent twice makes no second point in MLflow."""
        self.connect()
        assert self.run_id
        path = self.state / NAME
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        lines = list(decode(data))
        self._log(self.run_id, [point for line in lines for point in _points(line)])
        for line in lines:
            self._headline(line)
        if data:
            self._offset += len(data)
            self._remember(self.run_id)

    def reconcile(self) -> int:
        """Compare the file's points with the store's; send all again where some are missing. Returns their number."""
        for attempt in range(2):
            missing, total = self._missing()
            if not missing:
                return total
            if attempt == 0:
                self._offset = 0
                self.send()
        raise RuntimeError(f"{missing} of {total} points are missing in MLflow")

    def upload(self, path: str, folder: str) -> None:
        """Send one file; passwords in the URIs of a configuration are masked."""
        from posttrain.tracking import notes

        self.connect()
        assert self.run_id
        if Path(path).suffix in _TEXTS:
            text = Path(path).read_text(encoding="utf-8")
            self.client.log_text(self.run_id, mask(text), f"{folder}/{Path(path).name}".lstrip("/"))
        else:
            self.client.log_artifact(self.run_id, path, folder or None)
        if self.spec["stage"] == "evaluate" and Path(path).name == "samples.parquet":
            notes.log_samples(self.client, self.parent, Path(path))

    def tag(self, values: Mapping[str, str], run: str) -> None:
        """Set tags on the parent of `run`."""
        self.connect()
        for key, value in values.items():
            self.client.set_tag(self._parent(run), key, value)

    def finish(self, status: str) -> None:
        """End the run, and give its parent the same status."""
        self.send()
        assert self.run_id
        if self._monitor:
            self._monitor.finish()
            self._monitor = None
        self.client.set_terminated(self.run_id, status)
        self.client.set_terminated(self.parent, status)
        if status == "FINISHED":
            from posttrain.tracking import notes, store

            stage, run = self.spec["stage"], self.spec["run"]
            store.supersede(self.client, self.experiment, self.run_id, stage, run or "")
            notes.describe(self.client, self.experiment, None if stage == "compare" else run or store.BASELINE)

    def _parent(self, name: str) -> str:
        from posttrain.tracking import store

        if name not in self._parents:
            own = name == (self.spec["run"] or store.BASELINE) and self.spec["stage"] == "post_train"
            facts = {key: self.spec["tags"][key] for key in ("method", "seed") if own and self.spec["tags"].get(key)}
            params = store.short_params(self.spec["params"]) if own else None
            self._parents[name] = store.ensure_parent(self.client, self.where, self.experiment, name, facts, params)
        return self._parents[name]

    def _headline(self, line: Line) -> None:
        values = {name: value for name, value in line.values.items() if name.startswith("eval/")}
        if line.step is None and values and self.spec["stage"] not in _OF_ANOTHER_MODEL:
            parent = self._parent(line.run) if line.run else self.parent
            self._log(
                parent, _points(Line(line.time, None, None, {key: _rounded(value) for key, value in values.items()}))
            )
            self.client.set_tag(parent, "headline_from", str(self.run_id))

    def _log(self, run_id: str, points: list[Metric]) -> None:
        for start in range(0, len(points), _BATCH):
            self.client.log_batch(run_id, metrics=points[start : start + _BATCH])

    def _missing(self) -> tuple[int, int]:
        path = self.state / NAME
        wanted: dict[str, set[tuple[int, int]]] = {}
        for line in decode(path.read_bytes()) if path.exists() else ():
            for point in _points(line):
                wanted.setdefault(point.key, set()).add((point.step, point.timestamp))
        missing = 0
        for key, points in wanted.items():
            history = self.client.get_metric_history(str(self.run_id), key)
            missing += len(points - {(point.step, point.timestamp) for point in history})
        return missing, sum(map(len, wanted.values()))

    def _start_monitor(self, resumed: bool) -> None:
        if self.where.system_metrics and self._monitor is None:
            from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

            self._monitor = SystemMetricsMonitor(
                self.run_id,
                sampling_interval=_SYSTEM_INTERVAL,
                resume_logging=resumed,
                tracking_uri=self.where.client_uri,
            )
            self._monitor.start()

    def _end_the_dead(self) -> None:
        """Mark runs as KILLED whose stage died with its sender, as with the whole machine, and was not resumed.

        A sender holds the lock of its state folder as long as it works. The lock's file is not made here: its folder
        may be on the way to be deleted.
        """
        from mlflow.exceptions import MlflowException

        for path in self.state.parent.glob(f"*/{LOCK}"):
            with suppress(FileNotFoundError, MlflowException), held(path, create=False) as free:
                run_id = self._recall(path.parent).get("run_id") if free else None
                if run_id and self.client.get_run(run_id).info.status == "RUNNING":
                    self.client.set_terminated(run_id, "KILLED")

    def _recall(self, state: Path) -> dict[str, Any]:
        path = state / "mlflow.json"
        known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return known if known.get("store") == mask(self.where.uri) else {}

    def _remember(self, run_id: str) -> None:
        path = self.state / "mlflow.json"
        text = json.dumps({"store": mask(self.where.uri), "run_id": run_id, "offset": self._offset})
        path.with_suffix(".tmp").write_text(text)
        path.with_suffix(".tmp").replace(path)


class Patient:
    """Tries what MLflow may refuse: at most so often while the stage works, and up to a deadline at its end."""

    def __init__(self, say: Callable[[dict[str, Any]], None], uri: str) -> None:
        self._say = say
        self._uri = mask(uri)
        self._warned = False
        self._failures = 0
        self._next = 0.0
        self.problem = ""

    @property
    def failing(self) -> bool:
        """Whether the last try failed."""
        return self._failures > 0

    def once(self, action: Callable[[], Any]) -> bool:
        """Try now, unless the last failure was too recent."""
        return time.monotonic() >= self._next and self._try(action)

    def until(self, action: Callable[[], Any], deadline: float) -> bool:
        """Try, again and again, until it works or the deadline (of `time.monotonic`) has passed."""
        while not self._try(action):
            pause = min(1.0, deadline - time.monotonic())
            if pause <= 0:
                return False
            time.sleep(pause)
        return True

    def _try(self, action: Callable[[], Any]) -> bool:
        try:
            action()
        except Exception as error:  # whatever a store, a driver or a network raises: it is never the stage's end
            self._failures += 1
            self._next = time.monotonic() + min(2.0**self._failures, 60.0)
            self.problem = mask(f"{type(error).__name__}: {error}".splitlines()[0])[:300]
            logging.getLogger(__name__).warning("%s", self.problem)
            if not self._warned:
                self._warned = True
                text = f"the MLflow store {self._uri} does not answer, the metrics wait in {NAME} ({self.problem})"
                self._say({"warning": text})
            return False
        self._failures = 0
        return True


def serve(
    spec: dict[str, Any], inbox: queue.Queue[dict[str, Any] | None], say: Callable[[dict[str, Any]], None]
) -> None:
    """Obey commands until `close`, or until the stage is gone."""
    sending, patient = Sending(spec), Patient(say, spec["destination"]["uri"])
    waiting: list[Callable[[], None]] = []  # artifacts and tags

    def deliver() -> None:
        sending.send()
        while waiting:
            waiting[0]()
            waiting.pop(0)

    patient.once(deliver)
    while True:
        try:
            message = inbox.get(timeout=INTERVAL)
        except queue.Empty:
            if os.getppid() == spec["parent_pid"]:
                patient.once(deliver)
                continue
            message = None  # the pipe may be held open by a child of the stage that outlives it
        if message is None:
            patient.until(partial(sending.finish, "KILLED"), time.monotonic() + FLUSH_SECONDS)
            return
        if "artifact" in message:
            waiting.append(partial(sending.upload, message["artifact"], message["folder"]))
        elif "tag" in message:
            waiting.append(partial(sending.tag, message["tag"], message["run"]))
        elif "flush" in message:
            say(asdict(_flush(sending, patient, deliver, time.monotonic() + message["flush"])))
        elif "close" in message:
            status = message["close"]
            patience = 0.0 if patient.failing else FLUSH_SECONDS
            done = patient.until(partial(sending.finish, status), time.monotonic() + patience)
            say(asdict(Sent(done, sending.run_id, reason="" if done else patient.problem)))
            return


def _flush(sending: Sending, patient: Patient, deliver: Callable[[], None], deadline: float) -> Sent:
    points = 0

    def all_of_it() -> None:
        nonlocal points
        deliver()
        points = sending.reconcile()

    done = patient.until(all_of_it, deadline)
    return Sent(done, sending.run_id, points, "" if done else patient.problem)


def _rounded(value: float) -> float:
    """Four digits, six decimals: a row is read by people, the stage's own MLflow run has every digit."""
    return round(float(f"{value:.4g}"), 6) + 0.0  # no -0.0


def _points(line: Line) -> list[Metric]:
    from mlflow.entities import Metric

    step = 0 if line.step is None else line.step
    prefix = f"{line.run}/" if line.run else ""
    return [Metric(prefix + name, value, round(line.time * 1000), step) for name, value in line.values.items()]


def _listen(stream: TextIO, inbox: queue.Queue[dict[str, Any] | None]) -> None:
    for text in stream:
        inbox.put(json.loads(text))
    inbox.put(None)


class _Masked(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return mask(super().format(record))


def _log_masked() -> None:
    os.environ["MLFLOW_CONFIGURE_LOGGING"] = "false"  # else MLflow's messages pass by our formatter
    handler = logging.StreamHandler()
    handler.setFormatter(_Masked("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


def main() -> None:
    """Run the process; its log goes to standard error, a file in the state folder."""
    from filelock import FileLock

    from posttrain.tracking.store import be_brief

    _log_masked()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a library that prints must not break the protocol

    def say(message: dict[str, Any]) -> None:
        try:
            answers.write(json.dumps(message) + "\n")
        except (BrokenPipeError, ValueError):
            return  # nobody listens any more

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a cluster signals every process of a job: the stage says how it ended
    if hasattr(os, "nice"):
        os.nice(5)
    be_brief()
    spec = json.loads(sys.stdin.readline())
    inbox: queue.Queue[dict[str, Any] | None] = queue.Queue()
    threading.Thread(target=_listen, args=(sys.stdin, inbox), daemon=True).start()
    with FileLock(Path(spec["state"]) / LOCK, timeout=_LOCK_SECONDS):
        serve(spec, inbox, say)


if __name__ == "__main__":
    main()
