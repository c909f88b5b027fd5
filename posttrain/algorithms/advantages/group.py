"""Group-relative advantages: a sample is compared with the other samples of its prompt."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.algorithms.advantages.outcome import Membership, outcomes, spread

EPSILON = 1e-6


@torch.no_grad()
def group_advantages(rewards: Tensor, mask: Tensor, groups: Tensor, *, scale_by_std: bool) -> Tensor:
    """Score minus the group's mean, divided by the group's unbiased standard deviation + 1e-6 if `scale_by_std`.

    rewards: [N, R] per token; a row's score is their sum, NaN (or infinite) for a sample that is excluded. mask:
    [N, R] bool. groups: [N] int64, the same number for samples of the same prompt, in any order. Returns [N, R]
    without gradient, the same value at all tokens of a row, zeros where masked. Excluded samples and rows without
    tokens are no part of their group's statistics and get 0. A group whose scores are all equal, or that has one
    sample left, gets exact zeros.

    Source: GRPO, arXiv:2402.03300 section 4.1.2; without the division, Dr. GRPO, arXiv:2503.20783 section 3.2.
    """
    scores = outcomes(rewards, mask)
    group = Membership.of(scores, groups)
    counts = group.counts()
    centred = group.taught(scores - group.sums(scores) / counts)
    if scale_by_std:
        variance = group.sums(centred.square()) / (counts - 1).clamp(min=1)
        centred = centred / (variance.sqrt() + EPSILON)
    return spread(centred, mask)


def flat_share(scores: Tensor, groups: Tensor) -> float:
    """Share of the groups that teach nothing: all scores equal, or fewer than two samples left.

    scores: [N], NaN (or infinite) for a sample that is excluded. groups: [N] int64.
    """
    return float(Membership.of(scores, groups).flat.double().mean())
