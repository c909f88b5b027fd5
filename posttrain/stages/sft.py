"""Supervised fine-tuning of the base model on prompts and completions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posttrain.data.tokenizer import load_tokenizer
from posttrain.model.batch import Row
from posttrain.model.builtin import init_builtin
from posttrain.model.export import export_model
from posttrain.model.fitness import check_base
from posttrain.model.load import load_causal_lm
from posttrain.model.tiny import BUILT_IN
from posttrain.roles.batches import Forward
from posttrain.runtime.seeds import derive
from posttrain.trainer.rows import read_rows, validation_rows
from posttrain.trainer.supervised import SupervisedTokens
from posttrain.trainer.trainer import Trainer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from posttrain.stages.runner import Stage


def run(stage: Stage) -> None:
    """Trains, measures the validation loss, exports the model."""
    settings = stage.config.sft
    tokenizer_dir = stage.inputs["data"] / "tokenizer"
    model = load_base(stage)
    rows = read_split(stage, "train", model)
    forward = Forward(load_tokenizer(tokenizer_dir).pad_id, settings.microbatch_tokens, stage.device)
    job = SupervisedTokens(model, rows, settings, forward, stage.seed)
    Trainer(stage, settings, job).run()
    validation = validation_rows(read_split(stage, "validation", model), stage.seed)
    if validation:
        stage.tracker.summary(job.evaluate(validation))
    export_model(model, tokenizer_dir, stage.out / "model")


def load_base(stage: Stage) -> PreTrainedModel:
    """The base model; the built-in one is made here, for the tokenizer that `prepare` trained."""
    settings = stage.config.model
    if settings.base == BUILT_IN:
        model = init_builtin(stage.inputs["data"] / "tokenizer", derive(stage.seed, "base"), settings)
        return model.to(stage.device)  # type: ignore[arg-type]
    model = load_causal_lm(stage.inputs["model"] / "model", settings, stage.device)
    check_base(model)
    return model


def read_split(stage: Stage, split: str, model: PreTrainedModel) -> list[Row]:
    """(prompt, completion) ids of one split of sft.parquet; with `loss_on: all`, a text's first token and the rest."""
    table = read_rows(stage.inputs["data"] / "sft.parquet", split, ("completion_ids",), model)
    rows = [(row["prompt_ids"], row["completion_ids"]) for row in table]
    if stage.config.sft.loss_on == "completion":
        return rows
    return [(prompt[:1], [*prompt[1:], *completion]) for prompt, completion in rows]
