from __future__ import annotations

import random
from itertools import pairwise

import pytest

from posttrain.evaluation.diversity import bigrams, distinct_2, repetition


def test_distinct_2_by_hand() -> None:
    # 1 2, 2 1, 1 2 | 1 2, 2 3: five pairs, of which 1 2, 2 1, 2 3 differ.
    assert distinct_2([[1, 2, 1, 2], [1, 2, 3]]).value == pytest.approx(3 / 5)


def test_distinct_2_counts_over_all_completions() -> None:
    assert distinct_2([[1, 2, 3]] * 10).value == pytest.approx(2 / 20)
    assert distinct_2([[i, i + 100] for i in range(10)]).value == 1.0


def test_the_interval_leaves_out_each_completion_in_turn() -> None:
    draw = random.Random(0)
    completions = [[draw.randrange(6) for _ in range(draw.randrange(0, 9))] for _ in range(25)]
    found = distinct_2(completions)

    def share(rows: list[list[int]]) -> float:
        pairs = [pair for ids in rows for pair in pairwise(ids)]
        return len(set(pairs)) / len(pairs)

    others = [share(completions[:i] + completions[i + 1 :]) for i in range(25)]
    middle = sum(others) / 25
    error = (24 / 25 * sum((other - middle) ** 2 for other in others)) ** 0.5
    assert found.value == pytest.approx(share(completions)) and found.n == 25
    assert found.high - found.value == pytest.approx(1.959964 * error)


def test_nothing_to_count_is_zero() -> None:
    assert distinct_2([[], [1]]).value == 0.0
    assert distinct_2([]).n == 0
    assert bigrams([7]) == []


def test_repetition_by_hand() -> None:
    assert repetition([1, 2, 1, 2, 1]) == pytest.approx(1 - 2 / 4)
    assert repetition([5, 5, 5, 5]) == pytest.approx(2 / 3)
    assert repetition([1, 2, 3]) == repetition([1]) == repetition([]) == 0.0
