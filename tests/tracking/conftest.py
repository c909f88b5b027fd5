"""A real SQLite store, made once and copied for each test."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from posttrain.tracking.destination import Destination
from posttrain.tracking.store import init_store
from posttrain.tracking.tracker import Tracker, open_tracker
from tests.tracking.project import config

log = logging.getLogger("test.tracking")


@pytest.fixture(autouse=True)
def _no_foreign_store(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


@pytest.fixture(scope="session")
def _first_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    init_store(config(), root, log)
    return root


@pytest.fixture
def project(_first_project: Path, tmp_path: Path) -> Path:
    """A project folder with an initialised store."""
    return Path(shutil.copytree(_first_project, tmp_path / "project"))


Opener = Callable[..., Tracker]


@pytest.fixture
def tracker(project: Path) -> Iterator[Opener]:
    """Opens trackers in `project`; those that a test leaves open are closed."""
    opened: list[Tracker] = []

    def start(stage: str = "post_train", run: str | None = "ppo", key: str = "k", **options: Any) -> Tracker:
        where = options.pop("where", Destination("quick", "sqlite:///results/mlflow/mlflow.db", project, False))
        state = project / "results/quick/.state" / key
        settings = {"params": {"run": {"kl_coef": 0.1}}, "tags": {"method": "ppo", "seed": "5"}, "log": log, **options}
        opened.append(open_tracker(where, state=state, stage=stage, run=run, **settings))
        return opened[-1]

    yield start
    for each in opened:
        if not each.closed:
            each.close("FAILED")
