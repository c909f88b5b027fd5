"""Arrangements: every row once, never dearer than a row a line, and what the rule makes of typical batches."""

from __future__ import annotations

import random
from itertools import groupby

import pytest

from posttrain.model.packing import (
    Packing,
    Row,
    arrange,
    first_fit,
    is_plain,
    microbatches,
    segments_of,
    sizes_of,
    width_of,
)
from tests.model.conftest import FREE

USUAL = Packing(masked=1 / 800, causal=1 / 1600)


def row(prompt: int, length: int, completion: int, number: int = 0) -> Row:
    """A row whose prompt has `length` tokens and is known by `prompt`."""
    return [prompt] * length, [number] * completion


def some_rows(seed: int, number: int = 12) -> list[Row]:
    draw = random.Random(seed)
    prompts = [(p, draw.randint(1, 40)) for p in range(1, 5)]
    return [row(*draw.choice(prompts), draw.randint(0, 50), i) for i in range(number)]


def cost(rows: list[Row], lines, packing: Packing) -> float:
    width = max(sum(len(rows[item[0]][0]) + sum(len(rows[i][1]) for i in item) for item in line) for line in lines)
    return len(lines) * width * (1 + width * (packing.causal if is_plain(lines) else packing.masked))


@pytest.mark.parametrize("packing", [None, FREE, USUAL, Packing(1.0, 0.01), Packing(0.0, 0.0, widest=60)])
@pytest.mark.parametrize("seed", range(8))
def test_every_row_has_one_place_and_rows_of_an_item_one_prompt(packing: Packing | None, seed: int) -> None:
    rows = some_rows(seed)
    sizes = sizes_of(rows)
    lines = arrange(sizes, packing)
    assert sorted(i for line in lines for item in line for i in item) == list(range(len(rows)))
    assert all(rows[i][0] == rows[item[0]][0] for line in lines for item in line for i in item)
    plain = [[[i]] for i in range(len(rows))]
    assert cost(rows, lines, packing or FREE) <= cost(rows, plain, packing or FREE)
    if packing is None:
        assert lines == plain
    elif packing.widest is not None and not is_plain(lines):
        assert width_of(lines, sizes) <= packing.widest


@pytest.mark.parametrize("seed", range(4))
def test_segments_stand_side_by_side_and_know_their_prompt(seed: int) -> None:
    rows = some_rows(seed)
    sizes = sizes_of(rows)
    lines = arrange(sizes, FREE)
    ends = [0] * len(lines)
    for line, start, stop, number, prompt in segments_of(lines, sizes):
        assert start == ends[line]
        ends[line] = stop
        assert stop - start == len(rows[number][prompt is not None])
        if prompt is not None:
            assert prompt[1] <= start
            assert prompt[1] - prompt[0] == len(rows[number][0])
    assert max(ends) == width_of(lines, sizes)


def test_first_fit_fills_lines_as_wide_as_the_longest_item() -> None:
    sizes = sizes_of([row(i, 1, length - 1) for i, length in enumerate((3, 10, 7, 2, 5, 4))])
    assert first_fit([[i] for i in range(6)], sizes) == [[[1]], [[2], [0]], [[4], [5]], [[3]]]


def test_a_mask_must_be_worth_what_it_saves() -> None:
    equal = [row(i, 10, 90, i) for i in range(8)]
    assert is_plain(arrange(sizes_of(equal), FREE)), "there is nothing to save"
    pairs = [row(i // 2, 90, 10, i) for i in range(8)]
    shared = arrange(sizes_of(pairs), USUAL)
    assert sorted(sorted(item) for line in shared for item in line) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert is_plain(arrange(sizes_of(pairs), Packing(masked=1.0, causal=1e-3))), "attention would cost more"
    group = [row(1, 400, 100, i) for i in range(16)]
    parts = [len(item) for line in arrange(sizes_of(group), USUAL) for item in line]
    assert 1 < max(parts) < 16, "a tree of all sixteen would be too wide"
    short = [row(i, 1, 399 if i == 0 else 19, i) for i in range(21)]
    assert len(arrange(sizes_of(short), USUAL)) == 2


@pytest.mark.parametrize("packing", [None, FREE, USUAL])
@pytest.mark.parametrize("budget", [1, 60, 150, 10_000])
@pytest.mark.parametrize("size", [1, 2])
def test_microbatches_hold_every_unit_once_within_the_budget(packing: Packing | None, budget: int, size: int) -> None:
    rows = some_rows(3, 40)
    units = [rows[i : i + size] for i in range(0, 40, size)]
    groups = microbatches(units, budget, packing)
    assert sorted(i for group in groups for i in group) == list(range(len(units)))
    for group in groups:
        sizes = sizes_of([row for i in group for row in units[i]])
        lines = arrange(sizes, packing)
        assert len(group) == 1 or len(lines) * width_of(lines, sizes) <= budget
    longest = [max(len(p) + len(c) for i in group for p, c in units[i]) for group in groups]
    assert longest[0] == max(longest)
    if budget == 10_000:
        assert len(groups) == 1
    assert groups == microbatches([list(unit) for unit in units], budget, packing), "by the units' content alone"


def test_no_unit_gives_no_microbatch() -> None:
    assert microbatches([], 10) == []


def test_units_with_one_prompt_come_together() -> None:
    draw = random.Random(0)
    units = [[row(i % 5, 30, draw.randint(1, 30), i)] for i in range(40)]
    order = [i % 5 for group in microbatches(units, 400, FREE) for i in group]
    assert [key for key, _ in groupby(order)] == list(dict.fromkeys(order))


def test_a_budget_holds_more_rows_that_share_a_prompt() -> None:
    units = [[row(1, 100, 10, i)] for i in range(10)]
    assert len(microbatches(units, 220, None)) == 5
    assert len(microbatches(units, 220, FREE)) == 1
