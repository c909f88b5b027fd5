"""The reward model: a scalar head on the SFT model's trunk, trained on preference pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posttrain.data.tables import read_table
from posttrain.data.tokenizer import load_tokenizer
from posttrain.errors import UserError
from posttrain.model.export import export_reward_module
from posttrain.model.heads import RewardModule
from posttrain.model.load import load_causal_lm
from posttrain.roles.batches import Forward, Unit
from posttrain.runtime.seeds import derive
from posttrain.trainer.supervised import RewardPairs
from posttrain.trainer.trainer import Trainer

if TYPE_CHECKING:
    from posttrain.stages.runner import Stage


def run(stage: Stage) -> None:
    """Trains, measures the accuracy on validation pairs, exports the model."""
    settings = stage.config.reward_model
    folder = stage.inputs["sft"] / "model"
    pairs = read_pairs(stage, "train")
    trunk = load_causal_lm(folder, stage.config.model, stage.device)
    module = RewardModule.from_causal_lm(trunk, derive(stage.seed, "reward head"))
    forward = Forward(load_tokenizer(folder).pad_id, settings.microbatch_tokens, stage.device)
    job = RewardPairs(module, pairs, settings, forward, stage.seed)
    Trainer(stage, settings, job).run()
    validation = read_pairs(stage, "validation")
    if validation:
        stage.tracker.summary(job.evaluate(validation))
    export_reward_module(module, folder, stage.out / "model")


def read_pairs(stage: Stage, split: str) -> list[Unit]:
    """((prompt, chosen), (prompt, rejected)) of one split of pairs.parquet.

    Raises:
        UserError: no pairs at all, or none to train on.
    """
    path = stage.inputs["data"] / "pairs.parquet"
    if not path.is_file():
        raise UserError(f"{path} does not exist: no data source gives pairs; add ratings or preferences to data.sources")
    table = read_table(path)
    table = table[table["split"] == split]
    if split == "train" and table.empty:
        raise UserError(f"{path} has no pair in the split 'train': add data or lower data.rating_pairs.margin")
    columns = (table["prompt_ids"], table["chosen_ids"], table["rejected_ids"])
    return [((prompt, chosen), (prompt, rejected)) for prompt, chosen, rejected in zip(*columns, strict=True)]
