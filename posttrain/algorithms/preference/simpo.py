"""Simple preference optimisation: the mean log-probability is the reward, and it must differ by a target margin."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.algorithms.preference.stats import pair_stats


def simpo(chosen: Tensor, rejected: Tensor, *, beta: float, target_margin: float) -> tuple[Tensor, dict[str, Tensor]]:
    """-log sigmoid(beta (chosen - rejected) - target_margin) per pair.

    chosen, rejected: [B], the policy's log-probabilities, means over the completion's tokens, nats. beta: reward per
    nat. target_margin: the paper's gamma, in units of reward; where a recipe gives the ratio gamma / beta, it is beta
    times that. Returns losses [B] and the statistics of `pair_stats`; `margin` and `accuracy` leave the target out.

    Source: arXiv:2405.14734 eq. 6.
    """
    margin = beta * (chosen - rejected)
    return -logsigmoid(margin - target_margin), pair_stats(beta * chosen, beta * rejected)
