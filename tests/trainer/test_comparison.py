"""The reward model's training: gaps of ratings, centring and label smoothing on."""

import math

import pytest
import torch

from posttrain.config.schema import RewardModel
from posttrain.data.tables import PAIRS, read_table, write_table
from posttrain.errors import Interrupted, UserError
from posttrain.trainer.comparison import RewardPairs
from tests.trainer.harness import digests, make_stage, run_stage
from tests.trainer.test_invariance import check_same, job_of, watch

__all__ = ["watch"]

ALL = {"margin": True, "centre_coef": 0.5, "label_smoothing": 0.2}


@pytest.fixture(scope="module")
def rated(world, tmp_path_factory):
    """The same inputs, in which every pair has a gap of its own."""
    place = tmp_path_factory.mktemp("rated")
    for folder in world.iterdir():
        if folder.name != "data":
            (place / folder.name).symlink_to(folder)
    (place / "data").mkdir()
    for path in (world / "data").iterdir():
        (place / "data" / path.name).symlink_to(path)
    rows = read_table(world / "data" / "pairs.parquet").to_dict("records")
    (place / "data" / "pairs.parquet").unlink()
    write_table(place / "data" / "pairs.parquet", [{**row, "gap": 0.1 * i} for i, row in enumerate(rows)], PAIRS)
    return place


def reward(module, prompt, completion):
    hidden = module.trunk(torch.tensor([[*prompt, *completion]])).last_hidden_state
    return float(module.score(hidden[0, -1]))


def test_the_loss_of_a_step_by_hand(rated, tmp_path, monkeypatch):
    """Every text alone through the model, the papers' formulas in Python's numbers."""
    job = job_of("reward_model", rated, tmp_path, 90, monkeypatch, **ALL)
    with torch.no_grad():
        job.module.score.weight.mul_(30)  # rewards near zero would hide the terms
    table = read_table(rated / "data" / "pairs.parquet")
    rows = table[table["split"] == "train"].to_dict("records")
    total, margins = 0.0, []
    for index in job.order.rows(1):
        row = rows[index]
        with torch.no_grad():
            chosen, rejected = (
                reward(job.module, row["prompt_ids"], row[name]) for name in ("chosen_ids", "rejected_ids")
            )
        right = 1 / (1 + math.exp(-(chosen - rejected - row["gap"])))
        total -= 0.8 * math.log(right) + 0.2 * math.log(1 - right)
        total += 0.5 * (chosen + rejected) ** 2
        margins.append(chosen - rejected)
    metrics, _ = job.step(1)
    assert max(map(abs, margins)) > 0.5
    assert metrics["train/loss"] == pytest.approx(total / 12, rel=1e-5)
    assert metrics["train/margin"] == pytest.approx(sum(margins) / 12, abs=1e-5)
    assert metrics["train/accuracy"] == pytest.approx(sum(m > 0 for m in margins) / 12)


def test_all_options_do_not_depend_on_the_micro_batches(rated, tmp_path, watch, monkeypatch):
    """FIELD_RULES 15: each pair keeps its own gap wherever it stands."""
    whole = watch(job_of("reward_model", rated, tmp_path / "whole", 1_000_000, monkeypatch, **ALL))
    for budget in (1, 35, 90):
        check_same(whole, watch(job_of("reward_model", rated, tmp_path / str(budget), budget, monkeypatch, **ALL)))


def test_each_option_moves_what_it_must(rated, tmp_path):
    """A gap pushes margins up, smoothing holds them back, centring draws the mean reward to zero."""

    def figures(name, **settings):
        stage = make_stage(
            "reward_model", rated, tmp_path / name, steps=40, learning_rate=3e-3, microbatch_tokens=1000, **settings
        )
        found = run_stage(stage).tracker.final
        return found["eval/margin"], abs(found["eval/chosen_reward"] + found["eval/rejected_reward"])

    margin, offset = figures("plain")
    assert figures("gap", margin=True)[0] > 1.2 * margin
    assert figures("smooth", label_smoothing=0.3)[0] < 0.8 * margin
    assert figures("centre", centre_coef=1.0)[1] < 0.5 * offset


def test_the_measured_loss_is_that_of_the_probabilities_whatever_was_trained(rated, tmp_path, monkeypatch):
    job = job_of("reward_model", rated, tmp_path, 60, monkeypatch, **ALL)
    found = job.measure(job.pairs[:6])
    wanted = [math.log1p(math.exp(-margin)) for margin in found["margin"]]
    assert found["loss"] == pytest.approx(wanted, rel=1e-5)


def test_stopped_with_all_options_it_resumes_to_the_same_bytes(rated, tmp_path):
    run_stage(make_stage("reward_model", rated, tmp_path / "whole", **ALL))
    stage = make_stage("reward_model", rated, tmp_path / "twice", **ALL)
    stage.interrupted = lambda: len(stage.tracker.steps) == 4
    with pytest.raises(Interrupted):
        run_stage(stage)
    rest = run_stage(make_stage("reward_model", rated, tmp_path / "twice", **ALL))
    assert min(rest.tracker.steps) == 5
    assert digests(tmp_path / "twice" / "out") == digests(tmp_path / "whole" / "out")
    plain = run_stage(make_stage("reward_model", rated, tmp_path / "plain"))
    assert digests(plain.out) != digests(tmp_path / "whole" / "out")


def test_other_gaps_are_other_data(rated, tmp_path, monkeypatch):
    """FIELD_RULES 23."""
    job = job_of("reward_model", rated, tmp_path, 60, monkeypatch, **ALL)

    def digest(gaps):
        return RewardPairs(job.module, job.pairs, gaps, RewardModel(steps=1), job.forward, 0).data

    gaps = [0.5] * len(job.pairs)
    assert digest(gaps) == digest(list(gaps)) != digest([*gaps[1:], 0.25])


def test_a_pair_without_a_gap_cannot_have_a_margin(rated, tmp_path):
    stage = make_stage("reward_model", rated, tmp_path / "stage", margin=True)
    stage.inputs["data"] = tmp_path / "data"
    (tmp_path / "data").mkdir()
    rows = read_table(rated / "data" / "pairs.parquet").to_dict("records")
    rows[2]["gap"] = math.nan
    write_table(tmp_path / "data" / "pairs.parquet", rows, PAIRS)
    with pytest.raises(UserError, match=r"row row2 has no gap of ratings, which reward_model\.margin asks for; set it"):
        run_stage(stage)
    assert not stage.tracker.steps
