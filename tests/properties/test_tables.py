"""Rules 5, 7 and 20 on generated rows: one with nothing to train on is named; what is kept belongs to its content."""

from __future__ import annotations

import json
import logging
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from posttrain.data.tables import SFT, write_table
from posttrain.data.tokenizer import Tokenizer, copy_tokenizer, fingerprint, load_tokenizer
from posttrain.errors import UserError
from posttrain.model.packing import Row
from posttrain.trainer.order import data_digest
from posttrain.trainer.preference import reference_log_probs
from posttrain.trainer.rows import read_rows
from tests.properties.cases import tokens

ROWS = st.lists(st.tuples(tokens(3, 1), tokens(3)), min_size=1, max_size=3)
CONTEXT = 8
SHORT = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=CONTEXT))


@given(lengths=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=5))
def test_a_row_without_a_token_to_train_on_is_named(lengths: list[tuple[int, int]]) -> None:
    """Or too long for the model; otherwise all rows come back in their order."""
    rows = [
        {"id": f"s/{n}", "split": "train", "prompt_ids": [5] * p, "completion_ids": [6] * c}
        for n, (p, c) in enumerate(lengths)
    ]
    bad = next((f"row s/{n} has" for n, (p, c) in enumerate(lengths) if c == 0 or p + c > CONTEXT), None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sft.parquet"
        write_table(path, rows, SFT)
        if bad is not None:
            with pytest.raises(UserError, match=bad):
                read_rows(path, "train", ("completion_ids",), SHORT)  # type: ignore[arg-type]
        else:
            found = read_rows(path, "train", ("completion_ids",), SHORT)  # type: ignore[arg-type]
            assert [row["id"] for row in found] == [row["id"] for row in rows]


@given(first=ROWS, second=ROWS)
def test_equal_digests_are_equal_rows(first: list[Row], second: list[Row]) -> None:
    assert (data_digest(first) == data_digest(second)) == (first == second)


@given(rows=ROWS, data=st.data())
def test_a_moved_boundary_is_other_data(rows: list[Row], data: st.DataObject) -> None:
    """The same ids in the same order, of which one belongs to the prompt in place of the completion."""
    number = data.draw(st.integers(0, len(rows) - 1))
    prompt, completion = rows[number]
    moved: list[Row] = [*rows]
    moved[number] = ([*prompt, *completion[:1]], completion[1:])
    assert (data_digest(rows) == data_digest(moved)) == (not completion)


class Asked:
    """A reference that counts the rows it is asked for; the model that it stands for decides its numbers."""

    def __init__(self, model: int) -> None:
        self.model, self.count = model, 0

    def log_probs(self, rows: list[Row]) -> Tensor:
        self.count += len(rows)
        return torch.tensor([[float(self.model), float(sum(p) + 7 * sum(c))] for p, c in rows])


@given(runs=st.lists(st.tuples(ROWS, st.integers(0, 1)), min_size=1, max_size=4))
def test_a_cache_serves_the_rows_and_the_model_that_it_was_made_from(runs: list[tuple[list[Row], int]]) -> None:
    """Runs one after the other in one state folder: each gets its own numbers, and none is calculated twice."""
    with tempfile.TemporaryDirectory() as folder:
        known: set[str] = set()
        for rows, model in runs:
            sft = Path(folder) / f"sft-{model}"
            sft.mkdir(exist_ok=True)
            (sft / "manifest.json").write_text(json.dumps({"weights": model}))
            context: Any = SimpleNamespace(
                inputs={"sft": sft},
                state=Path(folder),
                device="cpu",
                log=logging.getLogger(),
                interrupted=lambda: False,
            )
            asked: Any = Asked(model)
            found = reference_log_probs(context, asked, rows, data_digest(rows))
            assert found.tolist() == asked.log_probs(rows).sum(-1).tolist()
            content = repr((rows, model))
            assert asked.count == len(rows) * (1 if content in known else 2)
            known.add(content)


@given(token=st.integers(3, 250), name=st.text(st.characters(categories=["Ll"]), min_size=1, max_size=5))
def test_a_fingerprint_sees_every_token(tokenizer_kinds: dict[str, Tokenizer], token: int, name: str) -> None:
    """Of two tokenizers that differ in the text of one id, and of a copy."""
    source = tokenizer_kinds["built-in"].folder
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        copy_tokenizer(source, copy)
        assert fingerprint(copy) == fingerprint(source)
        content = json.loads((copy / "tokenizer.json").read_text())
        vocabulary = content["model"]["vocab"]
        old = next(text for text, number in vocabulary.items() if number == token)
        vocabulary[f"{name}\u2400"] = vocabulary.pop(old)
        content["model"]["merges"] = []
        (copy / "tokenizer.json").write_text(json.dumps(content))
        assert load_tokenizer(copy).fast.id_to_token(token) != old
        assert fingerprint(copy) != fingerprint(source)
