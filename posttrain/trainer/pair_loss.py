"""The loss of a minibatch of pairs, from log-probabilities per token: stored pairs and sampled ones alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from posttrain.algorithms.aggregate import aggregate, row_sum
from posttrain.config.runs import PairSettings
from posttrain.roles.actor import TokenLoss
from posttrain.roles.batches import Unit
from posttrain.roles.learner import Stats
from posttrain.trainer.metrics import row_mean


def pair_loss(
    part: Callable[..., Any], settings: PairSettings, units: Sequence[Unit], reference: Tensor | None
) -> TokenLoss:
    """What `Actor.update` calls for a minibatch of units ((prompt, chosen), (prompt, rejected)).

    part: (chosen [b], rejected [b]) -> (losses [b], statistics). reference: [U, 2], the reference's log-probabilities
    of the whole completions, nats; None where the run has no reference.
    """
    chosen_tokens = sum(len(unit[0][1]) for unit in units)

    def loss(index: Tensor, log_probs: Tensor, mask: Tensor) -> tuple[Tensor, Stats]:
        ratios = row_sum(log_probs, mask).view(-1, 2)
        if reference is not None:
            ratios = ratios - reference[index]
        if settings.length_normalised:
            ratios = ratios / mask.sum(-1).view(-1, 2)
        losses, stats = part(ratios[:, 0], ratios[:, 1])
        means = {name: row_mean(values, len(units)) for name, values in stats.items()}
        total = row_mean(losses, len(units))
        if settings.nll_coef > 0:
            means["nll"] = aggregate(-log_probs[::2], mask[::2], "token-mean", count=chosen_tokens)
            total = total + settings.nll_coef * means["nll"]
        return total, means

    return loss
