"""Estimators of KL(policy || reference) per token, from samples of the policy, and the reward with a KL penalty.

Source: J. Schulman, "Approximating KL Divergence", http://joschu.net/blog/kl-approx.html (2020). All take
log_probs [B, R] and ref_log_probs [B, R] (nats, of the sampled tokens) and mask [B, R] (bool), and return [B, R] in
nats with exact zeros, in value and gradient, where masked. k1 and k3 have KL as their expectation; k2 is biased, but
the expectation of its gradient is the gradient of KL.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.algorithms.aggregate import zero_masked


def k1(log_probs: Tensor, ref_log_probs: Tensor, mask: Tensor) -> Tensor:
    """log(p / q): unbiased, of high variance, may be negative. The penalty that PPO takes from the reward."""
    return zero_masked(log_probs, mask) - zero_masked(ref_log_probs, mask)


def k2(log_probs: Tensor, ref_log_probs: Tensor, mask: Tensor) -> Tensor:
    """log(p / q)^2 / 2: biased, never negative."""
    return k1(log_probs, ref_log_probs, mask).square() / 2


def k3(log_probs: Tensor, ref_log_probs: Tensor, mask: Tensor) -> Tensor:
    """q / p - 1 - log(q / p): unbiased, never negative. The term of GRPO's loss (arXiv:2402.03300 eq. 4)."""
    log_ratio = -k1(log_probs, ref_log_probs, mask)
    return torch.expm1(log_ratio) - log_ratio


def penalised_rewards(scores: Tensor, kl: Tensor, mask: Tensor, kl_coef: float) -> Tensor:
    """Reward per token: -kl_coef * kl at each token, plus the sequence's score at its last one.

    scores: [B]. kl: [B, R], nats per token. mask: [B, R] bool. Returns [B, R], zeros where masked, without gradient; a
    row without tokens stays zero. Source: arXiv:1909.08593 eq. 2; arXiv:2203.02155 section 3.5.
    """
    width = mask.shape[-1]
    last = width - 1 - mask.flip(-1).int().argmax(dim=-1, keepdim=True)
    is_last = mask & (torch.arange(width, device=mask.device) == last)
    return (zero_masked(scores[:, None].expand_as(kl), is_last) - kl_coef * zero_masked(kl, mask)).detach()


def adapted_coef(coef: float, kl: float, *, target: float, horizon: float, samples: int) -> float:
    """The KL penalty's coefficient after a step: higher if the policy is too far from the reference, lower if near.

    kl: nats per sequence, mean of the step, in the same unit as `target`. horizon: in samples, so that `samples` of
    them at an error of 20 % or more change the coefficient by the share 0.2 samples / horizon.

    Source: arXiv:1909.08593 section 2.2: coef (1 + K e), e = clip(kl / target - 1, -0.2, 0.2), K = samples / horizon.
    """
    error = min(max(kl / target - 1, -0.2), 0.2)
    return coef * (1 + error * samples / horizon)
