"""The policy gradient of a problem small enough to enumerate: three tokens, of which one ends, three at most.

Rewards stand at every token, so an outcome is a sum. The exact gradient of the expected reward comes from all
completions; an estimator's expected gradient from all batches that it could be given, each with its probability. So
there is nothing to sample, and equality is to rounding.

GSPO is not among the losses: its ratio is the geometric mean over a row's tokens, so that a row's gradient is divided
by its length, and what comes out is no multiple of the exact gradient. For rows of one length: test_optimum.py.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from posttrain.algorithms.advantages.gae import gae
from posttrain.algorithms.advantages.group import group_advantages
from posttrain.algorithms.advantages.opo import opo
from posttrain.algorithms.advantages.reinforce_plus_plus import reinforce_plus_plus, reinforce_plus_plus_baseline
from posttrain.algorithms.advantages.remax import remax
from posttrain.algorithms.advantages.rloo import rloo
from posttrain.algorithms.policy_loss.cispo import cispo
from posttrain.algorithms.policy_loss.clipped import clipped_policy_loss
from posttrain.algorithms.policy_loss.reinforce import reinforce
from posttrain.algorithms.policy_loss.sequence_clipped import sequence_clipped

END = 2
PREFIXES = [prefix for length in range(3) for prefix in itertools.product((0, 1), repeat=length)]
COMPLETIONS = [(*p, END) for p in PREFIXES] + [(*p, token) for p in PREFIXES if len(p) == 2 for token in (0, 1)]
MASK = torch.tensor([[t < len(y) for t in range(3)] for y in COMPLETIONS])
STATE = torch.tensor([[PREFIXES.index(y[:t]) if t < len(y) else 0 for t in range(3)] for y in COMPLETIONS])
TOKEN = torch.tensor([[y[t] if t < len(y) else 0 for t in range(3)] for y in COMPLETIONS])

GRPO = functools.partial(group_advantages, scale_by_std=True)
DR_GRPO = functools.partial(group_advantages, scale_by_std=False)
CLIP = {"clip_low": 0.2, "clip_high": 0.2}
LOSSES = {
    "reinforce": reinforce,
    "clipped": functools.partial(clipped_policy_loss, **CLIP, dual_clip=3.0),
    "cispo": functools.partial(cispo, **CLIP),
    "sequence_clipped": functools.partial(sequence_clipped, **CLIP),
}
by_loss = pytest.mark.parametrize("loss", LOSSES)
by_token = pytest.mark.parametrize("loss", ["reinforce", "clipped", "cispo"])


def log_probs(logits: Tensor) -> Tensor:
    """logits [7, 3], one row for each prefix -> [15, 3], of the tokens of each completion, 0 after its end."""
    return logits.log_softmax(dim=-1)[STATE, TOKEN] * MASK


def probabilities(logits: Tensor) -> Tensor:
    return log_probs(logits).sum(dim=-1).exp()


def exact(logits: Tensor, rewards: Tensor) -> Tensor:
    """The gradient of the expected reward; rewards [15, 3], zeros after the end."""
    leaf = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((probabilities(leaf) * rewards.sum(dim=-1)).sum(), leaf)
    return gradient


def estimate(logits: Tensor, rows: Tensor, weights: Tensor, advantages: Tensor, loss: str) -> Tensor:
    """The gradient of a batch of completions `rows` [N], each weighing `weights` [N], at the policy that sampled."""
    leaf = logits.clone().requires_grad_()
    new, mask = log_probs(leaf)[rows], MASK[rows]
    losses, _ = LOSSES[loss](new, new.detach(), advantages, mask)
    if loss == "sequence_clipped":  # stands at every token of its row
        losses = losses / mask.sum(dim=-1, keepdim=True)
    (gradient,) = torch.autograd.grad(-(losses.sum(dim=-1) * weights).sum(), leaf)
    return gradient


def same(ours: Tensor, wanted: Tensor) -> None:
    assert wanted.abs().max() > 0.05
    torch.testing.assert_close(ours, wanted, rtol=1e-9, atol=1e-12)


@pytest.fixture
def rewards(normal: Callable[..., Tensor]) -> Tensor:
    return normal(7, 3)[STATE, TOKEN] * MASK


@pytest.fixture
def logits(normal: Callable[..., Tensor]) -> Tensor:
    return normal(7, 3)


@by_loss
@pytest.mark.parametrize(("estimator", "factor"), [(rloo, 1.0), (DR_GRPO, 0.5)])
def test_pairs(estimator, factor, loss, rewards, logits):
    """RLOO is unbiased for any group size; a mean that includes the sample itself costs the share 1/n."""
    rows = torch.tensor(list(itertools.product(range(15), repeat=2)))
    p = probabilities(logits)[rows].prod(dim=1)
    groups = torch.arange(len(rows)).repeat_interleave(2)
    flat = rows.flatten()
    ours = estimator(rewards[flat], MASK[flat], groups)
    same(estimate(logits, flat, p.repeat_interleave(2) / 2, ours, loss), factor * exact(logits, rewards))


@by_token
def test_remax(loss, rewards, logits):
    """The greedy completion's score is a constant of the prompt, so it costs nothing."""
    advantages = remax(rewards, MASK, torch.full((15,), 0.7))
    same(estimate(logits, torch.arange(15), probabilities(logits), advantages, loss), exact(logits, rewards))


@by_token
@pytest.mark.parametrize("lam", [0.0, 0.6, 1.0])
def test_gae_with_the_exact_value(lam, loss, rewards, logits):
    p, to_go = probabilities(logits), rewards.flip(1).cumsum(1).flip(1)
    mass = torch.zeros(7, dtype=p.dtype)
    value = torch.zeros(7, dtype=p.dtype)
    for t in range(3):
        mass.index_add_(0, STATE[:, t], p * MASK[:, t])
        value.index_add_(0, STATE[:, t], p * to_go[:, t] * MASK[:, t])
    advantages, _ = gae(rewards, (value / mass)[STATE], MASK, gamma=1.0, lam=lam)
    same(estimate(logits, torch.arange(15), p, advantages, loss), exact(logits, rewards))


def population() -> Tensor:
    """27 rows that hold each completion as often as the uniform policy gives it."""
    return torch.arange(15).repeat_interleave(27 // 3 ** MASK.sum(dim=-1))


@by_token
@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "opo", "reinforce++", "reinforce++_baseline"])
def test_a_batch_that_is_the_whole_population(name, loss, rewards):
    """Every estimator is the exact gradient times its scale, as any constant baseline vanishes in the expectation."""
    rows, uniform = population(), torch.zeros(7, 3, dtype=rewards.dtype)
    assert len(rows) == 27
    mask, groups = MASK[rows], torch.zeros(27, dtype=torch.long)
    to_go = rewards.flip(1).cumsum(1).flip(1)[rows]
    scores = to_go[:, 0]
    spread_out = scores[:, None].expand(27, 3)
    estimator, scale = {
        "grpo": (GRPO, 1 / (scores.std() + 1e-6)),
        "dr_grpo": (DR_GRPO, 1.0),
        "rloo": (rloo, 27 / 26),
        "opo": (opo, 1.0),
        "reinforce++": (functools.partial(reinforce_plus_plus, gamma=1.0), (to_go[mask].var() + 1e-8).rsqrt()),
        "reinforce++_baseline": (reinforce_plus_plus_baseline, (spread_out[mask].var() + 1e-8).rsqrt()),
    }[name]
    weights = torch.full((27,), 1 / 27, dtype=rewards.dtype)
    same(
        estimate(uniform, rows, weights, estimator(rewards[rows], mask, groups), loss), scale * exact(uniform, rewards)
    )
