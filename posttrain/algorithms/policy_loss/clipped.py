"""PPO's clipped policy loss, also GRPO's and DAPO's."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.algorithms.aggregate import zero_masked
from posttrain.algorithms.policy_loss.surrogate import Stats, clipped_surrogate, log_ratio, ratio_of


def clipped_policy_loss(
    log_probs: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> tuple[Tensor, Stats]:
    """Loss per token: max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)) with r = exp(log_probs - old).

    With `dual_clip` (above 1) a token of negative advantage has the loss -A dual_clip at most. log_probs, old: [B, R],
    nats, of the sampled tokens under the policy now and when it sampled. advantages: [B, R], taken as constants. mask:
    [B, R] bool. Returns the loss [B, R], zeros where masked, and detached statistics [B, R], zeros where masked, to be
    averaged by `aggregate` like the loss: `ratio`; `clipped_low` and `clipped_high`, 1 where the lower or upper bound
    (dual_clip is an upper one) stops the gradient. |log r| is held at 20, beyond which exp says nothing more.

    Source: arXiv:1707.06347 eq. 7; two bounds of their own: DAPO, arXiv:2503.14476 eq. 8; dual_clip: arXiv:1912.09729,
    "Dual-clip PPO".
    """
    ratio = ratio_of(log_ratio(log_probs, old, mask))
    loss, stats = clipped_surrogate(ratio, advantages, mask, clip_low, clip_high)
    if dual_clip is None:
        return loss, stats
    bad = zero_masked(advantages, mask).detach().clamp(max=0)
    stats["clipped_high"] += ((stats["ratio"] > dual_clip) & (bad < 0)).to(loss.dtype)
    return torch.where(bad < 0, torch.minimum(loss, -bad * dual_clip), loss), stats
