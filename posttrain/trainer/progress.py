"""Progress with rate and time left: a bar on a terminal, plain lines in a file."""

from __future__ import annotations

import logging
import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 5.0


class ProgressReport:
    """Counts `total` units of work of one kind ("steps", "batches"), of which `done` are behind us already.

    On a terminal (stderr) it draws a bar; elsewhere it writes a line to `log` every few seconds and at the end.
    Use as a context manager.
    """

    def __init__(self, log: logging.Logger, title: str, total: int, unit: str, done: int = 0) -> None:
        self._log, self._title, self._total, self._unit = log, title, total, unit
        self._done = self._first = done
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> ProgressReport:
        self._started = self._last_line = time.monotonic()
        if sys.stderr.isatty():
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
            )
            self._bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))
            self._task = self._bar.add_task(self._title, total=self._total, completed=self._done, note="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, done: int, note: str = "", total: int | None = None) -> None:
        """`done` units are behind us now; `note` says how it goes; `total`, where it is only known now."""
        self._done, self._total = done, total or self._total
        now = time.monotonic()
        rate = (done - self._first) / max(now - self._started, 1e-9)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=self._total, note=f"{rate:.2f} {self._unit}/s {note}")
        elif now - self._last_line >= SECONDS_BETWEEN_LINES or done >= self._total:
            self._last_line = now
            left = (self._total - done) / rate if rate else 0.0
            self._log.info(
                "%s: %d of %d %s, %.2f %s/s, %d:%02d left%s",
                self._title, done, self._total, self._unit, rate, self._unit, left // 60, left % 60,
                f", {note}" if note else "",
            )  # fmt: skip
