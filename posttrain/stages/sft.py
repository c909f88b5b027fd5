"""Supervised fine-tuning of the base model on prompts and completions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posttrain.data.tables import read_table
from posttrain.data.tokenizer import load_tokenizer
from posttrain.errors import UserError
from posttrain.model.batch import Row
from posttrain.model.builtin import init_builtin
from posttrain.model.export import export_model
from posttrain.model.load import load_causal_lm
from posttrain.roles.batches import Forward
from posttrain.runtime.seeds import derive
from posttrain.trainer.supervised import SupervisedTokens
from posttrain.trainer.trainer import Trainer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from posttrain.stages.runner import Stage

BUILT_IN = "built-in: tiny"


def run(stage: Stage) -> None:
    """Trains, measures the validation loss, exports the model."""
    settings = stage.config.sft
    tokenizer_dir = stage.inputs["data"] / "tokenizer"
    rows = read_rows(stage, "train")
    model = load_base(stage)
    forward = Forward(load_tokenizer(tokenizer_dir).pad_id, settings.microbatch_tokens, stage.device)
    job = SupervisedTokens(model, rows, settings, forward, stage.seed)
    Trainer(stage, settings, job).run()
    validation = read_rows(stage, "validation")
    if validation:
        stage.tracker.summary(job.evaluate(validation))
    export_model(model, tokenizer_dir, stage.out / "model")


def load_base(stage: Stage) -> PreTrainedModel:
    """The base model; the built-in one is made here, for the tokenizer that `prepare` trained."""
    settings = stage.config.model
    if settings.base == BUILT_IN:
        return init_builtin(stage.inputs["data"] / "tokenizer", derive(stage.seed, "base"), settings).to(stage.device)
    return load_causal_lm(stage.inputs["model"] / "model", settings, stage.device)


def read_rows(stage: Stage, split: str) -> list[Row]:
    """(prompt, completion) ids of one split of sft.parquet.

    Raises:
        UserError: no training row, or a row without a token to train on.
    """
    path = stage.inputs["data"] / "sft.parquet"
    table = read_table(path)
    table = table[table["split"] == split]
    for row, completion in zip(table["id"], table["completion_ids"], strict=True):
        if not completion:
            raise UserError(f"{path}: row {row} has no completion token: nothing to train on; remove the row")
    if split == "train" and table.empty:
        raise UserError(f"{path} has no row in the split 'train': add data or lower data.split")
    return list(zip(table["prompt_ids"], table["completion_ids"], strict=True))
