"""The recipe of an experiment, put together from its manifests."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.config.load import load_config, parse_config, resolved_yaml, stage_slice
from posttrain.config.schema import Config
from posttrain.evaluation.comparison import Experiment
from posttrain.evaluation.entries import Record, read_records
from posttrain.evaluation.reproduce import config_text, recipe
from posttrain.provenance.images import image_id
from tests.evaluation import fake
from tests.workflow.project import REPOSITORY

CONFIGS = sorted([*(REPOSITORY / "configs").glob("*.yaml"), REPOSITORY / "config.yaml"])


def finished(config: Config, folder: Path, **facts: Any) -> Experiment:
    """An experiment of this config with every stage's manifest."""
    for stage in ("prepare", "sft", "reward_model", "sample", "rank"):
        fake.record(folder / stage, stage, None, stage_slice(config, stage).as_dict(), **facts)
    for run in config.runs:
        fake.record(folder / "runs" / run, "post_train", run, stage_slice(config, "post_train", run).as_dict())
    for name in ("sft", *config.runs):
        fake.record(folder / "eval" / name, "evaluate", name, stage_slice(config, "evaluate").as_dict())
    return Experiment(config.experiment, [], config.flags, read_records(folder, ["sft", *config.runs]))


@pytest.mark.parametrize("path", CONFIGS, ids=[path.stem for path in CONFIGS])
def test_the_configuration_is_that_which_ran(path: Path, tmp_path: Path) -> None:
    config = load_config(path)
    text = config_text(finished(config, tmp_path))
    assert text is not None
    # Memory, GPUs, the image's name and the tracking server decide no result and stand in no manifest.
    given = yaml.safe_load(resolved_yaml(config))
    same = config.resources.model_dump(include={"device", "threads", "stage_threads"})
    wanted = parse_config({**given, "resources": same, "tracking": {}}, "wanted")
    assert parse_config(yaml.safe_load(text), "found") == wanted


def test_a_part_that_is_missing_gives_no_configuration(tmp_path: Path) -> None:
    experiment = finished(load_config(REPOSITORY / "configs/quick.yaml"), tmp_path)
    for lacking in ("prepare", "post_train"):
        kept = [record for record in experiment.records if record.manifest["stage"] != lacking]
        assert config_text(dataclasses.replace(experiment, records=kept)) is None, lacking


def test_the_commands_name_commit_config_and_containers(tmp_path: Path) -> None:
    experiment = finished(load_config(REPOSITORY / "configs/quick.yaml"), tmp_path)
    found = recipe(experiment)
    assert found is not None and found.commits == ["abc"] and not found.dirty and found.images == ["host"]
    assert "git checkout abc" in found.commands and "--configfile quick.yaml" in found.commands
    assert "--use-singularity" not in found.commands
    inside = Record({**experiment.records[0].manifest, "image": "12ab"}, {"commit": "def", "dirty": True})
    found = recipe(dataclasses.replace(experiment, records=[*experiment.records, inside]))
    assert found is not None and found.commits == ["abc", "def"] and found.dirty and found.images == ["host", "12ab"]
    assert "git checkout def" in found.commands and "--use-singularity" in found.commands


def test_an_unknown_commit_is_not_checked_out(tmp_path: Path) -> None:
    found = recipe(finished(load_config(REPOSITORY / "configs/quick.yaml"), tmp_path, commit=None))
    assert found is not None and found.commits == ["unknown", "abc"] and "git checkout abc" in found.commands
    alone = [Record({"stage": "sft", "config": {}}, {"commit": None})]
    found = recipe(Experiment("x", [], load_config(REPOSITORY / "config.yaml").flags, alone))
    assert found is not None and "checkout" not in found.commands


def test_nothing_is_known_of_stages_that_are_gone() -> None:
    assert recipe(Experiment("x", [], load_config(REPOSITORY / "config.yaml").flags)) is None


def _made_in(experiment: Experiment, image: str) -> Experiment:
    records = [Record({**record.manifest, "image": image}, record.facts) for record in experiment.records]
    return dataclasses.replace(experiment, records=records)


def test_the_image_of_another_name_is_written(tmp_path: Path) -> None:
    experiment = finished(load_config(REPOSITORY / "configs/quick.yaml"), tmp_path)
    for image, wanted, unknown in (
        (image_id("cuda121"), "cuda121", []),
        (image_id("cpu"), None, []),
        ("12ab", None, ["12ab"]),
    ):
        found = recipe(_made_in(experiment, image))
        assert found is not None and found.config is not None and found.unknown_images == unknown
        assert yaml.safe_load(found.config).get("resources", {}).get("image") == wanted


def test_files_that_the_config_names_are_told(tmp_path: Path) -> None:
    experiment = finished(load_config(REPOSITORY / "configs/quick.yaml"), tmp_path)
    found = recipe(experiment)
    assert found is not None and found.files == []
    config = {"evaluation": {"judge": "own/judge.py:score"}, "model": {"base": "./my-model"}}
    record = Record({"stage": "evaluate", "run": "sft", "config": config}, {})
    found = recipe(dataclasses.replace(experiment, records=[record]))
    assert found is not None and found.files == ["own/judge.py", "./my-model"]
