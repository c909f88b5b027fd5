"""The policy loss of REINFORCE."""

from __future__ import annotations

from torch import Tensor

from posttrain.algorithms.aggregate import zero_masked
from posttrain.algorithms.policy_loss.surrogate import Stats, log_ratio, ratio_of


def reinforce(log_probs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> tuple[Tensor, Stats]:
    """Loss per token: -A log_probs, without a ratio: right where the policy that sampled is the policy now.

    log_probs, old: [B, R], nats. advantages: [B, R], constants. mask: [B, R] bool. Returns the loss [B, R], zeros where
    masked, and the detached statistic `ratio`, exp(log_probs - old), which says how far from right it is: 1 is right.

    Source: R. J. Williams, Machine Learning 8 (1992), theorem 1; for language models, arXiv:2402.14740.
    """
    ratio = zero_masked(ratio_of(log_ratio(log_probs, old, mask).detach()), mask)
    return -zero_masked(advantages, mask).detach() * zero_masked(log_probs, mask), {"ratio": ratio}
