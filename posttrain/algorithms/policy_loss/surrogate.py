"""What the policy losses share: the ratio of the policy now to the one that sampled, and its clipped surrogate."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.algorithms.aggregate import zero_masked

MAX_LOG_RATIO = 20.0

Stats = dict[str, Tensor]


def log_ratio(log_probs: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """log(p / p_old) of each token, zeros where masked: [B, R]."""
    return zero_masked(log_probs, mask) - zero_masked(old, mask)


def ratio_of(log_ratio: Tensor) -> Tensor:
    """exp, with |log r| held at 20, beyond which the ratio says nothing more; no gradient there."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, mask: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Stats]:
    """max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)), [B, R], zeros where masked (arXiv:1707.06347 eq. 7).

    The advantages are constants. The statistics, detached, zeros where masked: `ratio`; `clipped_low` and
    `clipped_high`, 1 where the lower or upper bound stops the gradient.
    """
    advantages = zero_masked(advantages, mask).detach()
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - clip_low, 1 + clip_high))
    fixed = ratio.detach()
    stats = {
        "ratio": zero_masked(fixed, mask),
        "clipped_low": ((fixed < 1 - clip_low) & (advantages < 0)).to(fixed.dtype),
        "clipped_high": ((fixed > 1 + clip_high) & (advantages > 0)).to(fixed.dtype),
    }
    return loss, stats
