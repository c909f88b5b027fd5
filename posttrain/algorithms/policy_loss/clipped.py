"""PPO's clipped policy loss, also GRPO's."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.algorithms.aggregate import zero_masked

MAX_LOG_RATIO = 20.0


def clipped_policy_loss(
    log_probs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss per token: max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)) with r = exp(log_probs - old).

    log_probs, old: [B, R], nats, of the sampled tokens under the policy now and when it sampled. advantages: [B, R],
    taken as constants. mask: [B, R] bool. Returns the loss [B, R], zeros where masked, and detached statistics
    [B, R], zeros where masked, to be averaged by `aggregate` like the loss: `ratio`; `clipped_low` and `clipped_high`,
    1 where the lower or upper bound stops the gradient. |log r| is held at 20, beyond which exp says nothing more.

    Source: arXiv:1707.06347 eq. 7; two bounds of their own: DAPO, arXiv:2503.14476 eq. 8.
    """
    log_ratio = zero_masked(log_probs, mask) - zero_masked(old, mask)
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    advantages = zero_masked(advantages, mask).detach()
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - clip_low, 1 + clip_high))
    fixed = ratio.detach()
    stats = {
        "ratio": zero_masked(fixed, mask),
        "clipped_low": ((fixed < 1 - clip_low) & (advantages < 0)).to(fixed.dtype),
        "clipped_high": ((fixed > 1 + clip_high) & (advantages > 0)).to(fixed.dtype),
    }
    return loss, stats
