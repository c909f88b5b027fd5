"""Estimates with 95 % intervals over prompts. Pure numpy; every interval is a function of its seed.

Bootstrap: Efron & Tibshirani, "An Introduction to the Bootstrap" (1993), percentile intervals, chapter 13. Jackknife:
chapter 11.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

COVERAGE = 0.95
_NORMAL = 1.959963984540054  # the normal quantile of COVERAGE
_ELEMENTS = 1 << 22  # of one block of resampled indices

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A value, the ends of its 95 % interval, and the number of prompts (or pairs) behind it."""

    value: float
    low: float
    high: float
    n: int

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)


def mean(values: ArrayLike, resamples: int, seed: int) -> Estimate:
    """Mean of `values` [N] with the bootstrap interval over its entries. Raises ValueError where N is 0."""
    return ratio(values, np.ones(len(np.asarray(values))), resamples, seed)


def ratio(numerators: ArrayLike, denominators: ArrayLike, resamples: int, seed: int) -> Estimate:
    """sum(numerators) / sum(denominators), both [N], with the bootstrap interval over the N pairs.

    Raises ValueError where N is 0 or a denominator is negative.
    """
    top, bottom = np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)
    if top.shape != bottom.shape or top.ndim != 1 or not len(top) or (bottom < 0).any() or not bottom.any():
        raise ValueError(
            f"a ratio needs two equal, non-empty lists and a positive sum below, not {top.shape}, {bottom.shape}"
        )
    tail = (1 - COVERAGE) / 2
    low, high = np.quantile(_resampled(top, bottom, resamples, seed), [tail, 1 - tail])
    return Estimate(float(top.sum() / bottom.sum()), float(low), float(high), len(top))


def exponential(found: Estimate) -> Estimate:
    """exp of a value and of the ends of its interval: percentiles keep their places under a growing function."""
    return Estimate(math.exp(found.value), math.exp(found.low), math.exp(found.high), found.n)


def standard_error(values: ArrayLike) -> Estimate:
    """Standard error of the mean of independent `values` [N], with no interval of its own; 0 where N is 1."""
    found = np.asarray(values, dtype=np.float64)
    error = float(found.std(ddof=1) / math.sqrt(len(found))) if len(found) > 1 else 0.0
    return Estimate(error, error, error, len(found))


def jackknife(value: float, left_out: ArrayLike) -> Estimate:
    """`value` with the normal interval of the jackknife; `left_out` [N] are the values without the i-th entry.

    For statistics that count distinct things: a bootstrap resample repeats entries and so always shows too few of them.
    """
    others = np.asarray(left_out, dtype=np.float64)
    n = len(others)
    error = np.sqrt((n - 1) / n * np.square(others - others.mean()).sum()) if n else 0.0
    return Estimate(value, float(value - _NORMAL * error), float(value + _NORMAL * error), n)


def wins(ours: ArrayLike, theirs: ArrayLike) -> Floats:
    """1 where `ours` [N] is the larger, 0.5 where both are equal, 0 where it is the smaller."""
    a, b = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    result: Floats = np.where(a > b, 1.0, np.where(a == b, 0.5, 0.0))
    return result


def write_estimates(path: Path, estimates: Mapping[str, Estimate]) -> None:
    """A metrics.json: {name: {value, low, high, n}}."""
    text = json.dumps({name: found.as_dict() for name, found in estimates.items()}, indent=1, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def _resampled(top: Floats, bottom: Floats, resamples: int, seed: int) -> Floats:
    generator = np.random.Generator(np.random.PCG64(seed))
    block = max(1, _ELEMENTS // len(top))
    parts = []
    for start in range(0, resamples, block):
        chosen = generator.integers(0, len(top), size=(min(block, resamples - start), len(top)))
        below = bottom[chosen].sum(axis=1)
        # A resample of empty entries alone says nothing about a ratio: it counts as the whole's.
        parts.append(
            np.where(below > 0, top[chosen].sum(axis=1) / np.where(below > 0, below, 1), top.sum() / bottom.sum())
        )
    return np.concatenate(parts)
