"""Whether a reward model's probabilities can be believed. Pure numpy; the interval is a function of its seed.

Of a pair with rewards r, the model says that the first completion is the better one with probability
p = sigmoid(r_first - r_second). Here `margins` [N] are the differences chosen - rejected.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from posttrain.evaluation.statistics import COVERAGE, Estimate, Floats, wins

BINS = 10  # of a width of 0.05, from a probability of 0.5 to 1


def brier(margins: ArrayLike) -> Floats:
    """(1 - p)^2 of each pair, p the probability of its right order, [N]: their mean is the Brier score (1950)."""
    result: Floats = (1 - _probability(margins)) ** 2
    return result


def error(margins: ArrayLike, resamples: int, seed: int) -> Estimate:
    """Expected calibration error: how far the winners' probabilities are from the share of them that are right.

    The more probable completion of each pair is its predicted winner. Pairs go into BINS bins by the winner's
    probability; the error is the mean over pairs of |share of right winners - mean probability| of their bin. A margin
    of 0 is half right.

    Chance alone moves every bin away from 0, so the error of a finite sample is too large, and those of its resamples
    still larger. The upper end of the interval is their quantile. The lower end is the error less the quantile of
    sum over bins |resample - sample|, which is no less than the error of a model that is right: 0 is then inside.

    Source: arXiv:1706.04599 eq. 3; bootstrap: see `statistics`.

    Raises:
        ValueError: there is no pair.
    """
    parts = _parts(np.asarray(margins, dtype=np.float64))
    sample, total = parts.sum(axis=0), len(parts)
    generator = np.random.Generator(np.random.PCG64(seed))
    drawn = generator.multinomial(total, np.full(total, 1 / total), size=resamples) @ parts
    value, upper = float(np.abs(sample).sum()), (1 + COVERAGE) / 2
    chance, high = (float(np.quantile(np.abs(found).sum(axis=1), upper)) for found in (drawn - sample, drawn))
    return Estimate(value, max(0.0, value - chance), max(value, high), total)


def _parts(margins: Floats) -> Floats:
    """[N, BINS]: what each pair adds to its bin's share of right winners less their mean probability."""
    if not len(margins):
        raise ValueError("a calibration error needs at least one pair")
    winner = _probability(np.abs(margins))
    bins = np.minimum((2 * winner - 1) * BINS, BINS - 1).astype(int)
    right = wins(margins, np.zeros_like(margins))
    result: Floats = np.eye(BINS)[bins] * ((right - winner) / len(margins))[:, None]
    return result


def _probability(margins: ArrayLike) -> Floats:
    result: Floats = 0.5 + 0.5 * np.tanh(np.asarray(margins, dtype=np.float64) / 2)
    return result
