"""Pairs of rated texts: margins, shares, independence of order."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from posttrain.data.pairs import Rated, rating_pairs

TEXTS = [Rated(f"t{n}", (n * 37 % 80) / 10 - 4) for n in range(200)]


@pytest.mark.parametrize("margin", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("per_text", [1, 2, 5])
def test_margin_and_shares(margin: float, per_text: int) -> None:
    pairs = rating_pairs(TEXTS, margin, per_text, seed=0)
    gaps = [TEXTS[better].rating - TEXTS[worse].rating for better, worse in pairs]
    assert min(gaps) >= margin and min(gaps) > 0
    assert len(set(pairs)) == len(pairs)
    given = Counter(index for pair in pairs for index in pair)
    for index, text in enumerate(TEXTS):
        far = sum(abs(text.rating - other.rating) >= margin and text.rating != other.rating for other in TEXTS)
        assert given[index] >= min(per_text, far)
    assert len(pairs) <= per_text * len(TEXTS)


def test_by_hand() -> None:
    texts = [Rated("a", 2.0), Rated("b", 1.0), Rated("c", 0.5), Rated("d", 2.0)]
    assert set(rating_pairs(texts, 1.0, 9, seed=3)) == {(0, 1), (0, 2), (3, 1), (3, 2)}
    assert set(rating_pairs(texts, 1.5, 9, seed=3)) == {(0, 2), (3, 2)}
    assert rating_pairs(texts, 1.6, 9, seed=3) == []
    assert rating_pairs([], 1.0, 2, seed=3) == []


def test_the_gap_is_the_subtraction_of_floats() -> None:
    """0.3 - 0.2 is less than 0.1 in floats, 1.3 - 0.3 is not less than 1."""
    assert rating_pairs([Rated("a", 0.3), Rated("b", 0.2)], 0.1, 1, seed=0) == []
    assert rating_pairs([Rated("a", 1.3), Rated("b", 0.3)], 1.0, 1, seed=0) == [(0, 1)]


def test_order_of_texts_changes_nothing() -> None:
    shuffled = random.Random(1).sample(TEXTS, len(TEXTS))

    def named(texts: list[Rated]) -> list[tuple[str, str]]:
        return [(texts[better].id, texts[worse].id) for better, worse in rating_pairs(texts, 1.0, 2, seed=0)]

    assert named(TEXTS) == named(shuffled)
    assert named(TEXTS) != named([text._replace(id=text.id + "x") for text in TEXTS])


def test_the_seed_decides() -> None:
    assert rating_pairs(TEXTS, 1.0, 2, seed=0) == rating_pairs(TEXTS, 1.0, 2, seed=0)
    assert rating_pairs(TEXTS, 1.0, 2, seed=0) != rating_pairs(TEXTS, 1.0, 2, seed=1)


def test_others_are_drawn_evenly() -> None:
    texts = [Rated(f"low{n}", -1.0) for n in range(10)] + [Rated(f"high{n}", 1.0) for n in range(2000)]
    drawn = Counter(worse for _, worse in rating_pairs(texts, 1.0, 1, seed=0))
    assert 2000 <= sum(drawn.values()) <= 2010 and min(drawn.values()) > 150 and max(drawn.values()) < 250


def test_gaps_are_those_of_all_pairs_that_differ_enough() -> None:
    ratings = [text.rating for text in TEXTS]
    eligible = [a - b for a in ratings for b in ratings if a - b >= 1]
    gaps = [TEXTS[better].rating - TEXTS[worse].rating for better, worse in rating_pairs(TEXTS, 1.0, 5, seed=0)]
    assert sum(gaps) / len(gaps) == pytest.approx(sum(eligible) / len(eligible), rel=0.05)


def test_many_equal_ratings_are_quick() -> None:
    texts = [Rated(str(n), float(n % 5)) for n in range(20_000)]
    assert 19_000 < len(rating_pairs(texts, 0.0, 1, seed=0)) <= 20_000
