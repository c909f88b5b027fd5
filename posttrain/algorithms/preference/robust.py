"""Robust DPO: an unbiased estimate of DPO's loss from pairs of which a known share is the wrong way round."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.algorithms.preference.stats import pair_stats


def robust(
    chosen: Tensor, rejected: Tensor, *, beta: float, label_smoothing: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """(-(1 - e) log sigmoid(m) + e log sigmoid(-m)) / (1 - 2 e) per pair, with m = beta (chosen - rejected).

    chosen, rejected: [B], log-ratios of the policy to the reference, nats. beta: reward per nat. label_smoothing: e,
    the share of pairs that are the wrong way round, from 0 to below 1/2. A single loss may be negative; its mean over
    the flips is DPO's. Returns losses [B] and the statistics of `pair_stats`.

    Source: arXiv:2403.00409, the loss of rDPO. Raises ValueError for a label_smoothing out of range.
    """
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(f"label_smoothing is {label_smoothing}; robust DPO needs it from 0 to below 0.5")
    stats = pair_stats(beta * chosen, beta * rejected)
    margin = beta * (chosen - rejected)
    flipped = label_smoothing * logsigmoid(-margin)
    return (flipped - (1 - label_smoothing) * logsigmoid(margin)) / (1 - 2 * label_smoothing), stats
