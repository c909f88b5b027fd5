"""The Parquet tables that stages hand to each other: fixed columns, stable row order, equal bytes for equal rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from posttrain.errors import UserError

Row = Mapping[str, Any]


def _schema(nullable: tuple[str, ...] = (), /, **columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=name in nullable) for name, kind in columns.items()])


_IDS = pa.list_(pa.field("item", pa.int32(), nullable=False))
_ROW = {"id": pa.string(), "split": pa.string()}
_PAIR = {**_ROW, "prompt_ids": _IDS, "chosen_ids": _IDS, "rejected_ids": _IDS, "gap": pa.float64()}
_LABEL = {**_ROW, "prompt_ids": _IDS, "completion_ids": _IDS, "label": pa.bool_()}

SFT = _schema(**_ROW, prompt_ids=_IDS, completion_ids=_IDS)
PROMPTS = _schema(**_ROW, prompt_ids=_IDS, text=pa.string())
PAIRS = _schema(**_PAIR)
LABELS = _schema(**_LABEL)
SAMPLES = _schema(
    id=pa.string(),
    sample=pa.int32(),
    prompt_ids=_IDS,
    completion_ids=_IDS,
    finish=pa.string(),
    text=pa.string(),
)
RANKED_PAIRS = _schema(**_PAIR, chosen_score=pa.float64(), rejected_score=pa.float64())
RANKED_LABELS = _schema(**_LABEL, score=pa.float64())
EVALUATED = _schema(
    ("judge", "base_log_prob"),  # null without a judge, and where the base model is untrained
    id=pa.string(),
    prompt_ids=_IDS,
    completion_ids=_IDS,
    finish=pa.string(),
    prompt=pa.string(),
    text=pa.string(),
    reward=pa.float64(),
    judge=pa.float64(),
    kl=pa.float64(),
    base_log_prob=pa.float64(),
)


def write_table(path: Path, rows: Sequence[Row], schema: pa.Schema) -> None:
    """Write `rows` in their order; equal rows give equal bytes with the same version of pyarrow.

    Args:
        path: the file to write, replaced if it exists.
        rows: mappings with exactly the schema's columns, None only in the nullable ones.
        schema: one of this module's schemas.

    Raises:
        ValueError: a row lacks a column, has one more, or holds None where it must not.
    """
    names = set(schema.names)
    filled = [field.name for field in schema if not field.nullable]
    for index, row in enumerate(rows):
        if row.keys() != names or any(row[name] is None for name in filled):
            raise ValueError(
                f"{path.name}: row {index} has {dict(row)}, wanted exactly {schema.names}, no None in {filled}"
            )
    table = pa.Table.from_pylist(list(rows), schema=schema)
    pq.write_table(table, path, version="2.6", compression="snappy", use_dictionary=True, write_statistics=True)


def read_table(path: Path) -> pd.DataFrame:
    """The table at `path`; cells of token ids are plain lists of int.

    Raises:
        UserError: the file is missing or is not Parquet.
    """
    try:
        table = pq.ParquetFile(path).read()
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: run the stage that makes it again.") from None
    except (pa.ArrowInvalid, OSError) as fault:
        raise UserError(
            f"{path} is not a readable Parquet file ({fault}): run the stage that makes it again."
        ) from None
    return pd.DataFrame(table.to_pylist(), columns=table.schema.names)
