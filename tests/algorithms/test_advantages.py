from __future__ import annotations

import math

import pytest
import torch

from posttrain.algorithms.advantages.gae import gae
from posttrain.algorithms.whiten import masked_moments, whiten

NAN = float("nan")


def gae_by_sums(rewards, values, gamma, lam):
    """A_t = sum over l of (gamma lam)^l delta_{t+l}, eq. 16 of arXiv:1506.02438, for one row without padding."""
    n = len(rewards)
    deltas = [rewards[t] + gamma * (values[t + 1] if t + 1 < n else 0.0) - values[t] for t in range(n)]
    return [sum((gamma * lam) ** (s - t) * deltas[s] for s in range(t, n)) for t in range(n)]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.7), (1.0, 1.0), (0.97, 0.0)])
@pytest.mark.parametrize("gaps", [False, True])
def test_gae_is_the_sum_of_discounted_errors(gamma, lam, gaps, normal, ragged_mask, generator):
    rewards, values, mask = normal(6, 8), normal(6, 8), ragged_mask(6, 8)
    if gaps:
        mask &= torch.rand(6, 8, generator=generator) < 0.7
    garbage = (x.masked_fill(~mask, NAN) for x in (rewards, values))
    advantages, returns = gae(*garbage, mask, gamma=gamma, lam=lam)
    for i in range(6):
        wanted = gae_by_sums(rewards[i][mask[i]].tolist(), values[i][mask[i]].tolist(), gamma, lam)
        torch.testing.assert_close(advantages[i][mask[i]].tolist(), wanted, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(returns[mask], (advantages + values)[mask])
    assert (advantages[~mask] == 0).all() and (returns[~mask] == 0).all()


def test_gae_without_discount_is_reward_to_go_minus_value(normal, ragged_mask):
    rewards, values, mask = normal(6, 8), normal(6, 8), ragged_mask(6, 8)
    advantages, returns = gae(rewards, values, mask, gamma=1.0, lam=1.0)
    to_go = (rewards * mask).flip(1).cumsum(1).flip(1)
    torch.testing.assert_close(returns[mask], to_go[mask])
    torch.testing.assert_close(advantages[mask], (to_go - values)[mask])


def test_gae_of_a_perfect_critic_is_zero():
    mask = torch.tensor([[True, True, True], [True, True, False]])
    rewards = torch.tensor([[0.0, 0.0, 2.0], [0.0, 3.0, 0.0]])
    values = torch.tensor([[2.0, 2.0, 2.0], [3.0, 3.0, 9.0]])
    advantages, returns = gae(rewards, values, mask, gamma=1.0, lam=0.95)
    assert (advantages == 0).all()
    assert returns.tolist() == [[2.0, 2.0, 2.0], [3.0, 3.0, 0.0]]


def test_gae_gives_no_gradient(normal):
    values = normal(2, 3).requires_grad_()
    mask = torch.ones(2, 3, dtype=torch.bool)
    assert not any(x.requires_grad for x in gae(values, values, mask, gamma=1.0, lam=0.95))


def test_whitened_values_have_mean_zero_and_variance_one(normal, ragged_mask):
    values, mask = 3 + 5 * normal(6, 8), ragged_mask(6, 8)
    ours = whiten(values.masked_fill(~mask, NAN), mask)
    assert abs(ours[mask].mean()) < 1e-12
    assert abs(ours[mask].var() - 1) < 1e-8
    assert (ours[~mask] == 0).all()
    wanted = [(v - values[mask].mean()) / math.sqrt(values[mask].var() + 1e-8) for v in values[mask]]
    torch.testing.assert_close(ours[mask], torch.stack(wanted), rtol=1e-9, atol=1e-12)


def test_whitening_in_parts_with_the_batchs_moments(normal, ragged_mask):
    """Also where a part is empty, or holds one token."""
    values, mask = normal(6, 8), ragged_mask(6, 8)
    mask[1] = False
    mask[2] = torch.arange(8) < 1
    mean, var = masked_moments(values, mask)
    parts = [whiten(values[i : i + 1], mask[i : i + 1], mean=mean, var=var) for i in range(6)]
    torch.testing.assert_close(torch.cat(parts), whiten(values, mask), rtol=1e-12, atol=0)
    assert (parts[1] == 0).all()


def test_whitening_of_one_token_or_none_is_zero():
    values = torch.tensor([[5.0, NAN]])
    assert whiten(values, torch.tensor([[True, False]])).tolist() == [[0.0, 0.0]]
    assert whiten(values, torch.tensor([[False, False]])).tolist() == [[0.0, 0.0]]


def test_whitening_wants_both_moments():
    with pytest.raises(ValueError, match="both"):
        whiten(torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool), mean=torch.zeros(()))
