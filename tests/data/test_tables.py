"""Tables: exact columns, equal bytes, ids as plain lists."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from posttrain.data.tables import EVALUATED, LABELS, PAIRS, PROMPTS, SFT, read_table, write_table
from posttrain.errors import UserError

ROWS = [
    {"id": "a", "split": "train", "prompt_ids": [1, 2], "completion_ids": [3]},
    {"id": "b", "split": "test", "prompt_ids": [1], "completion_ids": []},
]


def test_round_trip_in_order(tmp_path: Path) -> None:
    write_table(tmp_path / "t.parquet", ROWS, SFT)
    table = read_table(tmp_path / "t.parquet")
    assert table.to_dict("records") == ROWS
    assert type(table["prompt_ids"][0]) is list and type(table["prompt_ids"][0][0]) is int


def test_pandas_and_datasets_read_it(tmp_path: Path) -> None:
    import datasets

    write_table(tmp_path / "t.parquet", ROWS, SFT)
    assert [list(ids) for ids in pd.read_parquet(tmp_path / "t.parquet")["prompt_ids"]] == [[1, 2], [1]]
    loaded = datasets.Dataset.from_parquet(str(tmp_path / "t.parquet"), cache_dir=str(tmp_path / "cache"))
    assert loaded.to_list() == ROWS


def test_equal_rows_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_table(tmp_path / name, [dict(row) for row in ROWS], SFT)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_empty_tables_keep_their_columns(tmp_path: Path) -> None:
    write_table(tmp_path / "t.parquet", [], PAIRS)
    assert list(read_table(tmp_path / "t.parquet").columns) == PAIRS.names


def test_nan_is_a_number_and_labels_are_booleans(tmp_path: Path) -> None:
    pair = {"id": "a", "split": "train", "prompt_ids": [1], "chosen_ids": [2], "rejected_ids": [3], "gap": math.nan}
    write_table(tmp_path / "p.parquet", [pair], PAIRS)
    assert math.isnan(read_table(tmp_path / "p.parquet")["gap"][0])
    write_table(tmp_path / "l.parquet", [{**ROWS[0], "label": False}], LABELS)
    assert read_table(tmp_path / "l.parquet")["label"].tolist() == [False]


@pytest.mark.parametrize(
    "row",
    [
        {"id": "a", "split": "train", "prompt_ids": [1]},
        {"id": "a", "split": "train", "prompt_ids": [1], "text": "x", "more": 1},
        {"id": "a", "split": "train", "prompt_ids": None, "text": "x"},
    ],
    ids=["lacking", "additional", "None"],
)
def test_rows_must_fit_the_schema(row: dict[str, Any], tmp_path: Path) -> None:
    good = {"id": "a", "split": "train", "prompt_ids": [1], "text": "x"}
    with pytest.raises(ValueError, match="row 1"):
        write_table(tmp_path / "t.parquet", [good, row], PROMPTS)


def test_scores_that_an_evaluation_may_lack_are_null(tmp_path: Path) -> None:
    row = {"id": "a", "prompt_ids": [1], "completion_ids": [2], "finish": "eos", "prompt": "x", "text": "y"}
    row |= {"reward": 1.0, "judge": None, "kl": 0.5, "base_log_prob": None}
    write_table(tmp_path / "t.parquet", [row], EVALUATED)
    assert read_table(tmp_path / "t.parquet").to_dict("records") == [row]
    with pytest.raises(ValueError, match="row 0"):
        write_table(tmp_path / "t.parquet", [{**row, "kl": None}], EVALUATED)


def test_unreadable_tables_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"t\.parquet does not exist"):
        read_table(tmp_path / "t.parquet")
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"t\.parquet is not a readable Parquet file"):
        read_table(tmp_path / "t.parquet")
