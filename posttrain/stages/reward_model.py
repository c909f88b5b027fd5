"""The reward model: a scalar head on the SFT model's trunk, trained on preference pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from posttrain.data.tokenizer import load_tokenizer
from posttrain.errors import UserError
from posttrain.evaluation import calibration, statistics
from posttrain.evaluation.statistics import Estimate, write_estimates
from posttrain.model.export import export_reward_module
from posttrain.model.heads import RewardModule
from posttrain.model.load import load_causal_lm
from posttrain.roles.batches import Forward, Unit
from posttrain.roles.learner import let_train
from posttrain.runtime.seeds import derive
from posttrain.trainer.comparison import RewardPairs
from posttrain.trainer.frozen import keep_frozen
from posttrain.trainer.rows import read_rows, validation_rows
from posttrain.trainer.trainer import Trainer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from posttrain.stages.runner import Stage

# Of the test pairs, those that people themselves would hardly dispute.
CLEAR_GAP = 1.0
RESAMPLES = 1000  # of the 95 % intervals
TEST_PAIRS = 2048  # at most: at an accuracy of 0.85 its standard error is then 0.008


def run(stage: Stage) -> None:
    """Trains, measures the accuracy on validation and test pairs, exports the model."""
    settings = stage.config.reward_model
    folder = stage.inputs["sft"] / "model"
    model = load_causal_lm(folder, stage.config.model, stage.device)
    rows = read_split(stage, "train", model)
    pairs, gaps = as_pairs(rows), training_gaps(stage, rows)
    module = RewardModule.from_causal_lm(model, derive(stage.seed, "reward head"))
    frozen = let_train(module, settings, derive(stage.seed, "lora"), [module.score])
    forward = Forward(load_tokenizer(folder).pad_id, settings.microbatch_tokens, stage.device)
    if settings.steps * settings.minibatch >= 2 * len(pairs):  # else most rows are seen once
        forward = keep_frozen(stage, forward, module, frozen, [row for pair in pairs for row in pair])
    job = RewardPairs(module, pairs, gaps, settings, forward, stage.seed)
    Trainer(stage, settings, job).run()
    validation = validation_rows(as_pairs(read_split(stage, "validation", model)), stage.seed)
    if validation:
        stage.tracker.summary(job.evaluate(validation))
    held_out = held_out_figures(stage, job, model)
    stage.tracker.summary({name: found.value for name, found in held_out.items()})
    write_estimates(stage.out / "metrics.json", held_out)
    export_reward_module(module, folder, stage.out / "model")


def held_out_figures(stage: Stage, job: RewardPairs, model: PreTrainedModel) -> dict[str, Estimate]:
    """eval/test_* over pairs of the test split: accuracy, loss, Brier score, calibration error; nothing without pairs.

    Pairs of rated texts count where the ratings are more than CLEAR_GAP apart, pairs that were given as such (their gap
    is NaN) all. The intervals are over pairs.
    """
    rows = [row for row in read_split(stage, "test", model) if math.isnan(row["gap"]) or row["gap"] > CLEAR_GAP]
    pairs = validation_rows(as_pairs(rows), stage.seed, TEST_PAIRS)
    if not pairs:
        return {}
    found = job.measure(pairs)
    found["brier"] = calibration.brier(found["margin"]).tolist()
    seeds = {name: derive(stage.seed, "bootstrap", name) for name in ("accuracy", "loss", "brier", "calibration")}
    return {
        "eval/test_accuracy": statistics.mean(found["accuracy"], RESAMPLES, seeds["accuracy"]),
        "eval/test_loss": statistics.mean(found["loss"], RESAMPLES, seeds["loss"]),
        "eval/test_brier": statistics.mean(found["brier"], RESAMPLES, seeds["brier"]),
        "eval/test_calibration_error": calibration.error(found["margin"], RESAMPLES, seeds["calibration"]),
    }


def training_gaps(stage: Stage, rows: Sequence[dict[str, Any]]) -> list[float]:
    """By how much the rewards of each pair are to differ: its ratings' gap with `margin: true`, else 0.

    Raises:
        UserError: a pair has no gap, because it was given as a preference.
    """
    if not stage.config.reward_model.margin:
        return [0.0] * len(rows)
    for row in rows:
        if math.isnan(row["gap"]):
            raise UserError(
                f"{stage.inputs['data'] / 'pairs.parquet'}: row {row['id']} has no gap of ratings, which "
                "reward_model.margin asks for; set it to false, or take sources of form preference out"
            )
    return [row["gap"] for row in rows]


def read_split(stage: Stage, split: str, model: PreTrainedModel) -> list[dict[str, Any]]:
    """The rows of one split of pairs.parquet."""
    return read_rows(stage.inputs["data"] / "pairs.parquet", split, ("chosen_ids", "rejected_ids"), model)


def as_pairs(rows: Sequence[dict[str, Any]]) -> list[Unit]:
    """((prompt, chosen), (prompt, rejected)) of each row."""
    return [((row["prompt_ids"], row["chosen_ids"]), (row["prompt_ids"], row["rejected_ids"])) for row in rows]
