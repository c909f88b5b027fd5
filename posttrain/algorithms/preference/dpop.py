"""DPO-positive (Smaug): DPO that does not let the chosen completion become less probable."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid, relu

from posttrain.algorithms.preference.stats import pair_stats


def dpop(chosen: Tensor, rejected: Tensor, *, beta: float, dpop_lambda: float) -> tuple[Tensor, dict[str, Tensor]]:
    """-log sigmoid(beta (chosen - rejected - dpop_lambda max(0, -chosen))) per pair.

    chosen, rejected: [B], log-ratios of the policy to the reference, nats. beta: reward per nat. dpop_lambda: the
    weight of each nat that the chosen completion has lost; 0 is DPO. Returns losses [B] and the statistics of
    `pair_stats`, which leave the penalty out.

    Source: arXiv:2402.13228 eq. 3.
    """
    penalised = chosen - rejected - dpop_lambda * relu(-chosen)
    return -logsigmoid(beta * penalised), pair_stats(beta * chosen, beta * rejected)
