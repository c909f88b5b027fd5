"""The store itself: made once, migrated, shared, and found unusable in one clear sentence."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from posttrain.errors import UserError
from posttrain.tracking.destination import Destination
from posttrain.tracking.store import connect, ensure_parent, flatten, init_store, quiet_logging
from tests.tracking.project import config, query

log = logging.getLogger("test.store")

PARENTS = "SELECT value FROM tags WHERE key = 'run' AND run_uuid IN (SELECT run_uuid FROM tags WHERE value = 'parent')"


def test_init_makes_the_parents_and_a_second_one_nothing(project: Path) -> None:
    found = sorted(query(project, PARENTS))
    assert found == [("dpo",), ("ppo",), ("sft",)]
    init_store(config(), project, log)
    assert sorted(query(project, PARENTS)) == found
    seeds = query(project, "SELECT value FROM tags WHERE key = 'seed' ORDER BY value")
    assert seeds == [("0",), ("0",), ("5",)]
    assert query(project, "PRAGMA journal_mode") == [("wal",)]
    assert {row[0] for row in query(project, "SELECT status FROM runs")} == {"SCHEDULED"}


def test_no_location_in_the_store_is_absolute(project: Path) -> None:
    rows = query(project, "SELECT artifact_location FROM experiments WHERE name = 'quick'")
    rows += query(project, "SELECT artifact_uri FROM runs")
    assert rows and all(row[0].startswith("results/mlflow/artifacts/quick") for row in rows)


def test_an_older_schema_is_migrated_and_keeps_its_runs(project: Path) -> None:
    from alembic import command
    from mlflow.store.db import utils

    where = Destination("quick", "sqlite:///results/mlflow/mlflow.db", project)
    with quiet_logging():
        command.downgrade(utils._get_alembic_config(where.client_uri), "-1")
    before = query(project, "SELECT version_num FROM alembic_version")
    init_store(config(), project, log)
    assert query(project, "SELECT version_num FROM alembic_version") != before
    assert len(query(project, PARENTS)) == 3


def _make_parent(arguments: tuple[Path, str]) -> str:
    root, name = arguments
    where = Destination("quick", "sqlite:///results/mlflow/mlflow.db", root)
    client, experiment = connect(where)
    return ensure_parent(client, where, experiment, name, {"method": "kto"})


def test_parents_that_are_made_at_once_are_made_once(project: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        made = pool.map(_make_parent, [(project, "late")] * 4, chunksize=1)
    assert len(set(made)) == 1
    assert query(project, PARENTS).count(("late",)) == 1


def test_a_deleted_experiment_is_restored(project: Path) -> None:
    where = Destination("quick", "sqlite:///results/mlflow/mlflow.db", project)
    client, experiment = connect(where)
    client.delete_experiment(experiment)
    assert connect(where)[1] == experiment
    assert client.get_experiment(experiment).lifecycle_stage == "active"


def test_the_logging_of_the_process_is_left_alone(tmp_path: Path) -> None:
    root = logging.getLogger()
    handler, mine = logging.NullHandler(), logging.getLogger("mine.before")
    root.addHandler(handler)
    level, handlers = root.level, list(root.handlers)
    try:
        init_store(config(), tmp_path, log)
        assert (root.level, root.handlers, mine.disabled) == (level, handlers, False)
    finally:
        root.removeHandler(handler)


def test_a_server_that_does_not_answer_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    begin = time.monotonic()
    with caplog.at_level(logging.WARNING):
        init_store(config(uri="http://ann:secret@127.0.0.1:9"), tmp_path, log)
    assert "does not answer" in caplog.text and "secret" not in caplog.text
    assert time.monotonic() - begin < 30, "MLflow's own patience is minutes"


def test_a_uri_of_no_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"htp://\*\*\*@x is no place for MLflow; mend"):
        init_store(config(uri="htp://ann:secret@x"), tmp_path, log)


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "results/mlflow"
    folder.mkdir(parents=True)
    (folder / "mlflow.db").write_text("this is no database, not even a small one" * 100)
    with pytest.raises(UserError, match=r"mlflow\.db: the MLflow store cannot be written .* mend"):
        init_store(config(), tmp_path, log)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    folder.chmod(0o500)
    with pytest.raises(UserError, match="cannot be written"):
        init_store(config(), tmp_path, log)


def test_a_busy_database_is_waited_for(project: Path) -> None:
    with closing(sqlite3.connect(project / "results/mlflow/mlflow.db", timeout=1, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            waiting = pool.apply_async(_make_parent, ((project, "patient"),))
            with pytest.raises(multiprocessing.TimeoutError):
                waiting.get(timeout=6)
            other.execute("COMMIT")
            assert waiting.get(timeout=60)


def test_params_are_flattened() -> None:
    nested = {"seed": 1, "run": {"beta": 0.1, "inner": {"name": "x"}}, "list": [1, "a"], "none": None, "yes": True}
    assert flatten(nested) == {
        "seed": "1",
        "run.beta": "0.1",
        "run.inner.name": "x",
        "list": '[1, "a"]',
        "none": "null",
        "yes": "true",
    }
