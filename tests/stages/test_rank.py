import math

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from posttrain.data.tables import read_table
from posttrain.errors import UserError
from posttrain.roles.reward_model import RewardModel
from posttrain.stages.rank import make_labels, make_pairs
from tests.trainer.harness import make_stage, run_stage


def group(*scores, completions=None, prompt="p"):
    return [
        {
            "id": prompt,
            "sample": i,
            "prompt_ids": [1],
            "completion_ids": completions[i] if completions else [10 + i],
            "score": score,
        }
        for i, score in enumerate(scores)
    ]


def test_best_against_worst_with_a_gap_above_the_least():
    groups = [
        group(0.5, 2.0, -1.0, prompt="wide"),
        group(1.0, 1.25, prompt="narrow"),
        group(1.0, 1.0, completions=[[7], [7]], prompt="equal"),
        group(3.0, prompt="alone"),
    ]
    pairs, counts = make_pairs(groups, least_gap=0.25)
    assert [(p["id"], p["chosen_ids"], p["rejected_ids"], p["gap"]) for p in pairs] == [("wide", [11], [12], 3.0)]
    assert (pairs[0]["chosen_score"], pairs[0]["rejected_score"]) == (2.0, -1.0)
    assert counts == {"pairs": 1, "pairs_equal": 2, "pairs_small_gap": 1}


def test_labels_are_above_and_below_the_prompt_s_own_mean():
    labels, counts = make_labels([group(1.0, 2.0, 3.0), group(10.0, 11.0, prompt="q")], least_gap=0.0)
    assert [(row["id"], row["label"]) for row in labels] == [
        ("p-0", False),
        ("p-2", True),
        ("q-0", False),
        ("q-1", True),
    ]
    assert counts == {"desirable": 2, "undesirable": 2, "labels_small_gap": 1}


def test_labels_need_the_least_gap_to_the_mean():
    labels, counts = make_labels([group(1.0, 2.0, 2.5, 3.5)], least_gap=0.25)  # their mean is 2.25
    assert [(row["id"], row["label"]) for row in labels] == [("p-0", False), ("p-3", True)]
    assert counts == {"desirable": 1, "undesirable": 1, "labels_small_gap": 2}


def test_scores_are_those_of_the_model_row_by_row(world, tmp_path):
    stage = run_stage(make_stage("rank", world, tmp_path))
    judge = AutoModelForSequenceClassification.from_pretrained(world / "reward_model" / "model").eval()
    labels = read_table(stage.out / "labels.parquet").to_dict("records")
    assert len(labels) > 100
    for row in labels[:20]:
        with torch.no_grad():
            score = float(judge(torch.tensor([row["prompt_ids"] + row["completion_ids"]])).logits)
        assert row["score"] == pytest.approx(score, abs=1e-5)
    pairs = read_table(stage.out / "pairs.parquet").to_dict("records")
    assert all(row["gap"] == row["chosen_score"] - row["rejected_score"] > 0 for row in pairs)
    assert {row["split"] for row in pairs} == {row["split"] for row in labels} == {"train"}
    assert stage.tracker.final["rank/pairs"] == len(pairs)


def test_no_usable_pair_says_what_to_change(world, tmp_path):
    with pytest.raises(UserError, match=r"rank\.least_gap 1000, .*lower these"):
        run_stage(make_stage("rank", world, tmp_path, least_gap=1000.0))


def test_scores_that_are_no_numbers_are_left_out_and_counted(world, tmp_path, monkeypatch):
    real = RewardModel.score

    def broken(self, rows):
        scores = real(self, rows)
        scores[0] = math.nan
        return scores

    monkeypatch.setattr(RewardModel, "score", broken)
    stage = run_stage(make_stage("rank", world, tmp_path))
    assert stage.tracker.final["rank/not_finite"] > 5
    assert all(math.isfinite(score) for score in read_table(stage.out / "labels.parquet")["score"])
