"""The losses on labelled completions, without pairs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import binary_cross_entropy_with_logits

from posttrain.algorithms.preference.bco import bco, running_shift
from posttrain.algorithms.preference.kto import kl_baseline, kto
from posttrain.algorithms.preference.sigmoid import sigmoid

quick = settings(max_examples=30, deadline=None)
GOOD, BAD = torch.tensor([True]), torch.tensor([False])


def logistic(x):
    return 1 / (1 + math.exp(-x))


def number(value):
    return torch.tensor([value], dtype=torch.float64)


def scalar(value, **more):
    return torch.tensor(value, dtype=torch.float64, **more)


def one_kto(log_ratio, label, baseline=0.0, beta=0.1, weights=(1.0, 1.0)):
    desirable, undesirable = weights
    weights = {"desirable_weight": desirable, "undesirable_weight": undesirable}
    return kto(log_ratio, label, scalar(baseline), beta=beta, **weights)


def test_kto_by_loops(normal):
    ratios, labels = 9 * normal(8), torch.arange(8) % 3 > 0
    losses, stats = kto(ratios, labels, scalar(0.7), beta=0.4, desirable_weight=1.3, undesirable_weight=0.6)
    for i, r in enumerate(ratios.tolist()):
        value = logistic(0.4 * (r - 0.7)) if labels[i] else logistic(0.4 * (0.7 - r))
        assert math.isclose(losses[i].item(), (1.3 if labels[i] else 0.6) * (1 - value), rel_tol=1e-9)
        assert math.isclose(stats["reward"][i].item(), 0.4 * r, rel_tol=1e-9)
        assert stats["accuracy"][i].item() == (value > 0.5)
        assert (stats["margin"][i].item() > 0) == (value > 0.5)


def test_kto_keeps_the_precision_of_its_inputs():
    """1.1 is not a float32 number: a weight rounded on its way would show in the eighth digit."""
    losses, _ = one_kto(number(0.0), GOOD, weights=(1.1, 1.0))
    assert losses.item() == 1.1 * 0.5


def test_kto_limits():
    """Half the weight at the reference point; 0 far on the right side, the weight far on the wrong one."""
    for label, right in [(GOOD, 1), (BAD, -1)]:
        at, good, bad = (one_kto(number(right * x), label, weights=(1.5, 1.5))[0].item() for x in (0.0, 1e4, -1e4))
        assert (at, good, bad) == (0.75, 0.0, 1.5)


def test_kto_moves_good_ones_up_and_bad_ones_down():
    for label, sign in [(GOOD, -1), (BAD, 1)]:
        ratio = number(0.3).requires_grad_()
        losses, _ = one_kto(ratio, label, beta=0.2)
        losses.sum().backward()
        slope = 0.2 * logistic(0.06) * (1 - logistic(0.06))
        assert ratio.grad.item() == pytest.approx(sign * slope, rel=1e-12)


def test_the_baseline_is_a_clamped_mean_without_gradient(normal):
    policy, reference = normal(5).requires_grad_(), normal(5)
    mean = (policy - reference).mean().item()
    ours, other = kl_baseline(policy, reference), kl_baseline(reference, policy)
    assert sorted([ours.item(), other.item()]) == pytest.approx([0.0, abs(mean)])
    assert not ours.requires_grad
    with pytest.raises(ValueError, match="at least one"):
        kl_baseline(policy[:0], reference[:0])


def test_bco_is_a_classifiers_cross_entropy(normal):
    ratios, labels = 30 * normal(9), torch.arange(9) % 2 == 0
    losses, stats = bco(ratios, labels, scalar(0.4), beta=0.3)
    wanted = binary_cross_entropy_with_logits(0.3 * ratios - 0.4, labels.double(), reduction="none")
    torch.testing.assert_close(losses, wanted, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(stats["reward"], 0.3 * ratios, rtol=1e-15, atol=0)
    sign = torch.where(labels, 1.0, -1.0)
    torch.testing.assert_close(stats["margin"], sign * (0.3 * ratios - 0.4), rtol=1e-15, atol=0)
    assert stats["accuracy"].tolist() == ((0.3 * ratios > 0.4) == labels).double().tolist()


@quick
@given(good=st.floats(-60, 60), bad=st.floats(-60, 60), shift=st.floats(-60, 60))
def test_bco_bounds_dpo(good, bad, shift):
    """The paper's theorem 1: the classifier's loss of both completions is above DPO's of the pair."""
    both, _ = bco(torch.cat([number(good), number(bad)]), torch.cat([GOOD, BAD]), scalar(shift), beta=1.0)
    dpo, _ = sigmoid(number(good), number(bad), beta=1.0, label_smoothing=0.0)
    assert both.sum().item() >= dpo.item() - 1e-12


@quick
@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=5), min_size=1, max_size=6))
def test_the_running_shift_is_the_mean_of_all_rewards(minibatches):
    shift, seen = 0.0, 0
    for rewards in minibatches:
        shift = running_shift(shift, seen, math.fsum(rewards) / len(rewards), len(rewards))
        seen += len(rewards)
    everything = [reward for rewards in minibatches for reward in rewards]
    assert shift == pytest.approx(math.fsum(everything) / len(everything), rel=1e-12, abs=1e-12)


def test_the_running_shift_needs_rows():
    with pytest.raises(ValueError, match="at least one row"):
        running_shift(0.0, 0, 0.0, 0)


def both_losses(ratios, labels, baseline):
    yield kto(ratios, labels, baseline, beta=1.0, desirable_weight=1.0, undesirable_weight=1.0)
    yield bco(ratios, labels, baseline, beta=1.0)


def test_no_gradient_through_the_baseline_or_the_statistics():
    baseline = scalar(0.5, requires_grad=True)
    ratios = torch.tensor([0.1, -2.0], dtype=torch.float64, requires_grad=True)
    for losses, stats in both_losses(ratios, torch.tensor([True, False]), baseline):
        losses.sum().backward()
        assert not any(values.requires_grad for values in stats.values())
    assert baseline.grad is None


def test_nothing_overflows_in_float32():
    sizes = torch.logspace(-30, 4, 18)
    ratios = torch.cat([-sizes, torch.zeros(1), sizes]).repeat(2).requires_grad_()
    labels = torch.arange(len(ratios)) < len(ratios) // 2
    for baseline in (torch.tensor(0.0), torch.tensor(1e4), torch.tensor(-1e4)):
        for losses, stats in both_losses(ratios, labels, baseline):
            (slope,) = torch.autograd.grad(losses.sum(), ratios)
            assert all(values.isfinite().all() for values in [losses, slope, *stats.values()])
            assert losses.dtype == torch.float32
