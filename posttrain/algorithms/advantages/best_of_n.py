"""Best of n, the rejection sampling of RAFT."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.algorithms.advantages.outcome import Membership


@torch.no_grad()
def best_of_n(scores: Tensor, groups: Tensor) -> Tensor:
    """Which sample of each group has the highest score, the first one of several: bool [N].

    scores: [N], NaN (or infinite) for an excluded sample, which is never kept; a group without any other keeps none.
    groups: [N] int64, the same number for samples of the same prompt, in any order.

    Source: RAFT, arXiv:2304.06767 algorithm 1.
    """
    member = Membership.of(scores, groups).member
    best = torch.where(member, scores, -torch.inf).argmax(dim=1, keepdim=True)
    return torch.zeros_like(member).scatter(1, best, True).logical_and(member).any(dim=0)
