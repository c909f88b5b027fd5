"""From units to micro-batches and back: every row once, whatever shares its line."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from posttrain.model.batch import SequenceBatch, token_log_probs
from posttrain.model.packing import Packing, Row, Unit
from posttrain.roles.batches import Forward, per_row, per_token, response_mask, split
from tests.model.conftest import FREE
from tests.model.tiny import tiny_model


def make_rows(seed: int, number: int = 9) -> list[Row]:
    """Rows of unequal lengths, three for each prompt; every token is there once."""
    draw = random.Random(seed)
    tokens = iter(range(1000 * seed, 10**6))

    def ids(length: int) -> list[int]:
        return [next(tokens) for _ in range(length)]

    prompts = [ids(draw.randint(1, 9)) for _ in range(number // 3)]
    return [(prompts[i % len(prompts)], ids(draw.randint(0, 8))) for i in range(number)]


def pairs() -> list[Unit]:
    rows = make_rows(1, 18)
    return [(rows[i], rows[i + 6]) for i in range(6)] + [(rows[12], rows[13])]


def read(batch: SequenceBatch) -> list[Row]:
    """The rows as their segments stand in the lines."""
    found: dict[int, Row] = {}
    for line, _, stop, row, prompt in batch.segments:
        if prompt is not None:
            start = prompt[1] if stop == prompt[1] else max(prompt[1], stop - int(batch.response_mask[row].sum()))
            ids = batch.input_ids[line]
            found[row] = (ids[prompt[0] : prompt[1]].tolist(), ids[start:stop].tolist())
    return [found[row] for row in range(len(found))]


@pytest.mark.parametrize("packing", [None, FREE])
@pytest.mark.parametrize("budget", [1, 50, 10_000])
@pytest.mark.parametrize("units", [[(row,) for row in make_rows(0)], pairs()], ids=["rows", "pairs"])
def test_every_unit_goes_through_once_and_whole(units: list[Unit], budget: int, packing: Packing | None) -> None:
    seen = []
    for micro in split(units, Forward(0, budget, packing=packing)):
        assert micro.batch.input_ids.numel() <= budget or len(micro.index) == 1
        seen += micro.index.tolist()
        assert read(micro.batch) == [row for i in micro.index.tolist() for row in units[i]]
    assert sorted(seen) == list(range(len(units)))


def test_rows_with_one_prompt_share_a_forward_pass() -> None:
    rows = make_rows(0)
    units = [(row,) for row in rows]
    apart, shared = (
        sum(micro.batch.input_ids.numel() for micro in split(units, Forward(0, 60, packing=packing)))
        for packing in (None, FREE)
    )
    assert shared < apart
    order = [tuple(rows[i][0]) for micro in split(units, Forward(0, 60, packing=FREE)) for i in micro.index.tolist()]
    assert [order[i] for i in range(9) if i == 0 or order[i] != order[i - 1]] == list(dict.fromkeys(order))


def test_results_come_back_in_the_order_of_the_rows() -> None:
    rows = make_rows(0)
    for packing in (None, FREE):
        forward = Forward(0, 40, packing=packing)
        ids = per_token(rows, forward, lambda batch: batch.spread(batch.targets.float()))
        assert [line[: len(c)].tolist() for line, (_, c) in zip(ids, rows, strict=True)] == [c for _, c in rows]
        assert torch.equal(ids != 0, response_mask(rows, "cpu") & (ids != 0))
        last = per_row(rows, forward, lambda batch: batch.input_ids.flatten()[batch.last])
        assert last.tolist() == [[*p, *c][-1] for p, c in rows]


def test_a_forward_suits_its_model() -> None:
    forward = Forward(0, 1000, temperature=0.5)
    assert forward.packing is None
    mine = forward.of(tiny_model("llama"))
    assert mine.packing is not None
    assert dataclasses.replace(mine, packing=None) == forward


def test_passes_without_gradient_keep_no_graph() -> None:
    model = tiny_model("llama")
    rows = [([1, 2], [3, 4]), ([1, 2], [5])]
    seen = []

    def run(batch: SequenceBatch) -> torch.Tensor:
        seen.append(token_log_probs(model, batch))
        return seen[-1]

    assert per_token(rows, Forward(0, 1000).of(model), run).grad_fn is None
    assert all(values.grad_fn is None for values in seen)
