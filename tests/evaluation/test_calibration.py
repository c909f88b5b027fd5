from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from posttrain.evaluation import calibration


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def margins_of(total, seed, overconfidence=1.0):
    """Margins of a model whose logits are `overconfidence` times the true ones, which are normal."""
    draw = random.Random(seed)
    found = []
    for _ in range(total):
        logit = draw.gauss(0, 1.5)
        first_is_chosen = draw.random() < sigmoid(logit)
        found.append(overconfidence * (logit if first_is_chosen else -logit))
    return found


def binned_error(margins, edges):
    """By loops over bins, the way it is written in the paper."""
    total = 0.0
    for low, high in itertools.pairwise(edges):
        inside = [m for m in margins if low <= sigmoid(abs(m)) < high or (high == 1 and sigmoid(abs(m)) == 1)]
        if inside:
            share = sum(0.5 if m == 0 else float(m > 0) for m in inside) / len(inside)
            total += len(inside) / len(margins) * abs(share - sum(sigmoid(abs(m)) for m in inside) / len(inside))
    return total


@pytest.mark.parametrize(("total", "overconfidence"), [(1, 1.0), (7, 1.0), (500, 1.0), (500, 3.0), (500, 0.2)])
def test_the_error_by_loops(total, overconfidence):
    margins = margins_of(total, 3, overconfidence)
    found = calibration.error(margins, 50, 0)
    assert found.value == pytest.approx(binned_error(margins, [0.5 + i / 20 for i in range(11)]), rel=1e-9)
    assert 0 <= found.low <= found.value <= found.high
    assert found.n == total


def test_brier_is_scikit_learns_brier_score_loss():
    """mean((y_true - y_prob)^2), whichever completion of a pair comes first."""
    margins = margins_of(200, 1)
    draw = random.Random(2)
    y_true, y_prob = [], []
    for margin in margins:
        chosen_is_first = draw.random() < 0.5
        y_true.append(float(chosen_is_first))
        y_prob.append(sigmoid(margin if chosen_is_first else -margin))
    wanted = sum((t - p) ** 2 for t, p in zip(y_true, y_prob, strict=True)) / len(margins)
    assert calibration.brier(margins).mean() == pytest.approx(wanted, rel=1e-12)


def test_known_models():
    """Sure and right; sure and wrong; one that knows nothing and says so; one that is as right as it says."""
    sure, undecided = [1e3] * 30, [0.0] * 30
    assert calibration.error(sure, 20, 0).value == calibration.brier(sure).mean() == 0
    wrong = [-1e3] * 30
    assert calibration.error(wrong, 20, 0).value == pytest.approx(1)
    assert calibration.brier(wrong).mean() == 1
    assert calibration.error(undecided, 20, 0).value == 0
    assert calibration.brier(undecided).mean() == 0.25
    three_of_four = [math.log(3), math.log(3), math.log(3), -math.log(3)] * 10
    assert calibration.error(three_of_four, 20, 0).value == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("overconfidence", [1.0, 3.0])
def test_the_interval_covers_the_truth(overconfidence):
    """Of a model that is as right as it says, whose bootstrap alone would never come to 0, and of one that is not."""
    truth = 0.0
    if overconfidence > 1:
        truth = binned_error(margins_of(20_000, 99, overconfidence), [0.5 + i / 20 for i in range(11)])
    found = [calibration.error(margins_of(300, seed, overconfidence), 100, seed) for seed in range(40)]
    assert sum(one.low <= truth <= one.high for one in found) >= 36
    assert np.mean([one.high for one in found]) < truth + 0.12
    assert (np.mean([one.low for one in found]) > 0.05) == (overconfidence > 1)


def test_the_interval_is_a_function_of_its_seed():
    margins = margins_of(100, 0)
    a, b, c = (calibration.error(margins, 100, seed) for seed in (1, 1, 2))
    assert a == b != c


def test_no_pairs():
    with pytest.raises(ValueError, match="at least one pair"):
        calibration.error([], 10, 0)
