"""Advantages with the optimal reward baseline."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.algorithms.advantages.outcome import Membership, outcomes, spread


@torch.no_grad()
def opo(rewards: Tensor, mask: Tensor, groups: Tensor) -> Tensor:
    """Score minus the group's mean score weighted by length: the baseline of least variance in OPO's model.

    rewards, mask: [N, R]; a row's score is its sum of rewards, NaN if the sample is excluded; its length is its number
    of unmasked tokens. groups: [N] int64. Returns [N, R] without gradient, the same value at all tokens of a row, zeros
    where masked; exact zeros for excluded samples, for groups whose scores are all equal and for those with one sample
    left.

    Source: arXiv:2505.23585, the simplified optimal baseline: b = sum_i l_i r_i / sum_i l_i.
    """
    scores, lengths = outcomes(rewards, mask), mask.sum(dim=-1).to(rewards.dtype)
    group = Membership.of(scores, groups)
    baseline = group.sums(lengths * scores) / group.sums(lengths)
    return spread(group.taught(scores - baseline), mask)
