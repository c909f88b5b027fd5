"""REINFORCE with a leave-one-out baseline."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.algorithms.advantages.outcome import Membership, outcomes, spread


@torch.no_grad()
def rloo(rewards: Tensor, mask: Tensor, groups: Tensor) -> Tensor:
    """Score minus the mean score of the group's other samples: n / (n - 1) times score minus the group's mean.

    rewards, mask: [N, R]; a row's score is its sum of rewards, NaN if the sample is excluded. groups: [N] int64.
    Returns [N, R] without gradient, the same value at all tokens of a row, zeros where masked; exact zeros for excluded
    samples, for groups whose scores are all equal and for those with one sample left.

    Source: arXiv:2402.14740, the RLOO estimator.
    """
    scores = outcomes(rewards, mask)
    group = Membership.of(scores, groups)
    counts = group.counts()
    centred = scores - group.sums(scores) / counts
    return spread(group.taught(centred * counts / (counts - 1).clamp(min=1)), mask)
