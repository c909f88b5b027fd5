"""What a trainer needs to know of the stage that runs it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol


class Tracker(Protocol):
    """Where metrics go."""

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Metrics of one step."""


class Context(Protocol):
    """A stage, as its body sees it: see `posttrain.stages.runner.Stage`."""

    @property
    def name(self) -> str: ...
    @property
    def run_name(self) -> str | None: ...
    @property
    def config(self) -> Any: ...
    @property
    def inputs(self) -> Mapping[str, Path]: ...
    @property
    def out(self) -> Path: ...
    @property
    def state(self) -> Path: ...
    @property
    def seed(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def log(self) -> logging.Logger: ...
    @property
    def tracker(self) -> Tracker: ...
    @property
    def interrupted(self) -> Callable[[], bool]: ...
