"""REINFORCE++: advantages normalised over the whole batch, with and without the mean of a prompt's samples."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.algorithms.advantages.group import group_advantages
from posttrain.algorithms.advantages.outcome import outcomes, returns_to_go
from posttrain.algorithms.whiten import whiten


@torch.no_grad()
def reinforce_plus_plus(rewards: Tensor, mask: Tensor, groups: Tensor, *, gamma: float) -> Tensor:
    """The discounted return from each token on, whitened over all tokens of the batch; no use is made of `groups`.

    rewards: [N, R] per token, KL penalties included; a row with a NaN (or infinite) sum is excluded. mask: [N, R] bool,
    of the whole batch. Returns [N, R] without gradient, zeros where masked and for excluded rows, which are no part of
    the mean and variance. Masked tokens within a row (a tool's answer) are no time steps.

    Source: arXiv:2501.03262: the return to go of the penalised rewards, then global advantage normalisation.
    """
    counted = _counted(rewards, mask)
    return whiten(returns_to_go(rewards, counted, gamma), counted)


@torch.no_grad()
def reinforce_plus_plus_baseline(rewards: Tensor, mask: Tensor, groups: Tensor) -> Tensor:
    """Score minus the group's mean score, at all tokens of its row, whitened over all tokens of the batch.

    rewards, mask: [N, R]; a row's score is its sum of rewards, NaN if the sample is excluded. groups: [N] int64.
    Returns [N, R] without gradient, zeros where masked and for excluded rows, which are no part of any mean. Groups of
    equal scores have the deviation 0 before the whitening and count in it.

    Source: arXiv:2501.03262, REINFORCE++ with baseline.
    """
    return whiten(group_advantages(rewards, mask, groups, scale_by_std=False), _counted(rewards, mask))


def _counted(rewards: Tensor, mask: Tensor) -> Tensor:
    """`mask` [N, R] without the rows of excluded samples."""
    return mask & outcomes(rewards, mask).isfinite()[:, None]
