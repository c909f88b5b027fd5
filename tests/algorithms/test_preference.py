from __future__ import annotations

import math

import pytest
import torch

from posttrain.algorithms.preference.bradley_terry import bradley_terry_loss
from posttrain.algorithms.preference.dpo import dpo_loss
from posttrain.algorithms.preference.kto import kl_baseline, kto_loss

GOOD, BAD = torch.tensor([True]), torch.tensor([False])
ZERO = torch.zeros((), dtype=torch.float64)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def number(value):
    return torch.tensor([value], dtype=torch.float64)


def kto(policy, label, baseline=ZERO, beta=0.1, weights=(1.0, 1.0)):
    return kto_loss(policy, number(0.0), label, baseline, beta, *weights)


def test_dpo_by_loops(normal):
    pc, pr, rc, rr = (20 * normal(6) for _ in range(4))
    losses, stats = dpo_loss(pc, pr, rc, rr, 0.3)
    for i in range(6):
        chosen, rejected = 0.3 * (pc[i] - rc[i]).item(), 0.3 * (pr[i] - rr[i]).item()
        wanted = -math.log(sigmoid(chosen - rejected))
        assert math.isclose(losses[i].item(), wanted, rel_tol=1e-9)
        assert math.isclose(stats["margin"][i].item(), chosen - rejected, rel_tol=1e-9)
        assert math.isclose(stats["chosen_reward"][i].item(), chosen, rel_tol=1e-9)
        assert math.isclose(stats["rejected_reward"][i].item(), rejected, rel_tol=1e-9)
        assert stats["accuracy"][i].item() == (chosen > rejected)


def test_dpo_of_the_reference_itself_is_log_two(normal):
    chosen, rejected = normal(4), normal(4)
    losses, stats = dpo_loss(chosen, rejected, chosen, rejected, 0.1)
    torch.testing.assert_close(losses, torch.full_like(losses, math.log(2)), rtol=1e-15, atol=0)
    assert (stats["accuracy"] == 0).all()  # no preference is not a right one


def test_dpo_pushes_the_chosen_up_and_the_rejected_down(normal):
    chosen, rejected = normal(4).requires_grad_(), normal(4).requires_grad_()
    reference = normal(4), normal(4)
    losses, stats = dpo_loss(chosen, rejected, *reference, 0.1)
    losses.sum().backward()
    wrong = torch.sigmoid(-stats["margin"])  # eq. 7's gradient: beta times the probability of being wrong
    torch.testing.assert_close(chosen.grad, -0.1 * wrong)
    torch.testing.assert_close(rejected.grad, 0.1 * wrong)


@pytest.mark.parametrize("loss", [lambda x: dpo_loss(x, -x, 0 * x, 0 * x, 1.0), lambda x: bradley_terry_loss(x, -x)])
def test_pair_losses_of_huge_margins_are_linear_not_infinite(loss):
    value = torch.tensor([-500.0]).requires_grad_()
    losses, _ = loss(value)
    losses.sum().backward()
    assert losses.item() == 1000
    assert value.grad.item() == -2


def test_dpo_optimum_is_the_closed_form():
    """Pairs drawn from Bradley-Terry rewards: the loss is least where the policy is ref exp(r / beta), normalised."""
    beta, rewards = 0.5, torch.tensor([0.3, -0.4, 0.9], dtype=torch.float64)
    reference = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    logits = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    better, worse = zip(*[(i, j) for i in range(3) for j in range(3) if i != j], strict=True)
    weights = torch.sigmoid(rewards[list(better)] - rewards[list(worse)])
    optimiser = torch.optim.LBFGS([logits], max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-14)

    def step():
        optimiser.zero_grad()
        policy = logits.log_softmax(0)
        pairs = (policy[list(better)], policy[list(worse)], reference[list(better)], reference[list(worse)])
        loss = (weights * dpo_loss(*pairs, beta)[0]).sum()
        loss.backward()
        return loss

    optimiser.step(step)
    torch.testing.assert_close(logits.detach().softmax(0), (reference + rewards / beta).softmax(0), rtol=1e-6, atol=0)


def test_bradley_terry_by_loops(normal):
    chosen, rejected = 3 * normal(6), 3 * normal(6)
    losses, stats = bradley_terry_loss(chosen, rejected)
    for i in range(6):
        margin = (chosen[i] - rejected[i]).item()
        assert math.isclose(losses[i].item(), -math.log(sigmoid(margin)), rel_tol=1e-9)
        assert math.isclose(stats["margin"][i].item(), margin, rel_tol=1e-9)
        assert stats["accuracy"][i].item() == (margin > 0)


def test_kto_by_loops(normal):
    policy, reference, labels = 9 * normal(8), 9 * normal(8), torch.arange(8) % 3 > 0
    losses, stats = kto_loss(policy, reference, labels, torch.tensor(0.7, dtype=torch.float64), 0.4, 1.3, 0.6)
    for i in range(8):
        r = (policy[i] - reference[i]).item()
        value = sigmoid(0.4 * (r - 0.7)) if labels[i] else sigmoid(0.4 * (0.7 - r))
        weight = 1.3 if labels[i] else 0.6
        assert math.isclose(losses[i].item(), weight * (1 - value), rel_tol=1e-9)
        assert math.isclose(stats["reward"][i].item(), 0.4 * r, rel_tol=1e-9)
        assert stats["accuracy"][i].item() == (value > 0.5)
        assert (stats["margin"][i].item() > 0) == (value > 0.5)


def test_kto_keeps_the_precision_of_its_inputs():
    """1.1 is not a float32 number: a weight rounded on its way would show in the eighth digit."""
    losses, _ = kto(number(0.0), GOOD, weights=(1.1, 1.0))
    assert losses.item() == 1.1 * 0.5


def test_kto_limits():
    """Half the weight at the reference point; 0 far on the right side, the weight far on the wrong one."""
    for label, right in [(GOOD, 1), (BAD, -1)]:
        at, good, bad = (kto(number(right * x), label, weights=(1.5, 1.5))[0].item() for x in (0.0, 1e4, -1e4))
        assert (at, good, bad) == (0.75, 0.0, 1.5)


def test_kto_moves_good_ones_up_and_bad_ones_down():
    for label, sign in [(GOOD, -1), (BAD, 1)]:
        policy = number(0.3).requires_grad_()
        losses, _ = kto(policy, label, beta=0.2)
        losses.sum().backward()
        slope = 0.2 * sigmoid(0.06) * (1 - sigmoid(0.06))
        assert policy.grad.item() == pytest.approx(sign * slope, rel=1e-12)


def test_the_baseline_is_a_clamped_mean_without_gradient(normal):
    policy, reference = normal(5).requires_grad_(), normal(5)
    mean = (policy - reference).mean().item()
    ours, other = kl_baseline(policy, reference), kl_baseline(reference, policy)
    assert sorted([ours.item(), other.item()]) == pytest.approx([0.0, abs(mean)])
    assert not ours.requires_grad
    with pytest.raises(ValueError, match="at least one"):
        kl_baseline(policy[:0], reference[:0])


def test_no_gradient_flows_through_the_baseline():
    baseline = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    policy = number(0.1).requires_grad_()
    kto(policy, GOOD, baseline)[0].sum().backward()
    assert baseline.grad is None


def test_statistics_carry_no_gradient(normal):
    policy = normal(3).requires_grad_()
    labels = torch.tensor([True, False, True])
    for _, stats in [
        dpo_loss(policy, -policy, normal(3), normal(3), 0.1),
        kto_loss(policy, normal(3), labels, ZERO, 0.1, 1.0, 1.0),
        bradley_terry_loss(policy, -policy),
    ]:
        assert not any(value.requires_grad for value in stats.values())
