"""Bradley-Terry pairs of rated texts: which of two texts people rated higher."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple


class Rated(NamedTuple):
    """A rated text by its id."""

    id: str
    rating: float


def rating_pairs(texts: Sequence[Rated], margin: float, per_text: int, seed: int) -> list[tuple[int, int]]:
    """Pairs (better, worse) of indices into `texts`, whose ratings differ by at least `margin` and at all.

    Each text is the better one of up to `per_text` pairs, each with another worse text, drawn evenly from all that are
    far enough below. Draws and order come from hashes of the seed and the ids: the same for every order of `texts`.

    Args:
        texts: texts of one source and one split; ids are unique.
        margin: least difference of the ratings.
        per_text: most pairs in which a text is the better one.
        seed: of the draws.
    """
    order = sorted(range(len(texts)), key=lambda index: (texts[index].rating, texts[index].id))
    ratings = [texts[index].rating for index in order]
    drawn: list[tuple[bytes, int, int]] = []
    for better in range(len(texts)):
        below = _count_below(ratings, texts[better].rating, margin)
        taken: set[int] = set()
        for number in range(min(per_text, below)):
            digest = hashlib.sha256(f"{seed}\n{texts[better].id}\n{number}".encode()).digest()
            place = int.from_bytes(digest[:8], "big") % below
            while place in taken:
                place = (place + 1) % below
            taken.add(place)
            drawn.append((digest, better, order[place]))
    return [(better, worse) for _, better, worse in sorted(drawn)]


def _count_below(ratings: Sequence[float], rating: float, margin: float) -> int:
    """How many of the sorted `ratings` are lower than `rating`, by at least `margin`."""
    return bisect_left(ratings, True, key=lambda lower: not (rating - lower >= margin and rating > lower))
