from __future__ import annotations

import json
import math
import statistics as standard
from pathlib import Path

import numpy as np
import pytest

from posttrain.evaluation.statistics import (
    Estimate,
    exponential,
    jackknife,
    mean,
    ratio,
    standard_error,
    wins,
    write_estimates,
)

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


def test_the_standard_error_is_the_analytic_one() -> None:
    found = standard_error(VALUES)
    assert found.value == found.low == found.high == pytest.approx(standard.stdev(VALUES) / math.sqrt(8))
    assert found.n == 8 and standard_error([3.0]).value == 0.0
    means = np.random.default_rng(2).normal(1.0, 3.0, size=(4000, 25)).mean(axis=1)
    errors = [standard_error(row).value for row in np.random.default_rng(3).normal(1.0, 3.0, size=(400, 25))]
    assert means.std() == pytest.approx(3 / 5, rel=0.05) == pytest.approx(sum(errors) / 400, rel=0.05)


def test_the_interval_of_an_exponential_is_that_of_the_resamples() -> None:
    top, bottom = [4.0, 9.0, 2.0], [2.0, 3.0, 1.5]
    found = exponential(ratio(top, bottom, 801, seed=5))  # both quantiles fall on a resample
    low, high = brute_force(top, bottom, 801, seed=5)
    assert found.value == pytest.approx(math.exp(15 / 6.5))
    assert (found.low, found.high) == (pytest.approx(math.exp(low)), pytest.approx(math.exp(high))) and found.n == 3


def test_the_file_of_estimates(tmp_path: Path) -> None:
    write_estimates(tmp_path / "metrics.json", {"eval/x": Estimate(1.0, 0.5, 2.0, 7)})
    expected = {"eval/x": {"value": 1.0, "low": 0.5, "high": 2.0, "n": 7}}
    assert json.loads((tmp_path / "metrics.json").read_text()) == expected
    with pytest.raises(ValueError, match="JSON"):
        write_estimates(tmp_path / "metrics.json", {"eval/x": Estimate(math.nan, 0, 0, 1)})
