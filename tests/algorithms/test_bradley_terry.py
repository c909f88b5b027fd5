"""The reward model's loss, against its formula in 60 digits (mpmath) and TRL's RewardTrainer written out."""

from __future__ import annotations

import itertools
import math

import mpmath
import pytest
import torch
from torch.nn.functional import logsigmoid

from posttrain.algorithms.preference.bradley_terry import bradley_terry

PLAIN = {"centre_coef": 0.0, "label_smoothing": 0.0}
PAIRS = [(0.0, 0.0), (0.3, -1.2), (-2.0, 5.0), (40.0, 39.5), (-300.0, 400.0), (1e3, -1e3)]


def float64(*values):
    return torch.tensor(values, dtype=torch.float64)


def by_formula(chosen, rejected, gap, centre, smoothing):
    """In the pair's probability of being right, as the papers write it."""
    with mpmath.workdps(1000):
        right = 1 / (1 + mpmath.exp(-(mpmath.mpf(chosen) - rejected - gap)))
        loss = -(1 - mpmath.mpf(smoothing)) * mpmath.log(right) - mpmath.mpf(smoothing) * mpmath.log(1 - right)
        return float(loss + mpmath.mpf(centre) * (mpmath.mpf(chosen) + rejected) ** 2)


@pytest.mark.parametrize(("gap", "centre", "smoothing"), itertools.product((0.0, 1.5), (0.0, 0.01), (0.0, 0.2)))
def test_the_formula(gap, centre, smoothing):
    chosen, rejected = (float64(*values) for values in zip(*PAIRS, strict=True))
    losses, _ = bradley_terry(
        chosen, rejected, torch.full_like(chosen, gap), centre_coef=centre, label_smoothing=smoothing
    )
    wanted = [by_formula(*pair, gap, centre, smoothing) for pair in PAIRS]
    assert losses.tolist() == pytest.approx(wanted, rel=1e-12, abs=1e-300)


def test_trls_reward_trainer_written_out(normal):
    """Its loss with the column `margin` and `center_rewards_coefficient`, which averages both terms over the pairs."""
    chosen, rejected = (3 * normal(16)).requires_grad_(), (3 * normal(16)).requires_grad_()
    margin = normal(16).abs()
    theirs = -torch.nn.functional.logsigmoid(chosen - rejected - margin).mean()
    theirs = theirs + 0.01 * torch.mean((chosen + rejected) ** 2)
    wanted = torch.autograd.grad(theirs, (chosen, rejected))
    losses, _ = bradley_terry(chosen, rejected, margin, centre_coef=0.01, label_smoothing=0.0)
    torch.testing.assert_close(losses.mean(), theirs, rtol=1e-12, atol=0)
    found = torch.autograd.grad(losses.mean(), (chosen, rejected))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-15)


def test_without_options_it_is_the_plain_loss_to_the_last_bit(normal):
    chosen, rejected = (3 * normal(64)).float().requires_grad_(), (3 * normal(64)).float().requires_grad_()
    plain = -logsigmoid(chosen - rejected)
    wanted = torch.autograd.grad(plain.sum(), (chosen, rejected))
    losses, _ = bradley_terry(chosen, rejected, torch.zeros(64), **PLAIN)
    assert torch.equal(losses, plain)
    for ours, theirs in zip(torch.autograd.grad(losses.sum(), (chosen, rejected)), wanted, strict=True):
        assert torch.equal(ours, theirs)


def test_gradient_by_hand(normal):
    """(1 - e) of the probability of being wrong, less e of that of being right, and the slope of the square."""
    chosen, rejected, gap = normal(8).requires_grad_(), normal(8).requires_grad_(), normal(8).abs()
    losses, _ = bradley_terry(chosen, rejected, gap, centre_coef=0.3, label_smoothing=0.1)
    losses.sum().backward()
    right = torch.sigmoid((chosen - rejected - gap).detach())
    towards = 0.9 * (1 - right) - 0.1 * right
    centring = 0.6 * (chosen + rejected).detach()
    torch.testing.assert_close(chosen.grad, centring - towards)
    torch.testing.assert_close(rejected.grad, centring + towards)


def test_smoothing_has_its_least_loss_at_the_labels_odds_and_the_gap_moves_it():
    margin = float64(math.log(0.9 / 0.1) + 0.7).requires_grad_()
    losses, _ = bradley_terry(margin, -0 * margin, float64(0.7), centre_coef=0.0, label_smoothing=0.1)
    losses.sum().backward()
    assert margin.grad.item() == pytest.approx(0, abs=1e-15)


def test_huge_margins_are_linear_not_infinite():
    value = torch.tensor([-500.0]).requires_grad_()
    losses, _ = bradley_terry(value, -value, torch.zeros(1), **PLAIN)
    losses.sum().backward()
    assert losses.item() == 1000
    assert value.grad.item() == -2


def test_statistics_are_of_the_rewards_alone_and_carry_no_gradient(normal):
    chosen, rejected = normal(6).requires_grad_(), normal(6)
    _, stats = bradley_terry(chosen, rejected, 9 * torch.ones(6), centre_coef=1.0, label_smoothing=0.3)
    assert stats["margin"].tolist() == (chosen - rejected).tolist()
    assert stats["accuracy"].tolist() == [float(c > r) for c, r in zip(chosen.tolist(), rejected.tolist(), strict=True)]
    assert (stats["chosen_reward"].tolist(), stats["rejected_reward"].tolist()) == (chosen.tolist(), rejected.tolist())
    assert not any(value.requires_grad for value in stats.values())
