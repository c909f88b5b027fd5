import shutil

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from posttrain.data.tables import read_table
from posttrain.errors import UserError
from tests.trainer.harness import make_stage, run_stage


def test_validation_figures_are_those_of_the_exported_model(world, tmp_path):
    stage = run_stage(make_stage("reward_model", world, tmp_path, steps=30, learning_rate=3e-3))
    judge = AutoModelForSequenceClassification.from_pretrained(stage.out / "model").eval()
    table = read_table(world / "data" / "pairs.parquet")
    margins = []
    with torch.no_grad():
        for row in table[table["split"] == "validation"].to_dict("records"):
            chosen, rejected = (
                float(judge(torch.tensor([row["prompt_ids"] + row[name]])).logits)
                for name in ("chosen_ids", "rejected_ids")
            )
            margins.append(chosen - rejected)
    assert stage.tracker.final["eval/accuracy"] == pytest.approx(sum(m > 0 for m in margins) / len(margins))
    assert stage.tracker.final["eval/margin"] == pytest.approx(sum(margins) / len(margins), abs=1e-4)


def test_the_head_is_drawn_from_the_seed(world, tmp_path):
    first = [
        run_stage(make_stage("reward_model", world, tmp_path / name, seed=seed, steps=1)).metric("train/margin")
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert first[0] == first[1] != first[2]


def test_data_without_pairs(world, tmp_path):
    stage = make_stage("reward_model", world, tmp_path / "stage")
    shutil.copytree(world / "data", tmp_path / "data")
    (tmp_path / "data" / "pairs.parquet").unlink()
    stage.inputs["data"] = tmp_path / "data"
    with pytest.raises(UserError, match=r"pairs\.parquet does not exist: no data source gives pairs"):
        run_stage(stage)
