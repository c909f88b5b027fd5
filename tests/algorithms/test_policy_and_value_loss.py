from __future__ import annotations

import math

import pytest
import torch

from posttrain.algorithms.policy_loss.clipped import clipped_policy_loss
from posttrain.algorithms.value_loss import clipped_value_loss

ONE = torch.ones(1, 1, dtype=torch.bool)
NAN = float("nan")
PPO = {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": None}


def one(value):
    return torch.tensor([[value]], dtype=torch.float64)


def test_policy_loss_by_loops(normal, ragged_mask):
    old, noise, advantages, mask = normal(5, 7), normal(5, 7), normal(5, 7), ragged_mask(5, 7)
    new = old + 0.4 * noise
    loss, stats = clipped_policy_loss(new, old, advantages, mask, **PPO | {"clip_high": 0.28})
    for i in range(5):
        for j in range(7):
            ratio, advantage = math.exp(new[i, j] - old[i, j]), advantages[i, j].item()
            wanted = -min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage)
            low, high = ratio < 0.8 and advantage < 0, ratio > 1.28 and advantage > 0
            for ours, theirs in [
                (loss, wanted),
                (stats["ratio"], ratio),
                (stats["clipped_low"], low),
                (stats["clipped_high"], high),
            ]:
                assert math.isclose(ours[i, j].item(), theirs if mask[i, j] else 0.0, rel_tol=1e-9)
    assert stats["clipped_low"].sum() > 0 and stats["clipped_high"].sum() > 0


@pytest.mark.parametrize("advantage", [2.0, -2.0])
@pytest.mark.parametrize(("log_ratio", "clipped"), [(-0.5, -2.0), (0.0, None), (0.5, 2.0)])
def test_the_gradient_stops_where_the_bound_binds(advantage, log_ratio, clipped):
    """Above the upper bound for a good token, below the lower one for a bad token; else it is -A r."""
    new = one(log_ratio).requires_grad_()
    loss, stats = clipped_policy_loss(new, one(0.0), one(advantage), ONE, **PPO)
    loss.sum().backward()
    wanted = 0.0 if clipped == advantage else -advantage * math.exp(log_ratio)
    assert new.grad.item() == pytest.approx(wanted, rel=1e-12)
    assert bool(stats["clipped_low"] + stats["clipped_high"]) == (clipped == advantage)


def test_on_policy_the_ratio_is_one_and_the_gradient_is_the_advantage(normal, ragged_mask):
    old, advantages, mask = normal(5, 7), normal(5, 7).requires_grad_(), ragged_mask(5, 7)
    new = old.clone().requires_grad_()
    loss, stats = clipped_policy_loss(new, old, advantages, mask, **PPO)
    loss.sum().backward()
    assert (stats["ratio"] == mask).all()
    torch.testing.assert_close(new.grad, -advantages.detach() * mask)
    assert advantages.grad is None


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("log_ratio", [1000.0, -1000.0])
def test_absurd_ratios_stay_finite(advantage, log_ratio):
    new = one(log_ratio).float().requires_grad_()
    loss, stats = clipped_policy_loss(new, one(0.0).float(), one(advantage).float(), ONE, **PPO)
    loss.sum().backward()
    assert loss.isfinite().all() and new.grad.isfinite().all() and stats["ratio"].isfinite().all()


def test_value_loss_by_loops(normal, ragged_mask):
    old, noise, returns, mask = normal(5, 7), normal(5, 7), normal(5, 7), ragged_mask(5, 7)
    new = (old + 0.4 * noise).requires_grad_()
    loss = clipped_value_loss(new, old, returns, mask, value_clip=0.2)
    loss.sum().backward()
    stopped = 0
    for i in range(5):
        for j in range(7):
            v, o, g = new[i, j].item(), old[i, j].item(), returns[i, j].item()
            clipped = min(max(v, o - 0.2), o + 0.2)
            binds = clipped != v and (clipped - g) ** 2 > (v - g) ** 2
            wanted = 0.5 * max((v - g) ** 2, (clipped - g) ** 2) if mask[i, j] else 0.0
            slope = (0.0 if binds else v - g) if mask[i, j] else 0.0
            stopped += binds
            assert math.isclose(loss[i, j].item(), wanted, rel_tol=1e-9)
            assert math.isclose(new.grad[i, j].item(), slope, rel_tol=1e-9)
    assert stopped > 3


@pytest.mark.parametrize("garbage", [NAN, float("inf"), -float("inf")])
def test_masked_values_do_not_leak(garbage, normal, ragged_mask):
    mask = ragged_mask(5, 7)

    def dirty():
        return normal(5, 7).masked_fill(~mask, garbage)

    new = dirty().requires_grad_()
    policy, stats = clipped_policy_loss(new, dirty(), dirty(), mask, **PPO)
    value = clipped_value_loss(new, dirty(), dirty(), mask, value_clip=0.2)
    (policy + value).sum().backward()
    for tensor in (policy, value, new.grad, *stats.values()):
        assert tensor.isfinite().all()
        assert (tensor[~mask] == 0).all()
