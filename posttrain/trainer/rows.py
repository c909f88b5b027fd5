"""The tables that training reads: rows of one split, checked against the model before the first step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from posttrain.data.tables import read_table
from posttrain.errors import UserError
from posttrain.trainer.context import Context
from posttrain.trainer.order import permutation

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from posttrain.model.batch import Row
    from posttrain.rollout.buffer import Sample

# More rows would move the figures by less than their own error, and cost more than short trainings.
VALIDATION_ROWS = 256

T = TypeVar("T")


def read_rows(path: Path, split: str, completions: Sequence[str], model: PreTrainedModel) -> list[dict[str, Any]]:
    """The rows of `split` in the table's order; `completions` are its columns of completion ids.

    Raises:
        UserError: there is no such table or no training row, or a row has nothing to train on or does not fit into the
            model's context.
    """
    if not path.is_file():
        raise UserError(
            f"{path} does not exist: no data source gives {path.stem}; add one of that form to data.sources"
        )
    table = read_table(path)
    rows: list[dict[str, Any]] = table[table["split"] == split].to_dict("records")
    if not rows and split == "train":
        raise UserError(f"{path} has no row in the split 'train': add data, or lower data.split")
    for row in rows:
        for column in completions:
            _check(path, row, column, getattr(model.config, "max_position_embeddings", None))
    return rows


def training_prompts(context: Context) -> list[tuple[str, list[int]]]:
    """(id, ids) of every prompt of the training split.

    Raises:
        UserError: there is none.
    """
    path = context.inputs["data"] / "prompts.parquet"
    table = read_table(path)
    table = table[table["split"] == "train"]
    if table.empty:
        raise UserError(f"{path} has no prompt in the split 'train': add data or lower data.split")
    return list(zip(table["id"], table["prompt_ids"], strict=True))


def rows_of(samples: Sequence[Sample]) -> list[Row]:
    """(prompt, completion) of each sample."""
    return [(sample.prompt_ids, sample.completion_ids) for sample in samples]


def validation_rows(rows: list[T], seed: int, most: int = VALIDATION_ROWS) -> list[T]:
    """At most `most` of the rows, chosen by the seed, in their order: what is measured after training."""
    return [rows[i] for i in sorted(permutation(len(rows), seed, "validation")[:most])]


def _check(path: Path, row: dict[str, Any], column: str, room: int | None) -> None:
    length = len(row["prompt_ids"]) + len(row[column])
    if not row[column]:
        raise UserError(f"{path}: row {row['id']} has no token in {column}: nothing to train on; remove the row")
    if room is not None and length > room:
        raise UserError(
            f"{path}: row {row['id']} has {length} tokens with its {column}, more than the model's context of {room}; "
            "lower data.max_prompt_tokens or data.max_completion_tokens"
        )
