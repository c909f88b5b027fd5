"""The card's numbers by hand, and pictures with equal bytes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from posttrain.data.card import histogram
from posttrain.data.pictures import draw_lengths, draw_ratings


@pytest.mark.parametrize(
    ("values", "whole", "edges", "counts"),
    [
        ([3, 3, 5], True, [2.5, 3.5, 4.5, 5.5], [2, 0, 1]),
        ([7], True, [6.5, 7.5], [1]),
        ([1.5, 1.5], False, [1.0, 2.0], [2]),
        ([0.0, 0.5, 6.4], False, None, None),
        ([-4.0, 4.0], False, None, None),
        ([-1e9, 1e9], False, None, None),
        ([1e9, 1e9 - 1e-6], False, None, None),
        ([0.0, 5e-324], False, None, None),
        ([1, 200], True, None, None),
        ([-1.0, 1e9], False, None, None),
    ],
)
def test_histogram(values: list[float], whole: bool, edges: list[float] | None, counts: list[int] | None) -> None:
    made = histogram(values, whole)
    if edges is not None:
        assert made == {"edges": edges, "counts": counts}
    assert sum(made["counts"]) == len(values) and len(made["edges"]) == len(made["counts"]) + 1 <= 67
    assert all(low < high for low, high in pairwise(made["edges"]))
    assert made["edges"][0] <= min(values) and max(values) <= made["edges"][-1]
    if whole:
        assert all(edge % 1 == 0.5 for edge in made["edges"])


def test_values_on_an_edge_count_above_it() -> None:
    """Tenths from 0 to 7.9 in bins of 0.2: two in each, although 0.6 / 0.2 is less than 3 in floats."""
    assert histogram([n / 10 for n in range(80)])["counts"] == [2] * 40


def test_pictures_have_equal_bytes(tmp_path: Path) -> None:
    summary = {"count": 3, "mean": 3.6667, "histogram": histogram([3, 3, 5], whole=True)}
    for name in ("one", "two"):
        tokens, cut = {"prompt": summary, "completion": summary}, {"prompts": 0, "completions": 2}
        draw_lengths(tmp_path / f"{name}-lengths.png", tokens, {"prompt": 8, "completion": 5}, cut)
        draw_ratings(tmp_path / f"{name}-ratings.png", {"a" * 60: summary, "b": summary})
    for kind in ("lengths", "ratings"):
        first = (tmp_path / f"one-{kind}.png").read_bytes()
        assert first == (tmp_path / f"two-{kind}.png").read_bytes()
        assert first.startswith(b"\x89PNG") and b"Software" not in first
