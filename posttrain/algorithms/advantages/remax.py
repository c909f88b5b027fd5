"""ReMax: the score of the greedy completion is the baseline."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.algorithms.advantages.outcome import outcomes, returns_to_go, spread


@torch.no_grad()
def remax(rewards: Tensor, mask: Tensor, baselines: Tensor) -> Tensor:
    """The undiscounted return from each token on, minus the score of the greedy completion of the same prompt.

    rewards, mask: [N, R]. baselines: [N], in units of reward. A row whose sum of rewards or whose baseline is NaN (or
    infinite) is excluded: zeros. Returns [N, R] without gradient, zeros where masked. With a score at the last token
    and nothing else, the value at all tokens of a row is score minus baseline.

    Source: arXiv:2310.10505 algorithm 1.
    """
    counted = mask & (outcomes(rewards, mask) - baselines).isfinite()[:, None]
    return returns_to_go(rewards, counted, 1.0) - spread(baselines, counted)
