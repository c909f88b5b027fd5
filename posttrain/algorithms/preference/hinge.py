"""The hinge loss of SLiC on log-ratios."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import relu

from posttrain.algorithms.preference.stats import pair_stats


def hinge(chosen: Tensor, rejected: Tensor, *, beta: float) -> tuple[Tensor, dict[str, Tensor]]:
    """max(0, 1 - beta (chosen - rejected)) per pair.

    chosen, rejected: [B], log-ratios of the policy to the reference, nats. beta: reward per nat; its inverse is the
    margin (SLiC's delta) beyond which a pair teaches nothing. Returns losses [B] and the statistics of `pair_stats`.

    Source: arXiv:2305.10425 eq. 1 on log-probabilities, divided by delta; on log-ratios: arXiv:2309.06657.
    """
    return relu(1 - beta * (chosen - rejected)), pair_stats(beta * chosen, beta * rejected)
