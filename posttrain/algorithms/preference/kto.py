"""Kahneman-Tversky optimisation: completions labelled good or bad, no pairs."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.algorithms.preference.stats import label_stats


@torch.no_grad()
def kl_baseline(policy_logps: Tensor, ref_logps: Tensor) -> Tensor:
    """The reference point z0 >= 0 (nats, scalar, without gradient): an estimate of KL(policy || reference).

    policy_logps, ref_logps: [N], log-probabilities of whole completions (nats) of mismatched pairs: each prompt with
    the completion of another row. Give all rows of the minibatch, so that its micro-batches share one z0.

    Source: arXiv:2402.01306 section 4.1. Raises ValueError for no rows.
    """
    if policy_logps.numel() == 0:
        raise ValueError("the KL baseline needs at least one mismatched pair")
    return (policy_logps - ref_logps).mean().clamp(min=0)


def kto(
    log_ratios: Tensor,
    labels: Tensor,
    baseline: Tensor,
    *,
    beta: float,
    desirable_weight: float,
    undesirable_weight: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """w_D (1 - sigmoid(beta (r - z0))) for a good completion, w_U (1 - sigmoid(beta (z0 - r))) for a bad one.

    log_ratios: r [B], log-ratios of the policy to the reference, nats. labels: [B] bool, True for good. baseline: z0,
    the scalar of `kl_baseline`. beta: reward per nat. desirable_weight, undesirable_weight: w_D and w_U. Returns
    losses [B] and the statistics of `label_stats`: `reward`, beta r; `margin`, beta (r - z0) with its sign turned for
    bad ones.

    Source: arXiv:2402.01306 eq. 8.
    """
    gain = log_ratios - baseline.detach()
    margin = beta * torch.where(labels, gain, -gain)
    weights = torch.where(labels, margin.new_tensor(desirable_weight), margin.new_tensor(undesirable_weight))
    # sigmoid(-x) is 1 - sigmoid(x) without the loss of digits where x is large
    return weights * torch.sigmoid(-margin), label_stats(beta * log_ratios, margin)
