"""Views, descriptions and tables of samples in a real store."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from posttrain.data.tables import EVALUATED, write_table
from posttrain.tracking import notes, views
from posttrain.tracking.destination import Destination
from posttrain.tracking.store import connect, init_store
from posttrain.tracking.tracker import Tracker
from tests.tracking.project import config, query
from tests.tracking.test_tracker import run_id, tags

Opener = Callable[..., Tracker]

log = logging.getLogger("test.notes")
EXPERIMENT_TAGS = "SELECT key, value FROM experiment_tags WHERE experiment_id = 1"


def experiment_tags(project: Path) -> dict[str, str]:
    return dict(query(project, EXPERIMENT_TAGS))


def finish(stage: Tracker) -> None:
    assert stage.flush().complete
    stage.close("FINISHED")


def test_an_experiment_has_its_views_and_a_second_start_changes_nothing(project: Path) -> None:
    first = experiment_tags(project)
    wanted = views.view_tags(0)
    assert wanted.keys() | {notes.NOTE, "mlflow.experimentKind"} == first.keys()
    for key, value in wanted.items():
        assert json.loads(first[key])["state"] == json.loads(value)["state"]
    before = query(project, "SELECT * FROM tags ORDER BY run_uuid, key")
    init_store(config(), project, log)
    assert experiment_tags(project) == first
    assert query(project, "SELECT * FROM tags ORDER BY run_uuid, key") == before


def test_a_store_from_before_gets_them(project: Path) -> None:
    import sqlite3

    first = experiment_tags(project)
    with sqlite3.connect(project / "results/mlflow/mlflow.db", timeout=20) as connection:
        connection.execute("DELETE FROM experiment_tags WHERE key != 'mlflow.experimentKind'")
    connection.close()
    init_store(config(), project, log)
    assert experiment_tags(project).keys() == first.keys()


def test_a_store_where_we_may_not_tag_does_without(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import PERMISSION_DENIED

    def refuse(*arguments: object) -> None:
        raise MlflowException("no", error_code=PERMISSION_DENIED)

    where = Destination("quick", "sqlite:///results/mlflow/mlflow.db", project)
    client, experiment = connect(where)
    client.set_experiment_tag(experiment, notes.NOTE, "mine")
    monkeypatch.setattr(MlflowClient, "set_experiment_tag", refuse)
    with caplog.at_level(logging.INFO, logger="posttrain"):
        init_store(config(), project, log)
    assert [record.levelname for record in caplog.records] == ["INFO"] and "PERMISSION_DENIED" in caplog.text


def test_what_a_person_wrote_stays_below_ours(project: Path, tracker: Opener) -> None:
    client, experiment = connect(Destination("quick", "sqlite:///results/mlflow/mlflow.db", project))
    client.set_experiment_tag(experiment, notes.NOTE, "Ask Ann about seed 5.")
    for _ in range(2):
        notes.describe(client, experiment)
        text = experiment_tags(project)[notes.NOTE]
        assert text.startswith("One row per run") and text.endswith(f"{notes.MARKER}\n\nAsk Ann about seed 5.")


def test_a_rows_description_leads_to_the_files_behind_it(
    project: Path, tracker: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (stage, run) in enumerate((("post_train", "ppo"), ("evaluate", "ppo"), ("compare", None))):
        child = tracker(stage, run, f"key{number}")
        file = project / {"post_train": "manifest.json", "evaluate": "metrics.json", "compare": "report.html"}[stage]
        file.write_text("{}")
        child.artifact(file)
        finish(child)
    trained, evaluated, compared = (run_id(project, f"key{number}") for number in range(3))
    text = tags(project, tags(project, trained)["mlflow.parentRunId"])[notes.NOTE]
    assert "results/quick/runs/ppo/model" in text
    assert f"[post_train ppo](#/experiments/1/runs/{trained}?workflowType=machine_learning)**, finished" in text
    assert f"[metrics.json](#/experiments/1/runs/{evaluated}/artifacts/metrics.json?" in text
    report = f"[report.html](#/experiments/1/runs/{compared}/artifacts/report.html?"
    assert report in text and report in experiment_tags(project)[notes.NOTE]


def test_samples_become_a_table_of_the_row(project: Path, tracker: Opener) -> None:
    row = {"prompt_ids": [1], "completion_ids": [2], "finish": "stop", "text": "<b>", "kl": 0.0}
    unknown = {"judge": None, "base_log_prob": None}
    rows = [{**row, **unknown, "id": f"r{k}", "prompt": f"p {k}", "reward": k / 3} for k in range(2)]
    write_table(project / "samples.parquet", rows, EVALUATED)
    stage = tracker("evaluate", "ppo")
    stage.artifact(project / "samples.parquet")
    finish(stage)
    parent = tags(project, run_id(project))["mlflow.parentRunId"]
    [entry] = json.loads(tags(project, parent)["mlflow.loggedArtifacts"])
    assert entry["type"] == "table"
    table = json.loads((project / "results/mlflow/artifacts/quick" / parent / "artifacts" / entry["path"]).read_text())
    assert table == {
        "columns": ["prompt", "text", "reward", "kl", "finish"],
        "data": [["p 0", "<b>", 0.0, 0.0, "stop"], ["p 1", "<b>", 0.3333, 0.0, "stop"]],
    }


def test_the_views_find_the_rows_and_the_curves(project: Path, tracker: Opener) -> None:
    for key in ("old", "new"):
        stage = tracker("post_train", "ppo", key)
        stage.log(1, {"train/loss": 1})
        finish(stage)
    client, experiment = connect(Destination("quick", "sqlite:///results/mlflow/mlflow.db", project))
    found = {}
    for key, value in views.view_tags(0).items():
        state = json.loads(json.loads(value)["state"])
        order = f"{state['orderByKey']} {'ASC' if state['orderByAsc'] else 'DESC'}"
        runs = client.search_runs([experiment], state["searchFilter"], order_by=[order])
        found[key.rpartition(".")[2]] = [run.info.run_name for run in runs]
    assert found == {views.RUNS: ["sft", "ppo", "dpo"], views.CURVES: ["post_train ppo"]}
    colour = tags(project, run_id(project, "new"))["mlflow.runColor"]
    assert colour == views.COLOURS[0]
