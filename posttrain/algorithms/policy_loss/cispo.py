"""CISPO's policy loss: the importance weight is clipped, the gradient of a token is never stopped."""

from __future__ import annotations

from torch import Tensor

from posttrain.algorithms.aggregate import zero_masked
from posttrain.algorithms.policy_loss.surrogate import Stats, log_ratio, ratio_of


def cispo(
    log_probs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, *, clip_low: float, clip_high: float
) -> tuple[Tensor, Stats]:
    """Loss per token: -sg[clip(r, 1 - clip_low, 1 + clip_high)] A log_probs with r = exp(log_probs - old).

    sg stops the gradient. clip_low >= 1 means no lower bound, as in the paper's experiments. log_probs, old: [B, R],
    nats. advantages: [B, R], constants. mask: [B, R] bool. Returns the loss [B, R], zeros where masked, and detached
    statistics [B, R], zeros where masked: `ratio` before the clip; `clipped_low` and `clipped_high`, 1 where a bound
    replaces it. |log r| is held at 20.

    Source: arXiv:2506.13585 eq. 4 and 5.
    """
    ratio = ratio_of(log_ratio(log_probs, old, mask).detach())
    weight = ratio.clamp(1 - clip_low, 1 + clip_high) * zero_masked(advantages, mask).detach()
    stats = {
        "ratio": zero_masked(ratio, mask),
        "clipped_low": ((ratio < 1 - clip_low) & mask).to(ratio.dtype),
        "clipped_high": ((ratio > 1 + clip_high) & mask).to(ratio.dtype),
    }
    return -weight * zero_masked(log_probs, mask), stats
