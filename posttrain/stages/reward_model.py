"""The reward model: a scalar head on the SFT model's trunk, trained on preference pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posttrain.data.tokenizer import load_tokenizer
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


def run(stage: Stage) -> None:
    """Trains, measures the accuracy on validation pairs, exports the model."""
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
    export_reward_module(module, folder, stage.out / "model")


def read_pairs(stage: Stage, split: str, model: PreTrainedModel) -> list[Unit]:
    """((prompt, chosen), (prompt, rejected)) of one split of pairs.parquet."""
    rows = read_rows(stage.inputs["data"] / "pairs.parquet", split, ("chosen_ids", "rejected_ids"), model)
    return [((row["prompt_ids"], row["chosen_ids"]), (row["prompt_ids"], row["rejected_ids"])) for row in rows]
