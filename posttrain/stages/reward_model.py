"""The reward model: a scalar head on the SFT model's trunk, trained on preference pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from posttrain.data.tokenizer import load_tokenizer
from posttrain.evaluation import statistics
from posttrain.evaluation.statistics import Estimate, write_estimates
from posttrain.model.export import export_reward_module
from posttrain.model.heads import RewardModule
from posttrain.model.layers import train_last
from posttrain.model.load import load_causal_lm
from posttrain.roles.batches import Forward, Unit
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
    pairs = read_pairs(stage, "train", model)
    module = RewardModule.from_causal_lm(model, derive(stage.seed, "reward head"))
    frozen = train_last(module, settings.train_layers, [module.score])
    forward = Forward(load_tokenizer(folder).pad_id, settings.microbatch_tokens, stage.device)
    if settings.steps * settings.minibatch >= 2 * len(pairs):  # else most rows are seen once
        forward = keep_frozen(stage, forward, module, frozen, [row for pair in pairs for row in pair])
    job = RewardPairs(module, pairs, settings, forward, stage.seed)
    Trainer(stage, settings, job).run()
    validation = validation_rows(read_pairs(stage, "validation", model), stage.seed)
    if validation:
        stage.tracker.summary(job.evaluate(validation))
    held_out = held_out_figures(stage, job, model)
    stage.tracker.summary({name: found.value for name, found in held_out.items()})
    write_estimates(stage.out / "metrics.json", held_out)
    export_reward_module(module, folder, stage.out / "model")


def held_out_figures(stage: Stage, job: RewardPairs, model: PreTrainedModel) -> dict[str, Estimate]:
    """eval/test_accuracy and eval/test_loss over pairs of the test split, of which nothing where there is none.

    Pairs of rated texts count where the ratings are more than CLEAR_GAP apart, pairs that were given as such (their gap
    is NaN) all. The intervals are over pairs.
    """
    rows = [row for row in read_split(stage, "test", model) if math.isnan(row["gap"]) or row["gap"] > CLEAR_GAP]
    pairs = validation_rows(as_pairs(rows), stage.seed, TEST_PAIRS)
    if not pairs:
        return {}
    found = job.measure(pairs)
    return {
        f"eval/test_{name}": statistics.mean(found[name], RESAMPLES, derive(stage.seed, "bootstrap", name))
        for name in ("accuracy", "loss")
    }


def read_pairs(stage: Stage, split: str, model: PreTrainedModel) -> list[Unit]:
    """((prompt, chosen), (prompt, rejected)) of one split of pairs.parquet."""
    return as_pairs(read_split(stage, split, model))


def read_split(stage: Stage, split: str, model: PreTrainedModel) -> list[dict[str, Any]]:
    """The rows of one split of pairs.parquet."""
    return read_rows(stage.inputs["data"] / "pairs.parquet", split, ("chosen_ids", "rejected_ids"), model)


def as_pairs(rows: Sequence[dict[str, Any]]) -> list[Unit]:
    """((prompt, chosen), (prompt, rejected)) of each row."""
    return [((row["prompt_ids"], row["chosen_ids"]), (row["prompt_ids"], row["rejected_ids"])) for row in rows]
