"""Reward hacking for real: a run without a KL term and with a high learning rate is flagged, a careful one is not."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.workflow.conftest import MICRO
from tests.workflow.project import Project

pytestmark = pytest.mark.workflow

SHARED = {"method": "grpo", "prompts_per_step": 4, "samples_per_prompt": 8, "minibatch": 32, "max_new_tokens": 8}
CAREFUL = {**SHARED, "steps": 3, "learning_rate": 1e-5, "kl_coef": 0.1}
RECKLESS = {**SHARED, "steps": 40, "learning_rate": 5e-3, "kl_coef": 0}


def test_a_reckless_run_is_flagged_and_a_careful_one_is_not(project: Project) -> None:
    runs = {"careful": CAREFUL, "reckless": RECKLESS}
    project.write_config({**MICRO, "runs": runs, "evaluation": {"prompts": 24, "max_new_tokens": 8, "bootstrap": 200}})
    project.run()
    compare = project.folder / "results/micro/compare"
    with (compare / "summary.csv").open(encoding="utf-8") as file:
        rows = {row["run"]: row for row in csv.DictReader(file)}
    assert rows["careful"]["flags"] == "none"
    assert "least_distinct_2" in rows["reckless"]["flags"].split(";")
    page = (compare / "report.html").read_text(encoding="utf-8")
    assert "<b>reckless is flagged:</b>" in page
    assert "careful is flagged" not in page
    rows_of_mlflow = mlflow_rows(project.folder / "results/mlflow")
    assert rows_of_mlflow["careful"] == ("none", 0)
    flags, count = rows_of_mlflow["reckless"]
    assert "least_distinct_2" in flags and count >= 1


def mlflow_rows(store: Path) -> dict[str, tuple[str, float]]:
    """The tag `flags` and the metric eval/flags of each run's row."""
    (database,) = store.glob("*.db")
    client = MlflowClient(f"sqlite:///{database}")
    experiment = client.get_experiment_by_name("micro")
    found = client.search_runs([experiment.experiment_id], "tags.role = 'parent'")
    return {
        run.info.run_name: (run.data.tags["flags"], run.data.metrics["eval/flags"])
        for run in found
        if "flags" in run.data.tags
    }
