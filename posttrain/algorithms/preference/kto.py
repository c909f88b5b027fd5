"""Kahneman-Tversky optimisation: completions labelled good or bad, no pairs."""

from __future__ import annotations

import torch
from torch import Tensor


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


def kto_loss(
    policy_logps: Tensor,
    ref_logps: Tensor,
    labels: Tensor,
    kl_baseline: Tensor,
    beta: float,
    desirable_weight: float,
    undesirable_weight: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """w_D (1 - sigmoid(beta (r - z0))) for a good completion, w_U (1 - sigmoid(beta (z0 - r))) for a bad one.

    policy_logps, ref_logps: [B], log-probabilities of whole completions (nats); r is their difference. labels: [B]
    bool, True for good. kl_baseline: z0, the scalar of `kl_baseline`. beta: reward per nat. Returns losses [B] and
    detached statistics [B]: `reward`, beta r; `margin`, beta (r - z0) with its sign turned for bad ones; `accuracy`,
    1 where the margin is above zero.

    Source: arXiv:2402.01306 eq. 8.
    """
    log_ratio = policy_logps - ref_logps
    gain = log_ratio - kl_baseline.detach()
    margin = beta * torch.where(labels, gain, -gain)
    weights = torch.where(labels, margin.new_tensor(desirable_weight), margin.new_tensor(undesirable_weight))
    stats = {
        "reward": (beta * log_ratio).detach(),
        "margin": margin.detach(),
        "accuracy": (margin > 0).to(margin.dtype),
    }
    # sigmoid(-x) is 1 - sigmoid(x) without the loss of digits where x is large
    return weights * torch.sigmoid(-margin), stats
