"""The reward model's loss."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.algorithms.preference.stats import pair_stats


def bradley_terry(
    chosen: Tensor, rejected: Tensor, gap: Tensor, *, centre_coef: float, label_smoothing: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """-(1 - e) log sigmoid(z) - e log sigmoid(-z) + centre_coef (chosen + rejected)^2 per pair.

    Here z = chosen - rejected - gap and e = label_smoothing.

    chosen, rejected: [B], scalar rewards of the two completions. gap: [B], how much better people found the chosen one;
    0 asks for the right order alone. centre_coef: price of rewards that are not around zero; the other terms know
    their differences alone. label_smoothing: the share of pairs that are thought to be the wrong way round. Returns
    losses [B] and the statistics of `pair_stats`, in which the gap is no part of the margin.

    Source: arXiv:2203.02155 eq. 1 (one pair per prompt); gap: arXiv:2307.09288 eq. 2; centring: arXiv:2312.09244 eq. 2;
    label smoothing as in `sigmoid`.
    """
    logits = chosen - rejected - gap
    losses = -(1 - label_smoothing) * logsigmoid(logits) - label_smoothing * logsigmoid(-logits)
    return losses + centre_coef * (chosen + rejected).square(), pair_stats(chosen, rejected)
