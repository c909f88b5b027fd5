"""Every policy loss and its gradient against loops in Python's own numbers, on ragged rows with gaps."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from posttrain.algorithms.aggregate import aggregate, normaliser
from posttrain.algorithms.policy_loss.cispo import cispo
from posttrain.algorithms.policy_loss.clipped import clipped_policy_loss
from posttrain.algorithms.policy_loss.gspo import gspo
from posttrain.algorithms.policy_loss.reinforce import reinforce
from posttrain.algorithms.policy_loss.sequence_clipped import sequence_clipped

LOW, HIGH, DUAL = 0.2, 0.28, 1.5
BOUNDS = {"clip_low": LOW, "clip_high": HIGH}
LOSSES = {
    "clipped": functools.partial(clipped_policy_loss, **BOUNDS, dual_clip=None),
    "dual_clip": functools.partial(clipped_policy_loss, **BOUNDS, dual_clip=DUAL),
    "gspo": functools.partial(gspo, **BOUNDS),
    "cispo": functools.partial(cispo, **BOUNDS),
    "sequence_clipped": functools.partial(sequence_clipped, **BOUNDS),
    "reinforce": reinforce,
}
CLIPPING = [name for name in LOSSES if name != "reinforce"]


def surrogate(ratio: float, advantage: float) -> tuple[float, float, bool, bool]:
    """The clipped loss, its derivative by the ratio, and whether the lower and the upper bound stops the gradient."""
    low, high = ratio < 1 - LOW and advantage < 0, ratio > 1 + HIGH and advantage > 0
    loss = -min(ratio * advantage, min(max(ratio, 1 - LOW), 1 + HIGH) * advantage)
    return loss, 0.0 if low or high else -advantage, low, high


def row_by_loops(name: str, new: list[float], old: list[float], advantages: list[float]):
    """Loss, gradient of the sum of all losses of the row, ratio and both clip flags for each token of one row."""
    n = len(new)
    logs = [p - q for p, q in zip(new, old, strict=True)]
    if name == "gspo":
        logs = [sum(logs) / n] * n
    if name == "sequence_clipped":
        logs = [sum(logs)] * n
    ratios = [math.exp(x) for x in logs]
    found = [surrogate(r, a) for r, a in zip(ratios, advantages, strict=True)]
    losses, slopes, low, high = (list(part) for part in zip(*found, strict=True))
    gradient = [r * slope for r, slope in zip(ratios, slopes, strict=True)]
    for t, (r, a) in enumerate(zip(ratios, advantages, strict=True)):
        if name == "dual_clip" and a < 0 and losses[t] > -a * DUAL:
            losses[t], gradient[t], high[t] = -a * DUAL, 0.0, True
        if name == "cispo":
            low[t], high[t] = r < 1 - LOW, r > 1 + HIGH
            gradient[t] = -min(max(r, 1 - LOW), 1 + HIGH) * a
            losses[t] = gradient[t] * new[t]
        if name == "reinforce":
            losses[t], gradient[t] = -a * new[t], -a
    if name == "sequence_clipped":  # each token's log-probability is part of every token's loss
        gradient = [sum(gradient)] * n
    return losses, gradient, ratios, low, high


@pytest.mark.parametrize("name", LOSSES)
def test_by_loops(name, normal, ragged_mask, generator):
    rows, width = 12, 7
    mask = ragged_mask(rows, width) & (torch.rand(rows, width, generator=generator) < 0.8)
    mask[:, 0] = True
    new, advantages = normal(rows, width), normal(rows, width)
    old = new + (0.7 if name == "gspo" else 0.4) * normal(rows, width)
    leaf = new.masked_fill(~mask, torch.nan).requires_grad_()
    loss, stats = LOSSES[name](leaf, old.masked_fill(~mask, torch.inf), advantages.masked_fill(~mask, torch.nan), mask)
    loss.sum().backward()
    for tensor in (loss, leaf.grad, *stats.values()):
        assert (tensor[~mask] == 0).all()
    assert not any(tensor.requires_grad for tensor in stats.values())
    for i in range(rows):
        wanted = row_by_loops(name, *(x[i][mask[i]].tolist() for x in (new, old, advantages)))
        ours = [loss, leaf.grad, stats["ratio"], stats.get("clipped_low"), stats.get("clipped_high")]
        for tensor, values in zip(ours, wanted, strict=True):
            if tensor is not None:
                torch.testing.assert_close(tensor[i][mask[i]].tolist(), [float(v) for v in values], rtol=1e-9, atol=0)
    if name in CLIPPING:  # both bounds matter in these inputs
        assert stats["clipped_low"].sum() > 0 and stats["clipped_high"].sum() > 0


@pytest.mark.parametrize("name", LOSSES)
def test_on_policy_every_gradient_is_that_of_reinforce(name, normal, ragged_mask):
    """FIELD_RULE 18: at the first step all ratios are one, and with one advantage for each row all losses agree."""
    old, mask = normal(5, 7), ragged_mask(5, 7)
    advantages = normal(5, 1).expand(5, 7).clone().requires_grad_()
    leaf = old.clone().requires_grad_()
    losses, stats = LOSSES[name](leaf, old, advantages, mask)
    aggregate(losses, mask, "sequence-mean", count=normaliser(mask, "sequence-mean")).backward()
    lengths = mask.sum(1, keepdim=True) if name != "sequence_clipped" else 1
    torch.testing.assert_close(leaf.grad, -advantages.detach() * mask / lengths / 5, rtol=1e-12, atol=0)
    assert torch.equal(stats["ratio"], mask.double())
    assert advantages.grad is None
    assert all((stats[key] == 0).all() for key in stats if key != "ratio")


@pytest.mark.parametrize("name", ["gspo", "sequence_clipped"])
def test_a_row_is_clipped_as_a_whole(name, normal, ragged_mask):
    """A row's loss is the paper's: one ratio, so one clipped surrogate, whose gradient goes to all tokens or none."""
    new, mask = normal(8, 6), ragged_mask(8, 6)
    old, advantages = new + 0.5 * normal(8, 6), normal(8, 1)
    leaf, plain = new.clone().requires_grad_(), new.clone().requires_grad_()
    losses, _ = LOSSES[name](leaf, old, advantages.expand(8, 6), mask)
    aggregate(losses, mask, "sequence-mean", count=8).backward()
    logs = ((plain - old) * mask).sum(1, keepdim=True)
    ratio = (logs / mask.sum(1, keepdim=True) if name == "gspo" else logs).exp()
    wanted = -torch.minimum(ratio * advantages, ratio.clamp(1 - LOW, 1 + HIGH) * advantages).mean()
    wanted.backward()
    torch.testing.assert_close(aggregate(losses, mask, "sequence-mean", count=8), wanted, rtol=1e-12, atol=0)
    torch.testing.assert_close(leaf.grad, plain.grad, rtol=1e-12, atol=1e-15)
    assert any((plain.grad[i] == 0).all() for i in range(8)) and (plain.grad != 0).any()


def test_cispo_never_stops_a_gradient_and_without_a_lower_bound_it_only_shrinks_weights():
    new = torch.tensor([[3.0, -3.0, 0.0]], dtype=torch.float64, requires_grad=True)
    ones = torch.ones(1, 3, dtype=torch.float64)
    loss, stats = cispo(new, 0 * ones, ones, ones.bool(), clip_low=1.0, clip_high=1.0)
    loss.sum().backward()
    torch.testing.assert_close(new.grad, torch.tensor([[-2.0, -math.exp(-3.0), -1.0]], dtype=torch.float64))
    assert stats["clipped_low"].sum() == 0 and stats["clipped_high"].tolist() == [[1.0, 0.0, 0.0]]


def test_dual_clip_binds_for_negative_advantages_only():
    new = torch.tensor([[1.0, 1.0, 0.1]], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([[-2.0, 2.0, -2.0]], dtype=torch.float64)
    loss, stats = LOSSES["dual_clip"](new, torch.zeros_like(new).detach(), advantages, torch.ones(1, 3).bool())
    loss.sum().backward()
    torch.testing.assert_close(loss[0, 0].item(), 2 * DUAL)
    assert new.grad[0, 0] == 0 and new.grad[0, 2] == 2 * new[0, 2].exp()
    assert stats["clipped_high"].tolist() == [[1.0, 1.0, 0.0]]


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("log_ratio", [1000.0, -1000.0])
def test_absurd_ratios_stay_finite(name, advantage, log_ratio):
    new = torch.full((1, 2), log_ratio, requires_grad=True)
    loss, stats = LOSSES[name](new, torch.zeros(1, 2), torch.full((1, 2), advantage), torch.ones(1, 2).bool())
    loss.sum().backward()
    assert all(tensor.isfinite().all() for tensor in (loss, new.grad, *stats.values()))
