from __future__ import annotations

import math
import statistics as standard

import numpy as np
import pytest

from posttrain.evaluation.statistics import jackknife, mean, ratio, wins

VALUES = [3.0, -1.0, 4.0, 1.0, -5.0, 9.0, 2.0, 6.0]


def brute_force(top: list[float], bottom: list[float], resamples: int, seed: int) -> tuple[float, float]:
    """The percentile bootstrap in plain Python, one resample at a time, on the same stream of random numbers."""
    generator = np.random.Generator(np.random.PCG64(seed))
    n = len(top)
    found = []
    for _ in range(resamples):
        chosen = [int(generator.integers(0, n)) for _ in range(n)]
        found.append(sum(top[i] for i in chosen) / sum(bottom[i] for i in chosen))
    found.sort()

    def quantile(share: float) -> float:
        place = share * (len(found) - 1)
        low = math.floor(place)
        high = min(low + 1, len(found) - 1)
        return found[low] + (place - low) * (found[high] - found[low])

    return quantile(0.025), quantile(0.975)


def test_the_bootstrap_is_that_of_the_textbook() -> None:
    found = mean(VALUES, 500, seed=3)
    low, high = brute_force(VALUES, [1.0] * len(VALUES), 500, seed=3)
    assert found.value == pytest.approx(standard.fmean(VALUES))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high)) and found.n == 8


def test_a_ratio_is_of_sums_not_a_mean_of_ratios() -> None:
    top, bottom = [1.0, 10.0, 3.0], [1.0, 100.0, 2.0]
    found = ratio(top, bottom, 400, seed=1)
    low, high = brute_force(top, bottom, 400, seed=1)
    assert found.value == pytest.approx(14 / 103)
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    inside = 0
    for seed in range(300):
        found = mean(generator.normal(2.0, 3.0, size=60), 300, seed)
        inside += found.low <= 2.0 <= found.high
    assert 0.91 <= inside / 300 <= 0.98


def test_the_interval_has_the_width_that_theory_gives() -> None:
    values = np.random.default_rng(1).normal(size=4000)
    found = mean(values, 2000, seed=0)
    assert found.high - found.low == pytest.approx(2 * 1.96 * values.std() / math.sqrt(4000), rel=0.06)


def test_equal_seeds_give_equal_intervals_and_others_do_not() -> None:
    assert mean(VALUES, 100, 7) == mean(VALUES, 100, 7)
    assert mean(VALUES, 100, 7) != mean(VALUES, 100, 8)


def test_blocks_do_not_change_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = mean(VALUES, 100, 7)
    monkeypatch.setattr("posttrain.evaluation.statistics._ELEMENTS", 24)
    assert mean(VALUES, 100, 7) == whole


def test_a_constant_has_no_width_and_nothing_has_no_mean() -> None:
    found = mean([2.5] * 9, 50, 0)
    assert (found.value, found.low, found.high) == (2.5, 2.5, 2.5)
    with pytest.raises(ValueError, match="non-empty"):
        mean([], 50, 0)
    with pytest.raises(ValueError, match="positive"):
        ratio([1.0], [0.0], 50, 0)


def test_empty_completions_do_not_make_a_ratio_infinite() -> None:
    found = ratio([0.0, 0.0, 1.0], [0.0, 0.0, 2.0], 200, 0)
    assert np.isfinite([found.value, found.low, found.high]).all() and found.value == 0.5


def test_ties_are_half_a_win() -> None:
    assert wins([1, 2, 3], [1, 3, 2]).tolist() == [0.5, 0.0, 1.0]


def test_the_jackknife_of_a_mean_is_its_standard_error() -> None:
    total, n = sum(VALUES), len(VALUES)
    found = jackknife(total / n, [(total - value) / (n - 1) for value in VALUES])
    error = standard.stdev(VALUES) / math.sqrt(n)
    assert found.high - found.value == pytest.approx(1.959964 * error)
    assert found.value - found.low == pytest.approx(1.959964 * error)
