import json
import math
import shutil

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from posttrain.data.tables import PAIRS, read_table, write_table
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


def with_test_pairs(world, folder, gaps):
    """A copy of data/ in which the training pairs stand in the test split too, with these gaps in turn."""
    shutil.copytree(world / "data", folder)
    pairs = read_table(folder / "pairs.parquet").to_dict("records")
    train = [row for row in pairs if row["split"] == "train"]
    held_out = [
        {**row, "id": f"test{i}", "split": "test", "gap": gaps[i % len(gaps)]}
        for i, row in enumerate(row if i % 3 else swapped(row) for i, row in enumerate(train))
    ]
    write_table(folder / "pairs.parquet", [*pairs, *held_out], PAIRS)
    return held_out


def swapped(row):
    return {**row, "chosen_ids": row["rejected_ids"], "rejected_ids": row["chosen_ids"]}


@pytest.mark.parametrize(
    ("gaps", "counts"), [((1.0, 1.5, 3.0, 0.5), {1.5, 3.0}), ((math.nan, 2.0, 1.0), {math.nan, 2.0})]
)
def test_held_out_figures_are_those_of_clear_pairs(world, tmp_path, gaps, counts):
    stage = make_stage("reward_model", world, tmp_path, steps=30, learning_rate=3e-3)
    stage.inputs["data"] = tmp_path / "data"
    rows = with_test_pairs(world, tmp_path / "data", gaps)
    run_stage(stage)
    judge = AutoModelForSequenceClassification.from_pretrained(stage.out / "model").eval()
    margins = []
    with torch.no_grad():
        for row in rows:
            if row["gap"] in counts or math.isnan(row["gap"]):
                good, bad = (
                    float(judge(torch.tensor([row["prompt_ids"] + row[name]])).logits)
                    for name in ("chosen_ids", "rejected_ids")
                )
                margins.append(good - bad)
    found = json.loads((stage.out / "metrics.json").read_text())
    assert found.keys() == {f"eval/test_{name}" for name in ("accuracy", "loss", "brier", "calibration_error")}
    right = sum(margin > 0 for margin in margins)
    assert 0 < right < len(margins), "the test would see little"
    accuracy, loss = found["eval/test_accuracy"], found["eval/test_loss"]
    assert accuracy["n"] == loss["n"] == len(margins) < len(rows)
    assert accuracy["value"] == pytest.approx(right / len(margins))
    losses = [math.log1p(math.exp(-margin)) for margin in margins]
    assert loss["value"] == pytest.approx(sum(losses) / len(losses), abs=1e-4)
    assert loss["low"] < loss["value"] < loss["high"]
    width = 2 * 1.96 * math.sqrt(accuracy["value"] * (1 - accuracy["value"]) / len(margins))
    assert accuracy["high"] - accuracy["low"] == pytest.approx(width, rel=0.15), "the binomial's, by theory"
    probabilities = [1 / (1 + math.exp(-margin)) for margin in margins]
    brier = found["eval/test_brier"]
    assert brier["value"] == pytest.approx(sum((1 - p) ** 2 for p in probabilities) / len(margins), abs=1e-4)
    assert brier["low"] < brier["value"] < brier["high"]
    error = found["eval/test_calibration_error"]
    assert error["low"] <= error["value"] <= error["high"]
    assert error["value"] >= abs(sum(max(p, 1 - p) for p in probabilities) - right) / len(margins) - 1e-4, "bin by bin"
    for name in found:
        assert stage.tracker.final[name] == found[name]["value"]


def test_without_clear_test_pairs_there_is_no_figure(world, tmp_path):
    stage = make_stage("reward_model", world, tmp_path, steps=1)
    stage.inputs["data"] = tmp_path / "data"
    with_test_pairs(world, tmp_path / "data", (1.0, 0.4))
    run_stage(stage)
    assert json.loads((stage.out / "metrics.json").read_text()) == {}
    assert "eval/accuracy" in stage.tracker.final and "eval/test_accuracy" not in stage.tracker.final


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
