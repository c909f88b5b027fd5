"""Binary classifier optimisation: completions labelled good or bad, told apart by their reward."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.algorithms.preference.stats import label_stats


def running_shift(shift: float, seen: int, reward: float, rows: int) -> float:
    """The reward shift delta after another minibatch: the mean of all rewards so far, good and bad ones alike.

    shift: the mean of the first `seen` rewards, 0 at the start. reward: the mean of the minibatch's `rows` rewards
    (the statistic `reward`, over all its micro-batches and ranks), so that a micro-batch never has a shift of its own.

    Source: arXiv:2404.04656 (reward shift). Raises ValueError for a minibatch without rows.
    """
    if rows < 1:
        raise ValueError("the reward shift needs at least one row")
    return shift + (reward - shift) * rows / (seen + rows)


def bco(log_ratios: Tensor, labels: Tensor, baseline: Tensor, *, beta: float) -> tuple[Tensor, dict[str, Tensor]]:
    """-log sigmoid(r - delta) for a good completion, -log sigmoid(delta - r) for a bad one, with r = beta log_ratios.

    log_ratios: [B], log-ratios of the policy to the reference, nats. labels: [B] bool, True for good. baseline: delta,
    a scalar in units of reward, without gradient: that of `running_shift`. beta: reward per nat. Returns losses [B]
    and the statistics of `label_stats`: `reward`, r; `margin`, r - delta with its sign turned for bad ones.

    Source: arXiv:2404.04656.
    """
    reward = beta * log_ratios
    gain = reward - baseline.detach()
    margin = torch.where(labels, gain, -gain)
    return -logsigmoid(margin), label_stats(reward, margin)
