"""Group-relative advantages: a sample is compared with the other samples of its prompt."""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-6


@torch.no_grad()
def group_advantages(scores: Tensor, groups: Tensor, scale_by_std: bool) -> Tensor:
    """Score minus the group's mean, divided by the group's unbiased standard deviation + 1e-6 if `scale_by_std`.

    scores: [N], NaN (or infinite) for a sample that is excluded. groups: [N] int64, the same number for samples of the
    same prompt, in any order. Returns [N] without gradient. Excluded samples are no part of their group's statistics
    and get 0. A group whose scores are all equal, or that has one sample left, gets exact zeros.

    Source: GRPO, arXiv:2402.03300 section 4.1.2; without the division, Dr. GRPO, arXiv:2503.20783 section 3.2.
    """
    index, member, flat = _membership(scores, groups)
    counts = member.sum(dim=1)
    means = torch.where(member, scores, 0.0).sum(dim=1) / counts.clamp(min=1)
    centred = torch.where(scores.isfinite() & ~flat[index], scores - means[index], 0.0)
    if not scale_by_std:
        return centred
    squares = torch.where(member, centred.square(), 0.0).sum(dim=1)
    return centred / ((squares / (counts - 1).clamp(min=1)).sqrt() + EPSILON)[index]


def flat_share(scores: Tensor, groups: Tensor) -> float:
    """Share of the groups that teach nothing: all scores equal, or fewer than two samples left. Arguments as above."""
    return float(_membership(scores, groups)[2].double().mean())


def _membership(scores: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each sample's group number 0..G-1 [N], who counts in which group [G, N] bool, groups without spread [G] bool."""
    names, index = torch.unique(groups, return_inverse=True)
    member = (index == torch.arange(len(names), device=index.device)[:, None]) & scores.isfinite()
    low = torch.where(member, scores, torch.inf).amin(dim=1)
    high = torch.where(member, scores, -torch.inf).amax(dim=1)
    # compared exactly: the rounding of a mean must not be blown up by a division by almost zero
    return index, member, high <= low
