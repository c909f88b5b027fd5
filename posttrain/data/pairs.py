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

    Each text draws `per_text` others, evenly from all that are far enough above or below; a pair that both of its texts
    draw counts once. So every text is as likely to be in a pair as any other, whatever its rating, and gaps are spread
    as they are among all pairs that differ enough. Draws and order come from hashes of the seed and the ids: the same
    for every order of `texts`.

    Args:
        texts: texts of one source and one split; ids are unique.
        margin: least difference of the ratings.
        per_text: others that a text draws, fewer where not so many differ enough.
        seed: of the draws.
    """
    order = sorted(range(len(texts)), key=lambda index: (texts[index].rating, texts[index].id))
    ratings = [texts[index].rating for index in order]
    drawn: dict[tuple[int, int], bytes] = {}
    for own in range(len(texts)):
        below = _count_below(ratings, texts[own].rating, margin)
        above = _count_above(ratings, texts[own].rating, margin)
        taken: set[int] = set()
        for number in range(min(per_text, below + above)):
            digest = hashlib.sha256(f"{seed}\n{texts[own].id}\n{number}".encode()).digest()
            place = int.from_bytes(digest[:8], "big") % (below + above)
            while place in taken:
                place = (place + 1) % (below + above)
            taken.add(place)
            pair = (own, order[place]) if place < below else (order[place - below - above], own)
            drawn[pair] = min(digest, drawn.get(pair, digest))
    return sorted(drawn, key=lambda pair: drawn[pair])


def _count_above(ratings: Sequence[float], rating: float, margin: float) -> int:
    """How many of the sorted `ratings` are higher than `rating`, by at least `margin`."""
    return len(ratings) - bisect_left(ratings, True, key=lambda higher: higher - rating >= margin and higher > rating)


def _count_below(ratings: Sequence[float], rating: float, margin: float) -> int:
    """How many of the sorted `ratings` are lower than `rating`, by at least `margin`."""
    return bisect_left(ratings, True, key=lambda lower: not (rating - lower >= margin and rating > lower))
