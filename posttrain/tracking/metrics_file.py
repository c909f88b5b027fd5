"""metrics.jsonl: what a stage measured, line by line, with time stamps.

Two kinds of line: `{"time": s, "step": k, "metrics": {name: value}}` of a training step, and
`{"time": s, "run": name or null, "summary": {name: value}}` of final values. Values that are not finite stand as the
strings "nan", "inf" and "-inf", so that every line is strict JSON.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME = "metrics.jsonl"

_UNSAFE = re.compile(r"[^A-Za-z0-9_\-. /]")


@dataclass(frozen=True)
class Line:
    """One line of the file. `step` is None for final values."""

    time: float
    step: int | None
    run: str | None
    values: dict[str, float]


def safe_name(name: str) -> str:
    """The nearest name that every MLflow store takes: letters, digits, `_-. /`, no empty or dotted path part."""
    parts = [part for part in _UNSAFE.sub("_", name).split("/") if part.strip(". ")]
    return "/".join(parts)[:250] or "unnamed"


class MetricsFile:
    """The writer. Opened again after a kill, it drops a torn last line and does not write twice what is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        _drop_torn_line(path)
        self._known = {key for line in read_lines(path) for key in _keys(line)}
        self._file = path.open("ab", buffering=0)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a step's metrics; those that the file already has for this step are left as they are."""
        self._append(Line(time.time(), step, None, _clean(metrics)))

    def summary(self, values: Mapping[str, float], run: str | None = None) -> None:
        """Append final values, of `run` where they belong to another run than the stage's own."""
        self._append(Line(time.time(), None, run, _clean(values)))

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._file.closed

    def close(self) -> None:
        """Close the file; nothing can be appended any more."""
        self._file.close()

    def _append(self, line: Line) -> None:
        values = {name: value for name, value in line.values.items() if (line.run, line.step, name) not in self._known}
        if not values:
            return
        line = Line(line.time, line.step, line.run, values)
        self._known.update(_keys(line))
        self._file.write(_encode(line))


def read_lines(path: Path) -> list[Line]:
    """Every complete line of the file; an absent file has none."""
    return list(decode(path.read_bytes())) if path.exists() else []


def decode(data: bytes) -> Iterator[Line]:
    """The lines of a piece of the file; what follows the last newline is not yet a line."""
    for text in data.split(b"\n")[:-1]:
        row = json.loads(text)
        values = row["metrics"] if "metrics" in row else row["summary"]
        yield Line(row["time"], row.get("step"), row.get("run"), {name: float(value) for name, value in values.items()})


def _encode(line: Line) -> bytes:
    values = {name: value if math.isfinite(value) else str(value) for name, value in line.values.items()}
    row: dict[str, Any] = {"time": line.time}
    row.update({"run": line.run, "summary": values} if line.step is None else {"step": line.step, "metrics": values})
    return json.dumps(row, allow_nan=False).encode() + b"\n"


def _keys(line: Line) -> list[tuple[str | None, int | None, str]]:
    return [(line.run, line.step, name) for name in line.values]


def _clean(metrics: Mapping[str, float]) -> dict[str, float]:
    return {safe_name(name): float(value) for name, value in metrics.items()}


def _drop_torn_line(path: Path) -> None:
    if not path.exists():
        return
    data = path.read_bytes()
    if not data.endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)
